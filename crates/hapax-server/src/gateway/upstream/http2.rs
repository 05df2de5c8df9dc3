//! The HTTP/2 connection that all requests share, if the upstream speaks HTTP/2.

use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hapax::{Body, NeverDispatched, Peer};
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
use super::go_away::{StreamIds, Watched};
use super::link::Lost;
use super::pool::Slot;
use crate::gateway::stream::Stream;

/// The interval of pings on an idle connection, and the time within which one must be answered.
const PING: Duration = Duration::from_secs(10);

/// Limit on the head of an answer: about what hyper accepts in HTTP/1.1.
const HEAD_BYTES_MAX: u32 = 256 << 10;

/// Limits on the bytes in flight to the gateway: per stream, and for all streams of a connection.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;

/// The interval at which requests waiting for a place check again for one.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// The shared connection, if there is one at present.
pub(super) struct Shared {
    sender: Mutex<Option<Sender>>,
    per_peer_max: Option<usize>,
    /// Whether the upstream spoke HTTP/2 on the last connection; it is then expected to do so
    /// again.
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

    /// Waits for the turn to open the connection. If the upstream speaks HTTP/1.1, there is no
    /// waiting.
    pub(super) async fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        if self.is_spoken.load(Ordering::Relaxed) {
            Some(self.opening.lock().await)
        } else {
            None
        }
    }

    /// Resolves when a connection has been opened after this call.
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
        // The connection's window is no smaller than all stream windows together, so that one
        // client reading its answer slowly does not stall the others.
        builder
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        // Holds until the upstream has announced how many streams it takes.
        builder.initial_max_send_streams(1);
        let stream = Watched::new(stream);
        let ids = stream.ids();
        let (requests, connection) = builder.handshake(TokioIo::new(stream)).await?;
        let streams = Arc::new(Streams::new(self.per_peer_max));
        tokio::spawn(streams.clone().attend(connection, slot));
        let sender = Sender {
            requests,
            streams,
            ids,
        };
        self.is_spoken.store(true, Ordering::Relaxed);
        *self.sender.lock() = Some(sender.clone());
        self.opened.notify_waiters();
        Ok(sender)
    }
}

/// One request's handle to the shared connection.
#[derive(Clone)]
pub(super) struct Sender {
    requests: SendRequest<Body>,
    streams: Arc<Streams>,
    ids: Arc<StreamIds>,
}

impl Sender {
    /// Waits for a place among the streams; `None` if the connection has ended. The wait happens
    /// here, before anything is sent: a request that waits inside the HTTP library could go out
    /// after its caller has given up.
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
            // Only the task that drives the connection can tell whether the upstream takes more
            // streams by now.
            self.streams.asked.notify_one();
            let _ = tokio::time::timeout(ASK_EVERY, freed).await;
        }
    }

    /// The limit that kept a request waiting for its place.
    pub(super) fn why_no_place(&self, user: User) -> BoxError {
        match user {
            User::Guarded => "the upstream takes no more streams".into(),
            User::Unguarded(peer) => self.streams.why_busy(peer).into(),
        }
    }

    /// Sends a request and reads the head of the answer. The error is [`NeverDispatched`] if the
    /// upstream says that it did not process the request.
    pub(super) async fn exchange(
        mut self,
        request: Request<Body>,
        place: &Arc<Place>,
    ) -> Result<Response<Incoming>, Lost> {
        let request = if request.body().is_end_stream() {
            request
        } else {
            // An answer may come before the whole request was sent; the stream lasts until both are
            // over.
            request.map(|body| {
                Body::streamed(Held {
                    body,
                    _place: place.clone(),
                })
            })
        };
        let newest_before = self.ids.newest_opened();
        let answered = self.requests.try_send_request(request).await;
        answered.map_err(|error| {
            let mut lost = Lost::from(error);
            if is_unprocessed(&lost.error, &self.ids, newest_before) {
                lost.error = NeverDispatched(lost.error).into();
            }
            lost
        })
    }
}

/// The streams of a connection: how many are open, and how many the upstream takes.
struct Streams {
    open: Mutex<Open>,
    max: AtomicUsize,
    per_peer_max: Option<usize>,
    freed_for_guarded: Notify,
    freed_for_unguarded: Notify,
    asked: Notify,
}

/// Counts of the open streams.
#[derive(Default)]
struct Open {
    all: usize,
    unguarded: usize,
    peers: HashMap<Option<Peer>, usize>,
    /// Guarded requests waiting for a place. They go first.
    guarded_waiting: usize,
}

/// Counts a guarded request as waiting for a place until dropped.
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

    /// The notifier of requests of this kind that wait for a place.
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

    /// Takes a place, if one is free for this user.
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
    /// Drives a connection to its end, and keeps the limit on its streams up to date. Each affected
    /// stream gets the connection's error itself.
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

/// A stream's place, held until its request has been sent and its answer read.
pub(super) struct Place {
    streams: Arc<Streams>,
    user: User,
}

/// The body of a request; it holds the place of its stream.
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
        // A woken request that may not have the place, because of its peer's limit, leaves it to
        // the others, which check again every `ASK_EVERY`.
        self.streams.freed_for_guarded.notify_one();
        self.streams.freed_for_unguarded.notify_one();
    }
}

/// Whether the upstream says that it did not process the request (RFC 9113 section 8.7): it refused
/// the stream, or its `GOAWAY` names an earlier one as the last. `newest_before` is the newest
/// stream that was opened before the request was handed to hyper.
fn is_unprocessed(error: &BoxError, ids: &StreamIds, newest_before: u32) -> bool {
    let last_processed = ids.last_processed();
    // The request's stream comes after `newest_before`, so it was not processed.
    if last_processed <= newest_before {
        return true;
    }
    let Some(error) = error
        .source()
        .and_then(|source| source.downcast_ref::<h2::Error>())
    else {
        return false;
    };
    let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    // h2 gives this error to each stream after the last one that the upstream processes. hyper also
    // gives it to a request whose stream it was just opening, even if the upstream processes that
    // stream. hyper opens no stream after that one, so it is the newest.
    let is_after_last = error.is_go_away() && last_processed < ids.newest_opened();
    error.is_remote() && (is_refused || is_after_last)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::{JoinHandle, yield_now};

    use super::*;
    use crate::gateway::upstream::pool::{self, Pool, Turn};
    use crate::telemetry::Metrics;

    const NO_STREAMS: &[u8] = &[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0];
    const ANY_STREAMS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    const ANSWER_ON_STREAM_1: &[u8] = &[0, 0, 1, 1, 5, 0, 0, 0, 1, 0x88];

    fn go_away(last: u32) -> Vec<u8> {
        let head = [0, 0, 8, 7, 0, 0, 0, 0, 0];
        [&head[..], &last.to_be_bytes(), &[0; 4]].concat()
    }

    async fn connect() -> (Sender, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let stream = Stream::Plain(TcpStream::connect(address).await.unwrap());
        let pool = Pool::new(1, Duration::ZERO, Metrics::new());
        let pool::Place::Now(Turn::Dial(slot)) = pool.take(Duration::ZERO, true) else {
            panic!("the pool is empty");
        };
        let sender = Shared::new(None).open(stream, slot).await.unwrap();
        (sender, listener.accept().await.unwrap().0)
    }

    type Answered = Result<Response<Incoming>, Lost>;

    async fn post(sender: &Sender, body: &'static str) -> JoinHandle<Answered> {
        let place = sender.place(User::Guarded).await.unwrap();
        let sender = sender.clone();
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = "http://shop/".parse().unwrap();
        tokio::spawn(async move { sender.exchange(request, &place).await })
    }

    async fn until_opened(sender: &Sender, stream: u32) {
        while sender.ids.newest_opened() < stream {
            yield_now().await;
        }
    }

    async fn is_released(lost: JoinHandle<Answered>) -> bool {
        let lost = lost.await.unwrap().expect_err("no answer came");
        assert!(lost.unsent.is_none(), "hyper had taken the request");
        lost.error.is::<NeverDispatched>()
    }

    /// In this case hyper drops the request with an error that does not mention `GOAWAY`.
    #[tokio::test]
    async fn a_goaway_while_a_stream_waits_to_open_releases_what_comes_after_its_last_stream() {
        let cases = [(0, true), (1, true), (3, false), (u32::MAX >> 1, false)];
        for (body, (last, expected)) in ["", "body"]
            .into_iter()
            .flat_map(|body| cases.map(|case| (body, case)))
        {
            let (sender, mut upstream) = connect().await;
            let first = post(&sender, "body").await;
            until_opened(&sender, 1).await;
            let answer = [NO_STREAMS, ANSWER_ON_STREAM_1].concat();
            upstream.write_all(&answer).await.unwrap();
            assert!(first.await.unwrap().is_ok());

            let waiting = post(&sender, body).await;
            // Gives hyper time to take the request.
            for _ in 0..10 {
                yield_now().await;
            }
            upstream.write_all(&go_away(last)).await.unwrap();
            assert_eq!(
                is_released(waiting).await,
                expected,
                "{body:?}, GOAWAY after {last}"
            );
        }
    }

    #[tokio::test]
    async fn a_goaway_between_two_streams_releases_the_second_only() {
        let (sender, mut upstream) = connect().await;
        upstream.write_all(ANY_STREAMS).await.unwrap();
        let places = (
            sender.place(User::Guarded).await,
            sender.place(User::Guarded).await,
        );
        drop(places);

        let (first, second) = (post(&sender, "body").await, post(&sender, "").await);
        until_opened(&sender, 3).await;
        upstream.write_all(&go_away(1)).await.unwrap();
        assert!(is_released(second).await);
        drop(upstream);
        assert!(!is_released(first).await);
    }
}
