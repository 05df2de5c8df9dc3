//! A client's request body as it is received: it must keep a minimal pace, and is hashed on
//! request.

use std::collections::VecDeque;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use super::forward::Sensitive;
use super::wire::BodyEnd;

/// A request body.
///
/// It has ended only if the end of the stream was seen and the declared length was met; a partial
/// request must never be taken for the whole. hyper reports a reset of an HTTP/2 stream with
/// `NO_ERROR` as the end of the body, and likewise ends a chunked body whose connection it dropped.
pub(crate) struct Inbound {
    incoming: Incoming,
    /// For HTTP/1: knows whether the last byte of the message was seen.
    end: Option<BodyEnd>,
    /// Bytes still to come, if the head declared a length.
    left: Option<u64>,
    /// Frames that complete the declared length, held back until the end of the stream is seen: a
    /// service that goes by the length would start to work.
    held: VecDeque<Frame<Bytes>>,
    sensitive: Arc<Sensitive>,
    pace: Option<Pace>,
    hash: Option<(DefaultHasher, Arc<AtomicU64>)>,
}

impl Inbound {
    pub(crate) fn new(incoming: Incoming, end: Option<BodyEnd>, sensitive: Arc<Sensitive>) -> Self {
        let left = incoming.size_hint().exact();
        Inbound {
            incoming,
            end,
            left,
            held: VecDeque::new(),
            sensitive,
            pace: None,
            hash: None,
        }
    }

    /// Enforces a minimal pace for HTTP/2, whose streams share one connection. For HTTP/1, the
    /// connection enforces it.
    pub(crate) fn paced(mut self, window: Duration, rate_min: u64) -> Self {
        self.pace = Some(Pace {
            window,
            bytes_min: rate_min.saturating_mul(window.as_secs()).max(1),
            bytes: 0,
            until: None,
        });
        self
    }

    /// Stores a hash of the whole body, begun with `hasher`, in `into`.
    pub(crate) fn hashed(mut self, hasher: DefaultHasher, into: Arc<AtomicU64>) -> Self {
        self.hash = Some((hasher, into));
        self
    }

    /// Accounts for a frame, and removes trailers that clients may not send.
    fn pass(&mut self, frame: &mut Frame<Bytes>) {
        if let Some(trailers) = frame.trailers_mut() {
            self.sensitive.strip_trailers(trailers);
        }
        let Some(data) = frame.data_ref() else { return };
        let bytes = data.len() as u64;
        // Wraps if more bytes come than declared, so that such a body does not count as whole
        // either.
        self.left = self.left.map(|left| left.wrapping_sub(bytes));
        self.pace.iter_mut().for_each(|pace| pace.bytes += bytes);
        self.hash.iter_mut().for_each(|(hasher, into)| {
            hasher.write(data);
            into.store(hasher.finish(), Ordering::Relaxed);
        });
    }

    fn is_whole(&self) -> bool {
        let is_ended = match &self.end {
            Some(end) => end.was_seen(),
            None => self.incoming.is_end_stream(),
        };
        is_ended && self.left.is_none_or(|left| left == 0)
    }
}

/// The client did not send its whole request body.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyUnreadable {
    #[error("the request body ended before it was whole")]
    CutOff,
    #[error("the request body comes too slowly")]
    TooSlow,
    #[error("the request body could not be read: {0}")]
    Failed(#[from] hyper::Error),
}

impl BodyUnreadable {
    /// Whether this is the cause of another error.
    pub(crate) fn caused(error: &(dyn std::error::Error + 'static)) -> bool {
        std::iter::successors(Some(error), |error| error.source())
            .any(|error| error.is::<BodyUnreadable>())
    }
}

/// Requires `bytes_min` bytes in each window of waiting.
struct Pace {
    window: Duration,
    bytes_min: u64,
    bytes: u64,
    until: Option<Pin<Box<Sleep>>>,
}

impl Pace {
    /// Ready when too few bytes came in a window.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let window = self.window;
        let until = self
            .until
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(window)));
        while until.as_mut().poll(cx).is_ready() {
            if self.bytes < self.bytes_min {
                return Poll::Ready(());
            }
            self.bytes = 0;
            until.as_mut().reset(Instant::now() + window);
        }
        Poll::Pending
    }
}

impl Body for Inbound {
    type Data = Bytes;
    type Error = BodyUnreadable;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyUnreadable>>> {
        let this = &mut *self;
        loop {
            if this.is_whole()
                && let Some(frame) = this.held.pop_front()
            {
                return Poll::Ready(Some(Ok(frame)));
            }
            let Poll::Ready(frame) = Pin::new(&mut this.incoming).poll_frame(cx) else {
                let Some(pace) = &mut this.pace else {
                    return Poll::Pending;
                };
                ready!(pace.poll_late(cx));
                return Poll::Ready(Some(Err(BodyUnreadable::TooSlow)));
            };
            let mut frame = match frame {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None if this.is_whole() && this.held.is_empty() => return Poll::Ready(None),
                None if this.is_whole() => continue,
                None => return Poll::Ready(Some(Err(BodyUnreadable::CutOff))),
            };
            this.pass(&mut frame);
            if this.held.is_empty() && (this.left != Some(0) || this.is_whole()) {
                return Poll::Ready(Some(Ok(frame)));
            }
            // Empty frames are dropped, because a client may send any number of them.
            if !frame.data_ref().is_some_and(Bytes::is_empty) {
                this.held.push_back(frame);
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_empty() && self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
