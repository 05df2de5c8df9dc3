//! A client's request body on its way in: it may not dawdle, and what it says is hashed in passing where somebody wants to know.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::io;
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

/// A request body.
pub(crate) struct Inbound {
    incoming: Incoming,
    sensitive: Arc<Sensitive>,
    pace: Option<Pace>,
    hash: Option<(DefaultHasher, Arc<AtomicU64>)>,
}

impl Inbound {
    pub(crate) fn new(incoming: Incoming, sensitive: Arc<Sensitive>) -> Self {
        Inbound { incoming, sensitive, pace: None, hash: None }
    }

    /// Keeps a client to a pace where its connection does not: streams of HTTP/2 share one.
    pub(crate) fn paced(mut self, window: Duration, rate_min: u64) -> Self {
        self.pace = Some(Pace { window, bytes_min: rate_min.saturating_mul(window.as_secs()).max(1), bytes: 0, until: None });
        self
    }

    /// Leaves a hash of the whole body, begun with `hasher`, in `into`.
    pub(crate) fn hashed(mut self, hasher: DefaultHasher, into: Arc<AtomicU64>) -> Self {
        self.hash = Some((hasher, into));
        self
    }
}

/// So many bytes in each window of waiting.
struct Pace {
    window: Duration,
    bytes_min: u64,
    bytes: u64,
    until: Option<Pin<Box<Sleep>>>,
}

impl Pace {
    /// Whether too little came while it was waited for.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let window = self.window;
        let until = self.until.get_or_insert_with(|| Box::pin(tokio::time::sleep(window)));
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
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        match Pin::new(&mut this.incoming).poll_frame(cx) {
            Poll::Ready(mut frame) => {
                if let Some(Ok(frame)) = &mut frame
                    && let Some(trailers) = frame.trailers_mut()
                {
                    this.sensitive.strip_trailers(trailers);
                }
                if let Some(Ok(frame)) = &frame
                    && let Some(data) = frame.data_ref()
                {
                    this.pace.iter_mut().for_each(|pace| pace.bytes += data.len() as u64);
                    this.hash.iter_mut().for_each(|(hasher, into)| {
                        hasher.write(data);
                        into.store(hasher.finish(), Ordering::Relaxed);
                    });
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending => {
                let Some(pace) = &mut this.pace else { return Poll::Pending };
                ready!(pace.poll_late(cx));
                Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::TimedOut, "the body comes too slowly").into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
