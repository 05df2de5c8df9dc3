//! The service behind all gateways: it writes down every request that reaches it, then its effect,
//! then answers as it is told.
//!
//! It lives in the parent, on a thread of its own, so that no kill and no blocked test reaches it.
//! Each gateway has an address of the service to itself, by which the service knows which one it
//! is.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot, watch};

use super::client::in_time;

/// A connection: this service's end of it, and the gateway's.
pub type Ends = (SocketAddr, SocketAddr);

/// Where the next request of a gateway stands still for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    /// Read, and nothing else.
    BeforeEffect,
    /// Done, never answered.
    AfterEffect,
    /// Done, and half of the answer sent.
    HalfSent,
}

/// What happened: by key, in the order of arrival.
#[derive(Clone, Default)]
pub struct Ledger {
    /// The fence that each request carried.
    pub dispatches: BTreeMap<String, Vec<u64>>,
    pub effects: BTreeMap<String, usize>,
}

impl Ledger {
    pub fn dispatches_of(&self, key: &str) -> usize {
        self.dispatches.get(key).map_or(0, Vec::len)
    }

    pub fn effects_of(&self, key: &str) -> usize {
        self.effects.get(key).copied().unwrap_or(0)
    }

    /// No key came twice, so none had two effects.
    pub fn assert_none_twice(&self) {
        for (key, fences) in &self.dispatches {
            assert_eq!(
                fences.len(),
                1,
                "{key} was dispatched more than once, with these fences: {fences:?}"
            );
        }
        for (key, count) in &self.effects {
            assert_eq!(*count, 1, "{key} had more than one effect");
        }
    }
}

pub struct Upstream {
    addresses: Vec<SocketAddr>,
    inside: Arc<Inside>,
    /// Taken apart in the background when dropped: a test may be inside a runtime of its own.
    runtime: Option<tokio::runtime::Runtime>,
}

type Armed = (Halt, oneshot::Sender<Ends>);

struct Inside {
    ledger: Mutex<Ledger>,
    /// Makes each answer one of a kind, so that a second effect could not pass for a replay.
    answers: AtomicUsize,
    /// Where each gateway's next request stands still, and who is to hear of it.
    halts: Vec<Mutex<Option<Armed>>>,
    gates: Mutex<HashMap<String, Arc<Gate>>>,
}

/// Where requests that name it in `x-hold` are held after their effect, and counted.
pub struct Gate {
    held: watch::Sender<usize>,
    through: Semaphore,
}

impl Upstream {
    /// Begins to serve so many gateways.
    pub fn start(gateways: usize) -> Upstream {
        let inside = Arc::new(Inside {
            ledger: Mutex::default(),
            answers: AtomicUsize::new(0),
            halts: (0..gateways).map(|_| Mutex::default()).collect(),
            gates: Mutex::default(),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listen = |gateway| {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let address = listener.local_addr().unwrap();
            runtime.spawn(accept(listener, gateway, inside.clone()));
            address
        };
        let addresses = (0..gateways).map(listen).collect();
        Upstream {
            addresses,
            inside,
            runtime: Some(runtime),
        }
    }

    /// Where it serves this gateway.
    pub fn address(&self, gateway: usize) -> SocketAddr {
        self.addresses[gateway]
    }

    /// What has happened so far.
    pub fn ledger(&self) -> Ledger {
        self.inside.ledger.lock().unwrap().clone()
    }

    /// Makes the next request of this gateway stand still. The result tells its connection, once it
    /// does.
    pub fn halt(&self, gateway: usize, halt: Halt) -> oneshot::Receiver<Ends> {
        let (landed, has_landed) = oneshot::channel();
        *self.inside.halts[gateway].lock().unwrap() = Some((halt, landed));
        has_landed
    }

    /// The gate of this name. What names a gate that nobody has asked for is held for ever.
    pub fn gate(&self, name: &str) -> Arc<Gate> {
        let gate = Arc::new(Gate {
            held: watch::Sender::new(0),
            through: Semaphore::new(0),
        });
        self.inside
            .gates
            .lock()
            .unwrap()
            .insert(name.to_owned(), gate.clone());
        gate
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

    async fn pass(self: Arc<Self>) {
        self.held.send_modify(|held| *held += 1);
        self.through.acquire().await.expect("never closed").forget();
    }
}

async fn accept(listener: std::net::TcpListener, gateway: usize, inside: Arc<Inside>) {
    let listener = TcpListener::from_std(listener).unwrap();
    let own = listener.local_addr().unwrap();
    while let Ok((socket, peer)) = listener.accept().await {
        socket.set_nodelay(true).unwrap();
        // The gateway always leaves first; by this its system need not remember the connection, of
        // which there will be thousands.
        socket.set_zero_linger().unwrap();
        tokio::spawn(serve(socket, (own, peer), gateway, inside.clone()));
    }
}

async fn serve(socket: TcpStream, ends: Ends, gateway: usize, inside: Arc<Inside>) {
    let service = service_fn(move |request| charge(inside.clone(), ends, gateway, request));
    // Its end is the gateway's end, which the test knows better.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(socket), service)
        .await;
}

type Answered = Result<Response<BoxBody<Bytes, hyper::Error>>, hyper::Error>;

async fn charge(
    inside: Arc<Inside>,
    ends: Ends,
    gateway: usize,
    request: Request<Incoming>,
) -> Answered {
    let (parts, body) = request.into_parts();
    let key = field(&parts, "idempotency-key").to_owned();
    let fence = field(&parts, "hapax-fence")
        .parse()
        .expect("a gateway sends the fence");
    inside
        .ledger
        .lock()
        .unwrap()
        .dispatches
        .entry(key.clone())
        .or_default()
        .push(fence);
    body.collect().await?;

    let halt = inside.halts[gateway].lock().unwrap().take();
    if let Some((Halt::BeforeEffect, landed)) = halt {
        return stand_still(landed, ends).await;
    }
    *inside
        .ledger
        .lock()
        .unwrap()
        .effects
        .entry(key.clone())
        .or_default() += 1;
    let text = Bytes::from(format!(
        "charged {key} as number {}",
        inside.answers.fetch_add(1, Ordering::SeqCst)
    ));
    match halt {
        Some((Halt::HalfSent, landed)) => {
            return Ok(created(
                Half {
                    first: Some(text),
                    asked: 0,
                    landed: Some(landed),
                    ends,
                }
                .boxed(),
            ));
        }
        Some((_, landed)) => return stand_still(landed, ends).await,
        None => {}
    }
    let name = field(&parts, "x-hold");
    if !name.is_empty() {
        let gate = inside.gates.lock().unwrap().get(name).cloned();
        match gate {
            Some(gate) => gate.pass().await,
            None => std::future::pending().await,
        }
    }
    Ok(created(
        Full::new(text).map_err(|never| match never {}).boxed(),
    ))
}

async fn stand_still(landed: oneshot::Sender<Ends>, ends: Ends) -> Answered {
    // Whoever armed it may have given up.
    let _ = landed.send(ends);
    std::future::pending().await
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
    landed: Option<oneshot::Sender<Ends>>,
    ends: Ends,
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
        } else if let Some(landed) = self.landed.take() {
            let _ = landed.send(self.ends);
        }
        Poll::Pending
    }
}
