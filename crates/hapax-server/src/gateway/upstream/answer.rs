//! The body of the upstream's answer. It fails if the upstream pauses for longer than the timeout.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hapax::middleware::TimedOut;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use super::http2::Place;
use super::{BoxError, link};

/// The body of an answer, streamed from the upstream.
pub(crate) struct Answer {
    kind: Kind,
    patience: Duration,
    /// The timer of the current pause; runs while the body waits for the next frame.
    pause: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
}

enum Kind {
    Empty,
    Http1(link::Answer),
    Http2(Whole),
    /// From a connection that serves only this request.
    Alone(Incoming),
}

/// The body of a stream, checked to be complete. hyper reports a reset with `CANCEL` or `NO_ERROR`,
/// and a `GOAWAY` without an error, as the end of the body. A partial body must not be kept as if
/// it were the whole.
struct Whole {
    incoming: Incoming,
    /// Bytes still to come, if the head declares a length.
    left: Option<u64>,
    _place: Arc<Place>,
}

/// The answer ended before it was whole.
#[derive(Debug, thiserror::Error)]
#[error("the upstream broke its answer off")]
struct Cut;

impl Whole {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match ready!(Pin::new(&mut self.incoming).poll_frame(cx)) {
            Some(Ok(frame)) => {
                let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                self.left = self.left.map(|left| left.saturating_sub(bytes));
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => Poll::Ready(Some(Err(error.into()))),
            // After a complete answer, the upstream may stop the rest of the request with a
            // `NO_ERROR` reset (RFC 9113 section 8.1).
            None if self.incoming.is_end_stream() || self.left == Some(0) => Poll::Ready(None),
            None => Poll::Ready(Some(Err(Cut.into()))),
        }
    }
}

impl Answer {
    pub(super) fn empty() -> Self {
        Answer::new(Kind::Empty, Duration::ZERO)
    }

    pub(super) fn http1(body: link::Answer, patience: Duration) -> Self {
        Answer::new(Kind::Http1(body), patience)
    }

    pub(super) fn http2(body: Incoming, place: Arc<Place>, patience: Duration) -> Self {
        let left = body.size_hint().exact();
        Answer::new(
            Kind::Http2(Whole {
                incoming: body,
                left,
                _place: place,
            }),
            patience,
        )
    }

    pub(super) fn alone(body: Incoming, patience: Duration) -> Self {
        Answer::new(Kind::Alone(body), patience)
    }

    fn new(kind: Kind, patience: Duration) -> Self {
        Answer {
            kind,
            patience,
            pause: None,
            is_waiting: false,
        }
    }

    fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let until = Instant::now() + self.patience;
        let pause = match &mut self.pause {
            Some(pause) => pause,
            none => none.insert(Box::pin(tokio::time::sleep_until(until))),
        };
        if !self.is_waiting {
            self.is_waiting = true;
            pause.as_mut().reset(until);
        }
        pause.as_mut().poll(cx)
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let frame = match &mut this.kind {
            Kind::Empty => Poll::Ready(None),
            Kind::Http1(body) => Pin::new(body).poll_frame(cx),
            Kind::Http2(body) => body.poll_frame(cx),
            Kind::Alone(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
        };
        match frame {
            Poll::Ready(frame) => {
                this.is_waiting = false;
                Poll::Ready(frame)
            }
            Poll::Pending if this.poll_pause(cx).is_ready() => {
                let patience = this.patience;
                // Dropping the body also drops its connection.
                this.kind = Kind::Empty;
                Poll::Ready(Some(Err(TimedOut {
                    after: patience,
                    limit: "timeouts.answer",
                }
                .into())))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Empty => true,
            Kind::Http1(body) => body.is_end_stream(),
            Kind::Http2(body) => body.incoming.is_end_stream(),
            Kind::Alone(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Empty => SizeHint::with_exact(0),
            Kind::Http1(body) => body.size_hint(),
            Kind::Http2(body) => body.incoming.size_hint(),
            Kind::Alone(body) => body.size_hint(),
        }
    }
}
