//! One HTTP/1.1 connection to the upstream, and one exchange over it.

use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hapax::Body;
use hapax::middleware::CloseDelimited;
use http::{HeaderMap, Request, Response};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use rustix::net::RecvFlags;

use super::BoxError;
use super::framing::{Ends, Framing};
use super::pool::{Pool, Slot};
use crate::gateway::stream::Stream;

/// Limit on the header fields of an answer. hyper's default is 100, and an answer over the limit
/// would be lost after its effect.
pub(super) const ANSWER_FIELDS_MAX: usize = 256;

/// A connection that belongs to one request at a time.
pub(super) struct Link {
    sender: SendRequest<Body>,
    connection: Pin<Box<Connection<TokioIo<Stream>, Body>>>,
    /// The same socket, for checking whether it is still open without consuming bytes.
    socket: OwnedFd,
    is_tls: bool,
    pub(super) rested_at: Instant,
    /// The number of requests sent over it.
    requests: u64,
    /// How the head of the last answer framed its body.
    framing: Option<Framing>,
    /// How long the upstream says it keeps an idle connection open.
    keep_alive: Option<Duration>,
    _slot: Slot,
}

impl Link {
    pub(super) async fn open(stream: Stream, slot: Slot) -> Result<Link, BoxError> {
        let (socket, is_tls) = (
            stream.socket().as_fd().try_clone_to_owned()?,
            stream.is_tls(),
        );
        let (sender, connection) = http1::Builder::new()
            .max_headers(ANSWER_FIELDS_MAX)
            .handshake(TokioIo::new(stream))
            .await?;
        Ok(Link {
            sender,
            connection: Box::pin(connection),
            socket,
            is_tls,
            rested_at: Instant::now(),
            requests: 0,
            framing: None,
            keep_alive: None,
            _slot: slot,
        })
    }

    /// Whether it has been idle for at most `age_max`, and for at most half of the upstream's
    /// keep-alive.
    pub(super) fn is_fresh(&self, age_max: Duration) -> bool {
        let age_max = self
            .keep_alive
            .map_or(age_max, |keep_alive| age_max.min(keep_alive / 2));
        self.rested_at.elapsed() <= age_max
    }

    /// Whether it has served a request, and has been idle for longer than `age_max`.
    pub(super) fn is_stale(&self, age_max: Duration) -> bool {
        self.requests > 0 && !self.is_fresh(age_max)
    }

    /// Whether the last answer had no body, because of its status or of the request's method.
    pub(super) fn ends_with_head(&self) -> bool {
        self.framing
            .is_some_and(|framing| framing.ends == Ends::WithHead)
    }

    /// What the upstream has sent since its last answer. This asks the kernel, because the runtime
    /// may not have read the bytes yet.
    pub(super) fn news(&self) -> News {
        match rustix::net::recv(
            &self.socket,
            &mut [0; 1][..],
            RecvFlags::PEEK | RecvFlags::DONTWAIT,
        ) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => News::None,
            // Over TLS, such bytes are usually the close notification: session tickets came before
            // the answer.
            Ok((1.., _)) if !self.is_tls => News::Surplus,
            _ => News::Closed,
        }
    }

    /// Like [`Self::news`], for a connection that should have been quiet: also considers what the
    /// runtime has read already.
    pub(super) async fn listen(&mut self) -> News {
        let polled =
            std::future::poll_fn(|cx| Poll::Ready(self.connection.as_mut().poll(cx))).await;
        match polled {
            Poll::Pending => self.news(),
            Poll::Ready(Err(error)) if is_surplus(&error) => News::Surplus,
            Poll::Ready(_) => News::Closed,
        }
    }

    /// Sends a request and reads the head of the answer. Dropping the future closes the connection.
    pub(super) async fn exchange(
        mut self,
        request: Request<Body>,
        pool: Arc<Pool>,
    ) -> Result<Response<Answer>, Lost> {
        let method = request.method().clone();
        let mut sent = std::pin::pin!(self.sender.try_send_request(request));
        let answered = std::future::poll_fn(|cx| {
            if let Poll::Ready(answered) = sent.as_mut().poll(cx) {
                return Poll::Ready(answered);
            }
            // If the connection has ended, `sent` returns the error.
            let _ = self.connection.as_mut().poll(cx);
            sent.as_mut().poll(cx)
        });
        let (mut parts, incoming) = answered.await?.into_parts();
        let framing = Framing::new(&method, &parts).map_err(|error| Lost {
            error: error.into(),
            unsent: None,
        })?;
        if framing.ends == Ends::WithConnection {
            parts.extensions.insert(CloseDelimited);
        }
        self.requests += 1;
        (self.framing, self.keep_alive) = (Some(framing), keep_alive(&parts.headers));
        let mut body = Answer {
            incoming,
            link: Some((self, pool)),
            is_stray: false,
        };
        // The caller may never poll a body without bytes, so its end is checked here.
        std::future::poll_fn(|cx| {
            body.rest_at_end(cx);
            Poll::Ready(())
        })
        .await;
        Ok(Response::from_parts(parts, body))
    }

    /// Returns the connection to the pool if it can take another request. It cannot if the upstream
    /// answered before it had read the whole request, or if it is uncertain where the answer ended.
    /// Returns whether the upstream sent bytes after the answer.
    fn rest(mut self, pool: &Arc<Pool>, cx: &mut Context<'_>) -> News {
        match self.connection.as_mut().poll(cx) {
            Poll::Ready(Err(error)) if is_surplus(&error) => {
                pool.distrust();
                return News::Surplus;
            }
            Poll::Ready(_) => return News::Closed,
            Poll::Pending => {}
        }
        if self.sender.is_ready() && self.framing.is_some_and(|framing| framing.is_certain) {
            pool.put(self);
        }
        News::None
    }
}

/// What an upstream has sent on an idle connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    None,
    /// Bytes outside of any answer.
    Surplus,
    Closed,
}

/// Whether hyper has found bytes after an answer: of all errors of an idle connection, only this
/// one has no source.
fn is_surplus(error: &hyper::Error) -> bool {
    std::error::Error::source(error).is_none()
}

/// The timeout in a header such as `Keep-Alive: timeout=5`.
fn keep_alive(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get("keep-alive")?.to_str().ok()?;
    let parameters = value.split(',').map(str::trim);
    let seconds = parameters
        .filter_map(|parameter| parameter.strip_prefix("timeout="))
        .find_map(|seconds| seconds.parse().ok())?;
    Some(Duration::from_secs(seconds))
}

/// Why there is no answer to a request.
pub(super) struct Lost {
    pub(super) error: BoxError,
    /// The request, if no byte of it was sent.
    pub(super) unsent: Option<Request<Body>>,
}

impl From<TrySendError<Request<Body>>> for Lost {
    fn from(mut error: TrySendError<Request<Body>>) -> Self {
        Lost {
            unsent: error.take_message(),
            error: error.into_error().into(),
        }
    }
}

/// More than one answer arrived on a connection that had been used before, so it is unknown which
/// bytes were meant for this request.
#[derive(Debug, thiserror::Error)]
#[error(
    "the upstream sent more than one answer on a connection that was used before, so that it may not be the one asked for"
)]
struct Stray;

/// The body of an answer, together with its connection. When the body has been read to its end, the
/// connection goes back to the pool.
pub(super) struct Answer {
    incoming: Incoming,
    link: Option<(Link, Arc<Pool>)>,
    is_stray: bool,
}

impl Answer {
    fn rest_at_end(&mut self, cx: &mut Context<'_>) {
        if self.incoming.is_end_stream() {
            self.rest(cx);
        }
    }

    fn rest(&mut self, cx: &mut Context<'_>) {
        let Some((link, pool)) = self.link.take() else {
            return;
        };
        let is_reused = link.requests > 1;
        self.is_stray = link.rest(&pool, cx) == News::Surplus && is_reused;
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
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
                this.rest(cx);
                let is_stray = std::mem::take(&mut this.is_stray);
                Poll::Ready(is_stray.then(|| Err(Stray.into())))
            }
            Some(Err(error)) => {
                this.link = None;
                Poll::Ready(Some(Err(error.into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream() && !self.is_stray
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
