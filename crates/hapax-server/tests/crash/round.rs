//! One kill: the requests before it, the way to the point where it lands, and the retries after it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use bytes::Bytes;
use hapax_testkit::crash::Child;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::harness::charges::{
    self, BODY, Charge, Charged, Halt, Hold, Upstream, Version, connect, send,
};
use super::harness::{Answer, in_time, node, sockets};
use super::kill::Verdict;

/// The number of attempts that must be in flight for a kill to count.
const IN_FLIGHT_MIN: usize = 16;
/// The initial HTTP/2 flow-control window (RFC 9113 section 6.9.2).
pub const WINDOW_BYTES: usize = 65_535;

/// Requests that the upstream holds while others proceed to the point.
const CROWD: usize = 18;
/// Requests that proceed: the first of them to reach the point stops there.
const RUNNERS: usize = 4;
/// More than fits into a client's window.
const LONG_ANSWER_BYTES: usize = 3 * WINDOW_BYTES;

/// The named points of an attempt behind a gateway, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    BodyHalfRead,
    BeforeClaim,
    AfterClaim,
    BeforeDispatch,
    UpstreamHasRead,
    UpstreamHasActed,
    AnswerHalfSent,
    BeforeCompletion,
    AfterCompletion,
    BeforeAnswer,
    AnswerHalfWritten,
    AfterAnswer,
}

impl Point {
    pub const ALL: [Point; 12] = [
        Point::BodyHalfRead,
        Point::BeforeClaim,
        Point::AfterClaim,
        Point::BeforeDispatch,
        Point::UpstreamHasRead,
        Point::UpstreamHasActed,
        Point::AnswerHalfSent,
        Point::BeforeCompletion,
        Point::AfterCompletion,
        Point::BeforeAnswer,
        Point::AnswerHalfWritten,
        Point::AfterAnswer,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Point::BodyHalfRead => "body half read",
            Point::BeforeClaim => "before claim",
            Point::AfterClaim => "after claim",
            Point::BeforeDispatch => "before dispatch",
            Point::UpstreamHasRead => "upstream has read",
            Point::UpstreamHasActed => "upstream has acted",
            Point::AnswerHalfSent => "answer half sent",
            Point::BeforeCompletion => "before completion",
            Point::AfterCompletion => "after completion",
            Point::BeforeAnswer => "before answer",
            Point::AnswerHalfWritten => "answer half written",
            Point::AfterAnswer => "after answer",
        }
    }

    /// Where the upstream holds the other requests meanwhile: half before and half after their
    /// effect, unless the point requires otherwise.
    fn crowd_hold(self, index: usize) -> Hold {
        match self {
            Point::UpstreamHasRead => Hold::BeforeEffect,
            Point::UpstreamHasActed => Hold::AfterEffect,
            _ if index.is_multiple_of(2) => Hold::BeforeEffect,
            _ => Hold::AfterEffect,
        }
    }
}

/// The keys sent before one kill, and the answers that their callers received.
#[derive(Default)]
pub struct Round {
    charges: Vec<Charge>,
    acknowledged: BTreeMap<String, Answer>,
    definite: BTreeSet<String>,
    version: Option<Version>,
}

impl Round {
    pub async fn send_and_kill(
        point: Point,
        number: usize,
        child: &mut Child,
        address: SocketAddr,
        (upstream, spoken): (&Upstream, usize),
    ) -> Round {
        let name = format!("{number}");
        let version = if number.is_multiple_of(2) {
            Version::Http1
        } else {
            Version::Http2
        };
        let mut senders = Senders {
            round: name.clone(),
            version,
            address,
            charges: Vec::new(),
            tasks: JoinSet::new(),
        };
        let gate = upstream.gate(&name);
        let steady = tokio::spawn(send_steadily(name, version, address));
        for index in 0..CROWD {
            senders.send(Some(point.crowd_hold(index)), 0);
        }
        gate.wait_held(CROWD).await;
        let mut acknowledged = BTreeMap::new();
        senders
            .go_on_to(point, child, (upstream, spoken), &mut acknowledged)
            .await;
        assert!(
            gate.held() >= IN_FLIGHT_MIN,
            "{} attempts in flight",
            gate.held()
        );
        child.kill();

        while let Some(sent) = senders.tasks.join_next().await {
            let (key, answer) = sent.unwrap();
            acknowledged.extend(answer.map(|answer| (key, answer)));
        }
        let (more_charges, more_acknowledged) = steady.await.unwrap();
        let mut charges = senders.charges;
        charges.extend(more_charges);
        acknowledged.extend(more_acknowledged);
        Round {
            charges,
            acknowledged,
            definite: BTreeSet::new(),
            version: Some(version),
        }
    }

    /// Retries every key to a definite answer.
    pub async fn retry_all(&mut self, address: SocketAddr, verdict: &mut Verdict) {
        let Some(version) = self.version else { return };
        let mut retries = JoinSet::new();
        for charge in self.charges.iter().map(Charge::again) {
            retries.spawn(async move { (send(address, version, &charge).await, charge.key) });
        }
        while let Some(retry) = retries.join_next().await {
            let (answer, key) = retry.unwrap();
            self.note(key, &answer.expect("nobody kills this one"), verdict);
        }
    }

    fn note(&mut self, key: String, answer: &Answer, verdict: &mut Verdict) {
        verdict.keys += 1;
        if let Some(first) = self.acknowledged.get(&key) {
            answer.assert_replays(first);
            verdict.acknowledged += 1;
        }
        assert!(
            answer.is_charged() || answer.is_unknown(),
            "{key} got {answer:?}"
        );
        match answer {
            _ if answer.is_unknown() => verdict.unknown += 1,
            _ if answer.is_replay() => verdict.replayed += 1,
            _ => verdict.run_on_retry += 1,
        }
        if answer.is_charged() {
            self.definite.insert(key);
        }
    }

    /// Checks the ledger: at most one dispatch for each key, exactly one effect for each that was
    /// answered with success.
    pub fn judge(&self, upstream: &Upstream) {
        let ledger = upstream.ledger();
        ledger.assert_none_twice();
        for key in &self.definite {
            assert_eq!(ledger.effects_of(key), 1, "{key} was answered with success");
        }
    }
}

/// A client that sends one request after the other until the gateway is gone. Some of its answers
/// arrive just before the kill.
async fn send_steadily(
    round: String,
    version: Version,
    address: SocketAddr,
) -> (Vec<Charge>, BTreeMap<String, Answer>) {
    let (mut charges, mut acknowledged) = (Vec::new(), BTreeMap::new());
    loop {
        let charge = Charge::new(format!("{round}-steady-{}", charges.len()));
        charges.push(charge.clone());
        match send(address, version, &charge).await {
            Some(answer) => acknowledged.insert(charge.key, answer),
            None => return (charges, acknowledged),
        };
    }
}

/// The clients of one round.
struct Senders {
    round: String,
    version: Version,
    address: SocketAddr,
    charges: Vec<Charge>,
    tasks: JoinSet<(String, Option<Answer>)>,
}

impl Senders {
    fn charge(&mut self, hold: Option<Hold>, answer_bytes: usize) -> Charge {
        let mut charge = Charge::new(format!("{}-{}", self.round, self.charges.len()));
        charge.answer_bytes = answer_bytes;
        if let Some(hold) = hold {
            charge = charge.held(hold, &self.round);
        }
        self.charges.push(charge.clone());
        charge
    }

    fn send(&mut self, hold: Option<Hold>, answer_bytes: usize) {
        let (charge, address, version) =
            (self.charge(hold, answer_bytes), self.address, self.version);
        self.tasks
            .spawn(async move { (charge.key.clone(), send(address, version, &charge).await) });
    }

    /// Sends the requests that bring an attempt to the point. Returns when one has stopped there.
    async fn go_on_to(
        &mut self,
        point: Point,
        child: &mut Child,
        (upstream, spoken): (&Upstream, usize),
        acknowledged: &mut BTreeMap<String, Answer>,
    ) {
        let address = self.address;
        match point {
            Point::UpstreamHasRead | Point::UpstreamHasActed => {}
            Point::BodyHalfRead => {
                let charge = self.charge(None, 0);
                self.send_specially(charge, |charge, landed| {
                    charges::send_half_a_body(address, charge, landed)
                })
                .await;
            }
            Point::AnswerHalfWritten => {
                let charge = self.charge(None, LONG_ANSWER_BYTES);
                self.send_specially(charge, |charge, landed| {
                    read_half_an_answer(address, charge, landed)
                })
                .await;
            }
            Point::AnswerHalfSent => {
                let landed = upstream.halt(spoken, Halt::HalfSent);
                self.send(None, 0);
                let (own, reader) = in_time("half an answer leaves", landed).await.unwrap();
                sockets::wait_read(own, reader).await;
            }
            Point::AfterAnswer => {
                let charge = self.charge(None, 0);
                let answer = send(address, self.version, &charge)
                    .await
                    .expect("nobody has killed it yet");
                acknowledged.insert(charge.key, answer);
            }
            Point::BeforeClaim
            | Point::AfterClaim
            | Point::BeforeDispatch
            | Point::BeforeCompletion
            | Point::AfterCompletion
            | Point::BeforeAnswer => {
                node::arm(child, point.name(), IN_FLIGHT_MIN);
                (0..RUNNERS).for_each(|_| self.send(None, 0));
                let in_flight: usize = child
                    .wait_for(&format!("at {} with ", point.name()))
                    .parse()
                    .unwrap();
                assert!(in_flight >= IN_FLIGHT_MIN, "{in_flight} attempts in flight");
            }
        }
    }

    /// Sends a request in the given way. Returns when it reports that it has landed.
    async fn send_specially<F>(
        &mut self,
        charge: Charge,
        way: impl FnOnce(Charge, oneshot::Sender<()>) -> F,
    ) where
        F: Future<Output = Option<Answer>> + Send + 'static,
    {
        let (landed, has_landed) = oneshot::channel();
        let (key, sent) = (charge.key.clone(), way(charge, landed));
        self.tasks.spawn(async move { (key, sent.await) });
        has_landed.await.expect("it gets as far as it should");
    }
}

/// Reads as much of a long answer as fits into the window, and reports that. Never extends the
/// window.
async fn read_half_an_answer(
    address: SocketAddr,
    charge: Charge,
    landed: oneshot::Sender<()>,
) -> Option<Answer> {
    assert!(charge.answer_bytes > WINDOW_BYTES);
    let (sender, connection) = h2::client::handshake(connect(address).await?).await.ok()?;
    tokio::spawn(connection);
    let (response, mut stream) = sender
        .ready()
        .await
        .ok()?
        .send_request(charge.request_http2(()), false)
        .ok()?;
    stream.send_data(Bytes::from(BODY), true).ok()?;
    let mut body = response.await.ok()?.into_body();
    let mut read = 0;
    while read < WINDOW_BYTES {
        read += body.data().await?.ok()?.len();
    }
    landed.send(()).ok()?;
    if let Some(Ok(more)) = body.data().await {
        panic!("{} bytes came that there was no room for", more.len());
    }
    None
}
