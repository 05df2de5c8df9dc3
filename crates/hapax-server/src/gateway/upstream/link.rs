//! One HTTP/1.1 connection to the upstream, and one exchange on it.

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

/// Fields that the head of an answer may have. hyper's own limit is 100, and an answer over it
/// would be lost after its effect.
pub(super) const ANSWER_FIELDS_MAX: usize = 256;

/// A connection that is ours alone.
pub(super) struct Link {
    sender: SendRequest<Body>,
    connection: Pin<Box<Connection<TokioIo<Stream>, Body>>>,
    /// The same socket, to ask whether it is still open without disturbing what is read from it.
    socket: OwnedFd,
    is_tls: bool,
    pub(super) rested_at: Instant,
    /// How many requests it has had.
    requests: u64,
    /// How the last answer ended.
    framing: Option<Framing>,
    /// How long the upstream says it keeps a connection without use.
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

    /// Whether it has rested for no longer than this, nor for half of what the upstream allows.
    pub(super) fn is_fresh(&self, age_max: Duration) -> bool {
        let age_max = self
            .keep_alive
            .map_or(age_max, |keep_alive| age_max.min(keep_alive / 2));
        self.rested_at.elapsed() <= age_max
    }

    /// Whether it has had a request before, and has rested for longer than this.
    pub(super) fn is_stale(&self, age_max: Duration) -> bool {
        self.requests > 0 && !self.is_fresh(age_max)
    }

    /// Whether the last answer was one without a body, by its status or by the method asked with.
    pub(super) fn ends_with_head(&self) -> bool {
        self.framing
            .is_some_and(|framing| framing.ends == Ends::WithHead)
    }

    /// What the upstream has sent since its last answer. The system is asked, not the runtime: its
    /// news may not have been read yet.
    pub(super) fn news(&self) -> News {
        match rustix::net::recv(
            &self.socket,
            &mut [0; 1][..],
            RecvFlags::PEEK | RecvFlags::DONTWAIT,
        ) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => News::None,
            // Over TLS that is its end as a rule, because session tickets came before the answer.
            Ok((1.., _)) if !self.is_tls => News::Surplus,
            _ => News::Closed,
        }
    }

    /// The same, of a connection that should have been quiet: what the runtime has read of it
    /// counts too.
    pub(super) async fn listen(&mut self) -> News {
        let polled =
            std::future::poll_fn(|cx| Poll::Ready(self.connection.as_mut().poll(cx))).await;
        match polled {
            Poll::Pending => self.news(),
            Poll::Ready(Err(error)) if is_surplus(&error) => News::Surplus,
            Poll::Ready(_) => News::Closed,
        }
    }

    /// Sends a request and reads the head of the answer. Whoever drops the future gives the
    /// connection up.
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
            // That it has ended is told by the answer that does not come.
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
        // A body without bytes may never be asked for any.
        std::future::poll_fn(|cx| {
            body.rest_at_end(cx);
            Poll::Ready(())
        })
        .await;
        Ok(Response::from_parts(parts, body))
    }

    /// Back into the pool if it can take another request: it cannot if the upstream answered before
    /// it had read the last one, or if its answer left in doubt where it ended. Says whether bytes
    /// follow that nobody asked for.
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

/// What an upstream has sent on a connection at rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    None,
    /// Bytes that nobody asked for.
    Surplus,
    Closed,
}

/// Whether hyper has found bytes behind an answer: of all the errors of a connection at rest only
/// this one has no cause.
fn is_surplus(error: &hyper::Error) -> bool {
    std::error::Error::source(error).is_none()
}

/// What `Keep-Alive: timeout=5` says.
fn keep_alive(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get("keep-alive")?.to_str().ok()?;
    let parameters = value.split(',').map(str::trim);
    let seconds = parameters
        .filter_map(|parameter| parameter.strip_prefix("timeout="))
        .find_map(|seconds| seconds.parse().ok())?;
    Some(Duration::from_secs(seconds))
}

/// Why there is no answer.
pub(super) struct Lost {
    pub(super) error: BoxError,
    /// The request, if not a byte of it was sent.
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

/// On a connection that had been used before, more came than one answer: which of the bytes were
/// meant for this request cannot be told.
#[derive(Debug, thiserror::Error)]
#[error(
    "the upstream sent more than one answer on a connection that was used before, so that it may not be the one asked for"
)]
struct Stray;

/// The body of an answer, and the connection that it comes over: read to its end, the connection
/// goes back to the pool.
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
