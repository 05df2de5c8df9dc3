//! The service behind the gateway: it writes down every request that reaches it, then its effect,
//! then answers as the request asks.
//!
//! It lives in the parent, on threads of its own, so that no kill and no blocked test reaches it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use hapax_server::config::Protocol;
use hapax_testkit::crash::Ledger;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use super::client::in_time;

/// How far a request that is held goes, as it says in `x-hold`.
pub mod hold {
    /// Read, and nothing else.
    pub const BEFORE_EFFECT: &str = "before";
    /// Done, never answered.
    pub const AFTER_EFFECT: &str = "after";
    /// Done, and half of the answer sent.
    pub const HALF_SENT: &str = "half";
    /// Done, and answered when the gate lets it through.
    pub const UNTIL_LET: &str = "until";
    /// Done and answered.
    pub const NOT: &str = "not";
}

/// A connection: this service's end of it, and the gateway's.
pub type Ends = (SocketAddr, SocketAddr);

pub struct Upstream {
    http1: SocketAddr,
    http2: SocketAddr,
    inside: Arc<Inside>,
    /// Taken apart in the background when dropped: a test may be inside a runtime of its own.
    runtime: Option<tokio::runtime::Runtime>,
}

struct Inside {
    dispatches: Ledger,
    effects: Ledger,
    /// Makes each answer one of a kind, so that a second effect could not pass for a replay.
    answers: AtomicUsize,
    gate: Mutex<Arc<Gate>>,
}

/// Where the requests of one round are held and counted: those that name it in `x-round`.
pub struct Gate {
    round: String,
    held: watch::Sender<usize>,
    through: Semaphore,
    half_sent: watch::Sender<Option<Ends>>,
}

impl Upstream {
    /// Begins to serve, over HTTP/1.1 and HTTP/2, with its ledgers in this directory.
    pub fn start(directory: &Path) -> Upstream {
        let inside = Arc::new(Inside {
            dispatches: Ledger::open(directory.join("dispatches")),
            effects: Ledger::open(directory.join("effects")),
            answers: AtomicUsize::new(0),
            gate: Mutex::new(Gate::new(String::new())),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listen = |protocol| {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let address = listener.local_addr().unwrap();
            runtime.spawn(accept(listener, protocol, inside.clone()));
            address
        };
        let (http1, http2) = (listen(Protocol::Http1), listen(Protocol::Http2));
        Upstream {
            http1,
            http2,
            inside,
            runtime: Some(runtime),
        }
    }

    pub fn address(&self, protocol: Protocol) -> SocketAddr {
        if protocol == Protocol::Http2 {
            self.http2
        } else {
            self.http1
        }
    }

    /// A new gate for the requests that name it. Those of earlier ones stay held.
    pub fn gate(&self, round: &str) -> Arc<Gate> {
        let gate = Gate::new(round.to_owned());
        *self.inside.gate.lock().unwrap() = gate.clone();
        gate
    }

    /// How often each key reached this service.
    pub fn dispatches(&self) -> BTreeMap<String, usize> {
        self.inside.dispatches.counts()
    }

    /// How often each key had its effect.
    pub fn effects(&self) -> BTreeMap<String, usize> {
        self.inside.effects.counts()
    }

    /// The ledger's word: no key came twice, so none had two effects.
    pub fn assert_none_twice(&self) {
        for (what, counts) in [
            ("dispatched", self.dispatches()),
            ("in effect", self.effects()),
        ] {
            for (key, count) in counts {
                assert!(count == 1, "{key} was {what} {count} times");
            }
        }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Gate {
    fn new(round: String) -> Arc<Gate> {
        Arc::new(Gate {
            round,
            held: watch::Sender::new(0),
            through: Semaphore::new(0),
            half_sent: watch::Sender::new(None),
        })
    }

    /// Requests that are here now, read and not answered.
    pub fn held(&self) -> usize {
        *self.held.borrow()
    }

    pub async fn wait_held(&self, count: usize) {
        let mut held = self.held.subscribe();
        in_time(
            "requests reach the upstream",
            held.wait_for(|held| *held >= count),
        )
        .await
        .unwrap();
    }

    pub fn let_through(&self, count: usize) {
        self.through.add_permits(count);
    }

    /// Half of an answer has been given to the system: returns the connection.
    pub async fn wait_half_sent(&self) -> Ends {
        let mut half_sent = self.half_sent.subscribe();
        in_time("half an answer leaves", half_sent.wait_for(Option::is_some))
            .await
            .unwrap()
            .unwrap()
    }

    fn enter(self: Arc<Self>) -> Held {
        self.held.send_modify(|held| *held += 1);
        Held(self)
    }
}

/// A request that is counted as held, until it is answered or its connection is gone.
struct Held(Arc<Gate>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.held.send_modify(|held| *held -= 1);
    }
}

async fn accept(listener: std::net::TcpListener, protocol: Protocol, inside: Arc<Inside>) {
    let listener = TcpListener::from_std(listener).unwrap();
    let own = listener.local_addr().unwrap();
    while let Ok((socket, peer)) = listener.accept().await {
        socket.set_nodelay(true).unwrap();
        // The gateway always leaves first; by this its system need not remember the connection, of
        // which there will be thousands.
        socket.set_zero_linger().unwrap();
        tokio::spawn(serve(socket, (own, peer), protocol, inside.clone()));
    }
}

async fn serve(socket: TcpStream, ends: Ends, protocol: Protocol, inside: Arc<Inside>) {
    let service = service_fn(move |request| charge(inside.clone(), ends, request));
    let io = TokioIo::new(socket);
    // Its end is the gateway's end, which the test knows better.
    let _ = match protocol {
        Protocol::Http2 => {
            http2::Builder::new(TokioExecutor::new())
                .serve_connection(io, service)
                .await
        }
        _ => http1::Builder::new().serve_connection(io, service).await,
    };
}

async fn charge(
    inside: Arc<Inside>,
    ends: Ends,
    request: Request<Incoming>,
) -> Result<Response<BoxBody<Bytes, hyper::Error>>, hyper::Error> {
    let (parts, body) = request.into_parts();
    let key = field(&parts, "idempotency-key").to_owned();
    inside.dispatches.append(&key);
    body.collect().await?;

    let (mode, round) = (field(&parts, "x-hold"), field(&parts, "x-round"));
    let gate = Some(inside.gate.lock().unwrap().clone()).filter(|gate| gate.round == round);
    let held = gate.clone().filter(|_| mode != hold::NOT).map(Gate::enter);
    if mode == hold::BEFORE_EFFECT {
        return std::future::pending().await;
    }
    inside.effects.append(&key);
    let text = answer(
        &key,
        inside.answers.fetch_add(1, Ordering::SeqCst),
        field(&parts, "x-bytes").parse().unwrap_or(0),
    );
    match (mode, gate) {
        // What is held for a gate that was replaced stays: its round is over.
        (hold::AFTER_EFFECT, _) | (hold::UNTIL_LET | hold::HALF_SENT, None) => {
            std::future::pending::<()>().await;
        }
        (hold::HALF_SENT, Some(gate)) => {
            return Ok(created(
                Half {
                    first: Some(text),
                    asked: 0,
                    ends,
                    gate,
                    _held: held,
                }
                .boxed(),
            ));
        }
        (hold::UNTIL_LET, Some(gate)) => {
            gate.through.acquire().await.expect("never closed").forget();
        }
        _ => {}
    }
    Ok(created(
        Full::new(text).map_err(|never| match never {}).boxed(),
    ))
}

fn answer(key: &str, number: usize, bytes_min: usize) -> Bytes {
    let mut text = format!("charged {key} as number {number}").into_bytes();
    text.resize(text.len().max(bytes_min), b' ');
    text.into()
}

fn field<'a>(parts: &'a Parts, name: &str) -> &'a str {
    parts
        .headers
        .get(name)
        .map_or("", |value| value.to_str().unwrap())
}

fn created(body: BoxBody<Bytes, hyper::Error>) -> Response<BoxBody<Bytes, hyper::Error>> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::CREATED;
    response
}

/// A body that stops in the middle.
struct Half {
    first: Option<Bytes>,
    asked: usize,
    ends: Ends,
    gate: Arc<Gate>,
    _held: Option<Held>,
}

impl Body for Half {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        // hyper writes out what it has whenever it has to wait: by the time it asks again the half
        // is on its way.
        self.asked += 1;
        if self.asked == 1 {
            cx.waker().wake_by_ref();
        } else {
            self.gate.half_sent.send_replace(Some(self.ends));
        }
        Poll::Pending
    }
}
