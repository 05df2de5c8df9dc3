//! The service behind the gateway: does what a request's body tells it to, and keeps its own count
//! of effects.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

/// More than a store has room for in the files it begins with, and less than what is kept.
pub(crate) const MUCH_BYTES: usize = 512 << 10;

type Answer = Response<BoxBody<Bytes, io::Error>>;

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
}

/// A service at work.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    ledger: Arc<Ledger>,
    pub(crate) gate: Gate,
    _accepting: AbortOnDropHandle<()>,
}

/// What happened, by the service's own account.
#[derive(Default)]
struct Ledger {
    effects: Mutex<BTreeMap<String, usize>>,
    seen: Mutex<Vec<Seen>>,
}

impl Upstream {
    /// Speaks HTTP/1.1; over TLS what the other side prefers.
    pub(crate) async fn start(tls: Option<Arc<ServerConfig>>) -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (ledger, gate) = (Arc::new(Ledger::default()), Gate::new());
        let accepting = tokio::spawn(accept(listener, tls, ledger.clone(), gate.clone()));
        Upstream {
            address,
            ledger,
            gate,
            _accepting: AbortOnDropHandle::new(accepting),
        }
    }

    /// How many requests had an effect, with a key or without.
    pub(crate) fn effects(&self) -> usize {
        self.ledger.effects.lock().unwrap().values().sum()
    }

    /// How many had one under this key.
    pub(crate) fn effects_of(&self, key: &str) -> usize {
        self.ledger
            .effects
            .lock()
            .unwrap()
            .get(key)
            .copied()
            .unwrap_or_default()
    }

    pub(crate) fn last_seen(&self) -> Seen {
        self.ledger
            .seen
            .lock()
            .unwrap()
            .last()
            .expect("nothing has arrived")
            .clone()
    }
}

async fn accept(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    ledger: Arc<Ledger>,
    gate: Gate,
) {
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        tokio::spawn(attend(socket, tls.clone(), ledger.clone(), gate.clone()));
    }
}

async fn attend(
    socket: TcpStream,
    tls: Option<Arc<ServerConfig>>,
    ledger: Arc<Ledger>,
    gate: Gate,
) {
    let Some(tls) = tls else {
        return serve(socket, false, ledger, gate).await;
    };
    // Who does not trust us leaves here.
    let Ok(stream) = TlsAcceptor::from(tls).accept(socket).await else {
        return;
    };
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    serve(stream, is_http2, ledger, gate).await;
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    is_http2: bool,
    ledger: Arc<Ledger>,
    gate: Gate,
) {
    let service = service_fn(move |request| obey(request, ledger.clone(), gate.clone()));
    let io = TokioIo::new(stream);
    // How a connection ended is seen at its other end.
    if is_http2 {
        drop(
            hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(io, service)
                .await,
        );
    } else {
        drop(
            hyper::server::conn::http1::Builder::new()
                .serve_connection(io, service)
                .await,
        );
    }
}

/// Does what the body says: answers with a status, waits at the gate, breaks off.
async fn obey(
    request: Request<Incoming>,
    ledger: Arc<Ledger>,
    gate: Gate,
) -> Result<Answer, io::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let number = ledger.add(&parts.headers, parts.version);
    match std::str::from_utf8(&body).unwrap() {
        "wait" => {
            gate.pass().await;
            Ok(charged(number))
        }
        "wait, then much" => {
            gate.pass().await;
            Ok(Response::new(whole(vec![b'x'; MUCH_BYTES])))
        }
        "wait, then 503" => {
            gate.pass().await;
            Ok(status(503))
        }
        "hang" => std::future::pending().await,
        "break off" => Err(io::Error::other("as told")),
        "truncate" => Ok(Response::new(in_parts([
            Ok(Frame::data("{\"charge\":".into())),
            Err(io::Error::other("as told")),
        ]))),
        "500, none" => Ok(with(status(500), "hapax-outcome", "none")),
        "500, done" => Ok(with(status(500), "hapax-outcome", "done")),
        "500, retry" => Ok(with(status(500), "retry-after", "7")),
        "forget it" => Ok(with(charged(number), "hapax-keep", "no")),
        "much" => Ok(Response::new(whole(vec![b'x'; MUCH_BYTES]))),
        "redirect" => Ok(with(status(307), "location", "/elsewhere")),
        "trailers" => Ok(with_trailers(charged(number))),
        told => Ok(told.parse().map_or_else(|_| charged(number), status)),
    }
}

impl Ledger {
    /// Notes an effect; returns which one it is.
    fn add(&self, headers: &HeaderMap, version: Version) -> usize {
        let key = headers
            .get("idempotency-key")
            .map_or("", |key| key.to_str().unwrap())
            .to_owned();
        self.seen.lock().unwrap().push(Seen {
            version,
            headers: headers.clone(),
        });
        let mut effects = self.effects.lock().unwrap();
        *effects.entry(key).or_default() += 1;
        effects.values().sum()
    }
}

/// An answer with one of everything that a replay treats specially, and with copies of what only
/// Hapax may say.
fn charged(number: usize) -> Answer {
    Response::builder()
        .status(201)
        .header("content-type", "application/json")
        .header("link", "<a>")
        .header("x-other", "1")
        .header("link", "<b>")
        .header("set-cookie", "session=first-caller")
        .header("cache-control", "private")
        .header("connection", "x-hop")
        .header("x-hop", "1")
        .header("idempotent-replayed", "true")
        .header("idempotency-expires", "Mon, 01 Jan 2029 00:00:00 GMT")
        .header("hapax-fence", "1")
        .header("hapax-operation", "made-up")
        .header("hapax-trace", "made-up")
        .body(whole(format!("{{\"charge\":{number}}}\n")))
        .unwrap()
}

fn status(status: u16) -> Answer {
    let mut answer = Response::new(whole(format!("the upstream says {status}\n")));
    *answer.status_mut() = StatusCode::from_u16(status).unwrap();
    with(answer, "content-type", "text/plain")
}

fn with(mut answer: Answer, name: &'static str, value: &'static str) -> Answer {
    answer
        .headers_mut()
        .insert(name, HeaderValue::from_static(value));
    answer
}

fn with_trailers(answer: Answer) -> Answer {
    let trailers = HeaderMap::from_iter([(
        HeaderName::from_static("x-checksum"),
        HeaderValue::from_static("17"),
    )]);
    let frames = [
        Frame::data("{\"charge\":".into()),
        Frame::data("1}\n".into()),
        Frame::trailers(trailers),
    ];
    with(answer, "trailer", "x-checksum").map(|_| in_parts(frames.map(Ok)))
}

fn in_parts<const N: usize>(frames: [io::Result<Frame<Bytes>>; N]) -> BoxBody<Bytes, io::Error> {
    Parts(VecDeque::from(frames)).boxed()
}

fn whole(body: impl Into<Bytes>) -> BoxBody<Bytes, io::Error> {
    Full::new(body.into())
        .map_err(|never: Infallible| match never {})
        .boxed()
}

/// A body in parts, whose length is not known before.
struct Parts(VecDeque<io::Result<Frame<Bytes>>>);

impl http_body::Body for Parts {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Poll::Ready(self.0.pop_front())
    }
}

/// A place where the service reports a request's arrival and waits for permission to go on.
#[derive(Clone)]
pub(crate) struct Gate {
    arrived: Arc<watch::Sender<usize>>,
    open: Arc<Semaphore>,
}

impl Gate {
    fn new() -> Self {
        Gate {
            arrived: Arc::new(watch::Sender::new(0)),
            open: Arc::new(Semaphore::new(0)),
        }
    }

    async fn pass(&self) {
        self.arrived.send_modify(|count| *count += 1);
        self.open.acquire().await.unwrap().forget();
    }

    pub(crate) async fn wait_for(&self, count: usize) {
        self.arrived
            .subscribe()
            .wait_for(|arrived| *arrived >= count)
            .await
            .unwrap();
    }

    pub(crate) fn open(&self, count: usize) {
        self.open.add_permits(count);
    }
}
