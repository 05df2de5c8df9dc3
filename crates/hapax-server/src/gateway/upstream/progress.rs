//! The timeout for an upstream's answer. It is extended while the request is still being sent.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hapax::Body;
use hapax::middleware::TimedOut;
use http::Request;
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::timeout;

use super::BoxError;

/// Counts the progress of sending a request.
#[derive(Clone, Default)]
pub(super) struct Progress(Arc<AtomicU64>);

impl Progress {
    /// Counts the frames of a request's body as they are sent. Clients may send theirs slowly.
    pub(super) fn watch(&self, request: Request<Body>) -> Request<Body> {
        if request.body().is_end_stream() {
            return request;
        }
        request.map(|body| {
            Body::streamed(Watched {
                body,
                progress: self.clone(),
            })
        })
    }

    /// Waits for an answer. Gives up after a window of `patience` in which the request made no
    /// progress.
    pub(super) async fn in_time<T>(
        &self,
        patience: Duration,
        exchange: impl Future<Output = T>,
    ) -> Result<T, TimedOut> {
        let mut exchange = std::pin::pin!(exchange);
        loop {
            let before = self.0.load(Ordering::Relaxed);
            match timeout(patience, exchange.as_mut()).await {
                Ok(answered) => return Ok(answered),
                Err(_) if self.0.load(Ordering::Relaxed) != before => {}
                Err(_) => {
                    return Err(TimedOut {
                        after: patience,
                        limit: "timeouts.answer",
                    });
                }
            }
        }
    }
}

struct Watched {
    body: Body,
    progress: Progress,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if frame.is_ready() {
            self.progress.0.fetch_add(1, Ordering::Relaxed);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
