//! The one HTTP/2 connection that all requests share, where the upstream speaks it.

use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hapax::{Body, Peer};
use http::{Request, Response};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, Connection, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::sync::futures::Notified;
use tokio::sync::{MutexGuard, Notify};

use super::BoxError;
use super::admission::{Busy, Shares, User};
use super::link::Lost;
use super::pool::Slot;
use crate::gateway::stream::Stream;

/// How often a quiet connection is asked whether it lives, and how long it may take to say so.
const PING: Duration = Duration::from_secs(10);

/// How much the head of an answer may say: about what hyper reads of one in HTTP/1.1.
const HEAD_BYTES_MAX: u32 = 256 << 10;

/// What a stream may have on its way to us, and all of them together.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;

/// How often those who wait for a place ask whether there are more.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// The shared connection, if there is one now.
pub(super) struct Shared {
    sender: Mutex<Option<Sender>>,
    per_peer_max: Option<usize>,
    /// The upstream spoke HTTP/2 last time, so it will again.
    is_spoken: AtomicBool,
    opening: tokio::sync::Mutex<()>,
    opened: Notify,
}

impl Shared {
    pub(super) fn new(per_peer_max: Option<usize>) -> Shared {
        let (sender, is_spoken) = (Mutex::default(), AtomicBool::new(false));
        Shared {
            sender,
            per_peer_max,
            is_spoken,
            opening: tokio::sync::Mutex::default(),
            opened: Notify::new(),
        }
    }

    pub(super) fn sender(&self) -> Option<Sender> {
        if !self.is_spoken.load(Ordering::Relaxed) {
            return None;
        }
        self.sender
            .lock()
            .clone()
            .filter(|sender| !sender.requests.is_closed())
    }

    /// The turn to open it. Where HTTP/1.1 is spoken nobody waits for anybody.
    pub(super) async fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        if self.is_spoken.load(Ordering::Relaxed) {
            Some(self.opening.lock().await)
        } else {
            None
        }
    }

    /// Returns when one has been opened after this was called.
    pub(super) fn opened(&self) -> Notified<'_> {
        self.opened.notified()
    }

    pub(super) async fn open(&self, stream: Stream, slot: Slot) -> Result<Sender, BoxError> {
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .keep_alive_interval(PING)
            .keep_alive_timeout(PING)
            .max_header_list_size(HEAD_BYTES_MAX);
        // Each stream has its own window and all of them together have no less: who takes its
        // answer slowly holds up nobody else.
        builder
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        // Until the upstream has said how many streams it takes.
        builder.initial_max_send_streams(1);
        let (requests, connection) = builder.handshake(TokioIo::new(stream)).await?;
        let streams = Arc::new(Streams::new(self.per_peer_max));
        tokio::spawn(streams.clone().attend(connection, slot));
        let sender = Sender { requests, streams };
        self.is_spoken.store(true, Ordering::Relaxed);
        *self.sender.lock() = Some(sender.clone());
        self.opened.notify_waiters();
        Ok(sender)
    }
}

/// The shared connection, as one request sees it.
#[derive(Clone)]
pub(super) struct Sender {
    requests: SendRequest<Body>,
    streams: Arc<Streams>,
}

impl Sender {
    /// A place among the streams; `None` if the connection has ended. Waits for one here, where
    /// nothing has been sent: what waits inside the library would go out when nobody counts on it
    /// any more.
    pub(super) async fn place(&self, user: User) -> Option<Arc<Place>> {
        let mut waiting = None;
        loop {
            let freed = self.streams.freed(user).notified();
            if self.requests.is_closed() {
                return None;
            }
            if self.streams.enter(user) {
                return Some(Arc::new(Place {
                    streams: self.streams.clone(),
                    user,
                }));
            }
            if user == User::Guarded && waiting.is_none() {
                waiting = Some(self.streams.wait_guarded());
            }
            // Whether the upstream has come to take more is known only to the one who has the
            // connection.
            self.streams.asked.notify_one();
            let _ = tokio::time::timeout(ASK_EVERY, freed).await;
        }
    }

    /// Which limit kept a request waiting for its place.
    pub(super) fn why_no_place(&self, user: User) -> BoxError {
        match user {
            User::Guarded => "the upstream takes no more streams".into(),
            User::Unguarded(peer) => self.streams.why_busy(peer).into(),
        }
    }

    pub(super) async fn exchange(
        mut self,
        request: Request<Body>,
        place: &Arc<Place>,
    ) -> Result<Response<Incoming>, Lost> {
        let request = if request.body().is_end_stream() {
            request
        } else {
            // An answer may come before the request was sent; until both are over the stream is
            // there.
            request.map(|body| {
                Body::streamed(Held {
                    body,
                    _place: place.clone(),
                })
            })
        };
        self.requests
            .try_send_request(request)
            .await
            .map_err(Lost::from)
    }
}

/// The streams of a connection: how many there are, and how many the upstream takes.
struct Streams {
    open: Mutex<Open>,
    max: AtomicUsize,
    per_peer_max: Option<usize>,
    freed_for_guarded: Notify,
    freed_for_unguarded: Notify,
    asked: Notify,
}

/// The streams there are.
#[derive(Default)]
struct Open {
    all: usize,
    unguarded: usize,
    peers: HashMap<Option<Peer>, usize>,
    /// Guarded requests that wait for a place. They go first.
    guarded_waiting: usize,
}

/// A guarded request that waits for a place, until dropped.
struct GuardedWaiting<'a>(&'a Streams);

impl Drop for GuardedWaiting<'_> {
    fn drop(&mut self) {
        self.0.open.lock().guarded_waiting -= 1;
    }
}

impl Streams {
    fn new(per_peer_max: Option<usize>) -> Streams {
        Streams {
            open: Mutex::default(),
            max: AtomicUsize::new(1),
            per_peer_max,
            freed_for_guarded: Notify::new(),
            freed_for_unguarded: Notify::new(),
            asked: Notify::new(),
        }
    }

    /// Tells those who wait that a place is free.
    fn freed(&self, user: User) -> &Notify {
        match user {
            User::Guarded => &self.freed_for_guarded,
            User::Unguarded(_) => &self.freed_for_unguarded,
        }
    }

    fn wait_guarded(&self) -> GuardedWaiting<'_> {
        self.open.lock().guarded_waiting += 1;
        GuardedWaiting(self)
    }

    /// Takes a place, if there is one for this user.
    fn enter(&self, user: User) -> bool {
        let max = self.max.load(Ordering::SeqCst);
        let mut open = self.open.lock();
        let is_free = match user {
            User::Guarded => open.all < max,
            User::Unguarded(peer) => {
                let Shares {
                    unguarded_max,
                    per_peer_max,
                } = self.shares(max);
                open.all.saturating_add(open.guarded_waiting) < max
                    && open.unguarded < unguarded_max
                    && open
                        .peers
                        .get(&peer)
                        .is_none_or(|count| *count < per_peer_max)
            }
        };
        if is_free {
            open.all += 1;
            if let User::Unguarded(peer) = user {
                open.unguarded += 1;
                *open.peers.entry(peer).or_default() += 1;
            }
        }
        is_free
    }

    fn leave(&self, user: User) {
        let mut open = self.open.lock();
        open.all -= 1;
        if let User::Unguarded(peer) = user {
            open.unguarded -= 1;
            if let Some(count) = open.peers.get_mut(&peer) {
                *count -= 1;
                if *count == 0 {
                    open.peers.remove(&peer);
                }
            }
        }
    }

    fn why_busy(&self, peer: Option<Peer>) -> Busy {
        let per_peer_max = self.shares(self.max.load(Ordering::SeqCst)).per_peer_max;
        let open = self.open.lock();
        match open.peers.get(&peer) {
            Some(count) if *count >= per_peer_max => Busy::Peer(*count),
            _ => Busy::Unguarded(open.unguarded),
        }
    }

    fn shares(&self, max: usize) -> Shares {
        let shares = Shares::of_streams(max);
        match self.per_peer_max {
            Some(per_peer_max) => Shares {
                per_peer_max,
                ..shares
            },
            None => shares,
        }
    }
}

impl Streams {
    /// Drives a connection to its end, and says how many streams it takes. Why it ended is told to
    /// each stream that it ended for.
    async fn attend<T>(self: Arc<Self>, connection: Connection<T, Body, TokioExecutor>, slot: Slot)
    where
        T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    {
        let mut connection = pin!(connection);
        loop {
            let asked = self.asked.notified();
            let is_over = tokio::select! {
                _ = connection.as_mut() => true,
                () = asked => false,
            };
            if !is_over {
                self.max
                    .store(connection.current_max_send_streams(), Ordering::SeqCst);
            }
            self.freed_for_guarded.notify_waiters();
            self.freed_for_unguarded.notify_waiters();
            if is_over {
                return drop(slot);
            }
        }
    }
}

/// A stream's place, until its request has been sent and its answer read.
pub(super) struct Place {
    streams: Arc<Streams>,
    user: User,
}

/// The body of a request, which keeps its stream's place.
struct Held {
    body: Body,
    _place: Arc<Place>,
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.streams.leave(self.user);
        // One that is woken and may not have it, because of its peer, leaves it to the others, who
        // ask again in time.
        self.streams.freed_for_guarded.notify_one();
        self.streams.freed_for_unguarded.notify_one();
    }
}

/// Whether the upstream says that it has not looked at the request (RFC 9113 section 8.7): a stream
/// it refused, or one beyond the last that it goes away after.
///
/// Of the latter hyper may also speak when the upstream goes away *in good order*, at the very
/// moment at which the head was sent. With a body still to come the request was not complete then;
/// without one it was, and nobody knows.
pub(super) fn is_unprocessed(error: &BoxError, has_body: bool) -> bool {
    let Some(error) = error
        .source()
        .and_then(|source| source.downcast_ref::<h2::Error>())
    else {
        return false;
    };
    let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    error.is_remote() && (is_refused || has_body && error.is_go_away())
}
