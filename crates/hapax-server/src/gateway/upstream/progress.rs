//! Patience with an upstream: it counts from the last byte of the request that was sent.

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

/// How much of a request has been sent.
#[derive(Clone, Default)]
pub(super) struct Progress(Arc<AtomicU64>);

impl Progress {
    /// Watches the body of a request go, if it comes from a client that may take its time.
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

    /// Waits for an answer for as long as the request makes progress, and for `patience` after
    /// that.
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
