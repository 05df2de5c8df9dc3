//! Charges under keys, and a service that makes them: it records every request, then its effect,
//! then answers as the request says.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use hapax_server::config::Protocol;
use http::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use super::{
    Answer, Arrived, Client, Ends, Gate, Part, Reply, Serving, body, in_parts, sockets, whole,
};

pub const BODY: &str = "a hundred for the hat, from the card that was shown at the counter";
const PATH: &str = "/v1/charges";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Http1,
    Http2,
}

/// How far a request that is held at a gate proceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Only read.
    BeforeEffect,
    /// The effect is done, and the request is never answered.
    AfterEffect,
    /// The effect is done, and the request is answered when the gate opens.
    UntilLet,
}

impl Hold {
    const ALL: [Hold; 3] = [Hold::BeforeEffect, Hold::AfterEffect, Hold::UntilLet];
}

/// A request for one effect, and instructions for the service.
#[derive(Clone, Debug)]
pub struct Charge {
    pub key: String,
    pub answer_bytes: usize,
    hold: Option<(Hold, String)>,
    /// How many seconds it waits for a running attempt.
    wait: u32,
}

impl Charge {
    pub fn new(key: impl Into<String>) -> Charge {
        Charge {
            key: key.into(),
            answer_bytes: 0,
            hold: None,
            wait: 0,
        }
    }

    /// Holds the request at the gate with this name. A gate that was never created holds for ever.
    pub fn held(self, hold: Hold, gate: &str) -> Charge {
        Charge {
            hold: Some((hold, gate.to_owned())),
            ..self
        }
    }

    /// Holds the answer at the gate with this name.
    pub fn held_at(self, gate: &str) -> Charge {
        self.held(Hold::UntilLet, gate)
    }

    pub fn waiting(self, seconds: u32) -> Charge {
        Charge {
            wait: seconds,
            ..self
        }
    }

    /// A repeat, which waits for a running attempt.
    pub fn again(&self) -> Charge {
        Charge {
            hold: None,
            ..self.clone().waiting(30)
        }
    }

    fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields = vec![
            ("idempotency-key", self.key.clone()),
            ("x-bytes", self.answer_bytes.to_string()),
        ];
        if let Some((hold, gate)) = &self.hold {
            fields.extend([("x-hold", format!("{hold:?}")), ("x-gate", gate.clone())]);
        }
        if self.wait > 0 {
            fields.push(("prefer", format!("wait={}", self.wait)));
        }
        fields
    }

    /// The bytes of an HTTP/1.1 request up to the end of its head.
    pub fn head_bytes(&self, more: &str) -> Vec<u8> {
        let fields: String = self
            .fields()
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        format!(
            "POST {PATH} HTTP/1.1\r\nhost: localhost\r\n{fields}{more}content-length: {}\r\n\r\n",
            BODY.len()
        )
        .into_bytes()
    }

    pub fn request<B>(&self, body: B) -> Request<B> {
        let mut request = Request::post(PATH);
        for (name, value) in self.fields() {
            request = request.header(name, value);
        }
        request.body(body).unwrap()
    }

    /// The request for tests that speak HTTP/2 themselves.
    pub fn request_http2<B>(&self, body: B) -> Request<B> {
        let mut request = self.request(body);
        *request.uri_mut() = format!("http://localhost{PATH}").parse().unwrap();
        request
    }
}

/// Classifies the answer to a charge.
pub trait Charged {
    fn is_charged(&self) -> bool;
    fn is_unknown(&self) -> bool;
}

impl Charged for Answer {
    fn is_charged(&self) -> bool {
        self.status == 201
    }

    fn is_unknown(&self) -> bool {
        self.is_problem("outcome-unknown")
    }
}

/// Sends a charge; `None` if no complete answer came back.
pub async fn send(address: SocketAddr, version: Version, charge: &Charge) -> Option<Answer> {
    let client = Client::new(address).http2(version == Version::Http2);
    let sent = client
        .resetting()
        .try_send(charge.request(body(BODY)))
        .await;
    sent.ok()
}

/// Sends a charge to a service that must answer.
#[track_caller]
pub fn answer(address: SocketAddr, charge: &Charge) -> impl Future<Output = Answer> + Send + use<> {
    let client = Client::new(address).resetting();
    client.send(charge.request(body(BODY)))
}

pub async fn connect(address: SocketAddr) -> Option<TcpStream> {
    let socket = TcpStream::connect(address).await.ok()?;
    socket.set_nodelay(true).ok()?;
    Some(socket)
}

/// Sends half a body, signals when the gateway has read it, and never sends the rest.
pub async fn send_half_a_body(
    address: SocketAddr,
    charge: Charge,
    landed: oneshot::Sender<()>,
) -> Option<Answer> {
    let mut socket = connect(address).await?;
    let head = charge.head_bytes("expect: 100-continue\r\n");
    socket.write_all(&head).await.ok()?;
    // The gateway sends this interim answer only when it starts to read the body.
    let mut interim = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
    socket.read_exact(&mut interim).await.ok()?;
    assert!(
        interim.starts_with(b"HTTP/1.1 100"),
        "{}",
        String::from_utf8_lossy(&interim)
    );
    let half = &BODY.as_bytes()[..BODY.len() / 2];
    socket.write_all(half).await.ok()?;
    sockets::wait_read(socket.local_addr().ok()?, socket.peer_addr().ok()?).await;
    landed.send(()).ok()?;
    let mut rest = Vec::new();
    let _ = socket.read_to_end(&mut rest).await;
    assert!(
        rest.is_empty(),
        "half a request was answered: {}",
        String::from_utf8_lossy(&rest)
    );
    None
}

/// Where the next request of a gateway stops for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    /// Only read.
    BeforeEffect,
    /// The effect is done, and the request is never answered.
    AfterEffect,
    /// The effect is done, and half of the answer is sent.
    HalfSent,
}

/// What happened, as recorded by the service.
#[derive(Clone, Default)]
pub struct Ledger {
    /// The fence that each request carried, by key, in the order of arrival.
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

    /// Checks that no key was dispatched twice, so that none had two effects.
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

/// The service. Each gateway has its own address of the service, so that the service can tell the
/// gateways apart.
pub struct Upstream {
    services: Vec<super::Upstream>,
    inside: Arc<Inside>,
}

type Armed = (Halt, oneshot::Sender<Ends>);

#[derive(Default)]
struct Inside {
    ledger: Mutex<Ledger>,
    /// Makes each answer unique, so that a second effect could not pass for a replay.
    answers: AtomicUsize,
    /// Where each gateway's next request stops, and the channel that reports it.
    halts: Mutex<HashMap<usize, Armed>>,
    gates: Mutex<HashMap<String, Arc<Gate>>>,
}

impl Upstream {
    /// Starts the service with one address for each protocol.
    pub fn start(protocols: &[Protocol]) -> Upstream {
        let inside = Arc::new(Inside::default());
        let serve = |(gateway, protocol): (usize, &Protocol)| {
            let inside = inside.clone();
            let serving = Serving {
                http2: *protocol == Protocol::Http2,
                resets: true,
                ..Serving::default()
            };
            super::Upstream::start(serving, move |arrived| {
                charge(inside.clone(), gateway, arrived)
            })
        };
        let services = protocols.iter().enumerate().map(serve).collect();
        Upstream { services, inside }
    }

    /// The address for this gateway.
    pub fn address(&self, gateway: usize) -> SocketAddr {
        self.services[gateway].address
    }

    /// A copy of the ledger.
    pub fn ledger(&self) -> Ledger {
        self.inside.ledger.lock().unwrap().clone()
    }

    /// Makes the next request of this gateway stop. The receiver gets its connection's addresses
    /// once it has stopped.
    pub fn halt(&self, gateway: usize, halt: Halt) -> oneshot::Receiver<Ends> {
        let (landed, has_landed) = oneshot::channel();
        let mut halts = self.inside.halts.lock().unwrap();
        halts.insert(gateway, (halt, landed));
        has_landed
    }

    /// Creates a gate with this name.
    pub fn gate(&self, name: &str) -> Arc<Gate> {
        let gate = Arc::<Gate>::default();
        let mut gates = self.inside.gates.lock().unwrap();
        gates.insert(name.to_owned(), gate.clone());
        gate
    }
}

async fn charge(inside: Arc<Inside>, gateway: usize, arrived: Arrived) -> io::Result<Reply> {
    let key = arrived.field("idempotency-key").to_owned();
    let fence = arrived.field("hapax-fence").parse();
    let fence = fence.expect("a gateway sends the fence");
    let ledger = || inside.ledger.lock().unwrap();
    ledger()
        .dispatches
        .entry(key.clone())
        .or_default()
        .push(fence);
    let asked = arrived.read().await?;

    let halt = inside.halts.lock().unwrap().remove(&gateway);
    let hold = |hold: &Hold| format!("{hold:?}") == asked.field("x-hold");
    let hold = Hold::ALL.into_iter().find(hold);
    if let Some((Halt::BeforeEffect, landed)) = halt {
        return stand_still(landed, asked.ends).await;
    }
    if hold == Some(Hold::BeforeEffect) {
        inside.hold(asked.field("x-gate"), true).await;
    }
    *ledger().effects.entry(key.clone()).or_default() += 1;
    let number = inside.answers.fetch_add(1, Ordering::SeqCst);
    let mut text = format!("charged {key} as number {number}").into_bytes();
    let bytes_min = asked.field("x-bytes").parse().unwrap_or(0);
    text.resize(text.len().max(bytes_min), b' ');
    let text = Bytes::from(text);
    match halt {
        Some((Halt::HalfSent, landed)) => {
            let ends = asked.ends;
            let then = Box::new(move || {
                let _ = landed.send(ends);
            });
            return Ok(in_parts(201, [Part::Data(text), Part::StallsAfter(then)]));
        }
        Some((_, landed)) => return stand_still(landed, asked.ends).await,
        None => {}
    }
    if let Some(hold) = hold {
        let is_for_ever = hold == Hold::AfterEffect;
        inside.hold(asked.field("x-gate"), is_for_ever).await;
    }
    Ok(whole(201, text))
}

impl Inside {
    async fn hold(&self, gate: &str, is_for_ever: bool) {
        let gate = self.gates.lock().unwrap().get(gate).cloned();
        if let Some(gate) = &gate {
            gate.pass().await;
        }
        if is_for_ever || gate.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

async fn stand_still(landed: oneshot::Sender<Ends>, ends: Ends) -> io::Result<Reply> {
    // The test may have given up waiting.
    let _ = landed.send(ends);
    std::future::pending().await
}
