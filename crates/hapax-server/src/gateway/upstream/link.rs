//! One HTTP/1.1 connection to the upstream, and one exchange on it.

use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hapax::Body;
use http::{HeaderMap, Request, Response};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use rustix::net::RecvFlags;

use super::BoxError;
use super::pool::{Pool, Slot};
use crate::gateway::stream::Stream;

/// A connection that is ours alone.
pub(super) struct Link {
    sender: SendRequest<Body>,
    connection: Pin<Box<Connection<TokioIo<Stream>, Body>>>,
    /// The same socket, to ask whether it is still open without disturbing what is read from it.
    socket: OwnedFd,
    pub(super) rested_at: Instant,
    /// It has had a request before.
    is_used: bool,
    /// How long the upstream says it keeps a connection without use.
    keep_alive: Option<Duration>,
    _slot: Slot,
}

impl Link {
    pub(super) async fn open(stream: Stream, slot: Slot) -> Result<Link, BoxError> {
        let socket = stream.socket().as_fd().try_clone_to_owned()?;
        let (sender, connection) = http1::Builder::new().handshake(TokioIo::new(stream)).await?;
        Ok(Link {
            sender,
            connection: Box::pin(connection),
            socket,
            rested_at: Instant::now(),
            is_used: false,
            keep_alive: None,
            _slot: slot,
        })
    }

    /// Whether it has rested for no longer than this, nor for half of what the upstream allows.
    pub(super) fn is_fresh(&self, age_max: Duration) -> bool {
        let age_max = self.keep_alive.map_or(age_max, |keep_alive| age_max.min(keep_alive / 2));
        self.rested_at.elapsed() <= age_max
    }

    /// Whether it has had a request before, and has rested for longer than this.
    pub(super) fn is_stale(&self, age_max: Duration) -> bool {
        self.is_used && !self.is_fresh(age_max)
    }

    /// Whether the upstream has neither closed it nor said anything unasked. The system is asked, not the runtime: its news may
    /// not have been read yet.
    pub(super) fn is_open(&self) -> bool {
        match rustix::net::recv(&self.socket, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Err(error) => error == rustix::io::Errno::AGAIN || error == rustix::io::Errno::INTR,
            // The end, or bytes. Over TLS those are its end as a rule, because session tickets came before the answer.
            Ok(_) => false,
        }
    }

    /// Sends a request and reads the head of the answer. Whoever drops the future gives the connection up.
    pub(super) async fn exchange(mut self, request: Request<Body>, pool: Arc<Pool>) -> Result<Response<Answer>, Lost> {
        let mut sent = std::pin::pin!(self.sender.try_send_request(request));
        let answered = std::future::poll_fn(|cx| {
            if let Poll::Ready(answered) = sent.as_mut().poll(cx) {
                return Poll::Ready(answered);
            }
            // That it has ended is told by the answer that does not come.
            let _ = self.connection.as_mut().poll(cx);
            sent.as_mut().poll(cx)
        });
        let response = answered.await?;
        (self.is_used, self.keep_alive) = (true, keep_alive(response.headers()));
        let mut response = response.map(|incoming| Answer { incoming, link: Some((self, pool)) });
        // A body without bytes may never be asked for any.
        std::future::poll_fn(|cx| {
            response.body_mut().rest_at_end(cx);
            Poll::Ready(())
        })
        .await;
        Ok(response)
    }

    /// Back into the pool if it can take another request: it cannot if the upstream answered before it had read the last one.
    fn rest(mut self, pool: &Pool, cx: &mut Context<'_>) {
        if self.connection.as_mut().poll(cx).is_pending() && self.sender.is_ready() {
            pool.put(self);
        }
    }
}

/// What `Keep-Alive: timeout=5` says.
fn keep_alive(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get("keep-alive")?.to_str().ok()?;
    let parameters = value.split(',').map(str::trim);
    let seconds = parameters.filter_map(|parameter| parameter.strip_prefix("timeout=")).find_map(|seconds| seconds.parse().ok())?;
    Some(Duration::from_secs(seconds))
}

/// Why there is no answer.
pub(super) struct Lost {
    pub(super) error: hyper::Error,
    /// The request, if not a byte of it was sent.
    pub(super) unsent: Option<Request<Body>>,
}

impl From<TrySendError<Request<Body>>> for Lost {
    fn from(mut error: TrySendError<Request<Body>>) -> Self {
        Lost { unsent: error.take_message(), error: error.into_error() }
    }
}

/// The body of an answer, and the connection that it comes over: read to its end, the connection goes back to the pool.
pub(super) struct Answer {
    incoming: Incoming,
    link: Option<(Link, Arc<Pool>)>,
}

impl Answer {
    fn rest_at_end(&mut self, cx: &mut Context<'_>) {
        if self.incoming.is_end_stream()
            && let Some((link, pool)) = self.link.take()
        {
            link.rest(&pool, cx);
        }
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        let mut frame = Pin::new(&mut this.incoming).poll_frame(cx);
        if frame.is_pending()
            && let Some((link, _)) = &mut this.link
        {
            let _ = link.connection.as_mut().poll(cx);
            frame = Pin::new(&mut this.incoming).poll_frame(cx);
        }
        match ready!(frame) {
            Some(Ok(frame)) => {
                this.rest_at_end(cx);
                Poll::Ready(Some(Ok(frame)))
            }
            None => {
                if let Some((link, pool)) = this.link.take() {
                    link.rest(&pool, cx);
                }
                Poll::Ready(None)
            }
            Some(Err(error)) => {
                this.link = None;
                Poll::Ready(Some(Err(error)))
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
