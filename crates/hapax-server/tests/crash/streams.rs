//! HTTP/2 clients that reset their stream, or drop the whole connection, at every moment of a
//! request.

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::bench::Bench;
use super::harness::charges::{self, BODY, Charge, Version};
use super::harness::in_time;
use super::round::WINDOW_BYTES;

/// When a client goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    AfterHead,
    WithinBody,
    BeforeAnswer,
    WithinAnswer,
}

/// How a client goes away.
#[derive(Clone, Copy, Debug)]
enum Way {
    Reset,
    Dropped,
}

const TIMES: usize = 10;

#[tokio::test]
async fn a_client_that_goes_away_at_any_moment_of_a_stream_gets_its_answer_by_a_retry() {
    let bench = Bench::start().await;
    let mut keys = Vec::new();
    for moment in [
        Moment::AfterHead,
        Moment::WithinBody,
        Moment::BeforeAnswer,
        Moment::WithinAnswer,
    ] {
        for way in [Way::Reset, Way::Dropped] {
            let mut replayed = 0;
            for index in 0..TIMES {
                let key = format!("{moment:?}-{way:?}-{index}").to_lowercase();
                replayed += usize::from(go_away(&bench, moment, way, &key).await);
                keys.push(key);
            }
            hapax_testkit::report!(
                "{way:?} {moment:?}: {TIMES} times, {replayed} replayed, {} run on retry",
                TIMES - replayed
            );
            let was_asked = matches!(moment, Moment::BeforeAnswer | Moment::WithinAnswer);
            assert_eq!(
                replayed,
                if was_asked { TIMES } else { 0 },
                "{way:?} {moment:?}"
            );
        }
    }
    bench.judge(&keys);
    bench.stop().await;
}

/// Goes away and retries. Returns whether the retry got a replay.
async fn go_away(bench: &Bench, moment: Moment, way: Way, key: &str) -> bool {
    let gate = bench.upstream.gate(key);
    let mut charge = Charge::new(key);
    charge.answer_bytes = 3 * WINDOW_BYTES;
    if moment == Moment::BeforeAnswer {
        charge = charge.held_at(key);
    }
    let mut stream = Stream::open(bench, &charge).await;
    match moment {
        Moment::AfterHead => {}
        Moment::WithinBody => stream
            .sender
            .send_data(Bytes::from(&BODY[..BODY.len() / 2]), false)
            .unwrap(),
        Moment::BeforeAnswer => {
            stream.sender.send_data(Bytes::from(BODY), true).unwrap();
            gate.wait_held(1).await;
        }
        Moment::WithinAnswer => {
            stream.sender.send_data(Bytes::from(BODY), true).unwrap();
            stream.read_what_fits().await;
        }
    }
    stream.arrived().await;
    stream.leave(way).await;
    gate.open(1);
    bench.retry(Version::Http2, &charge).await.is_replay()
}

/// A running request on its own connection.
struct Stream {
    sender: SendStream<Bytes>,
    response: Option<h2::client::ResponseFuture>,
    answer: Option<RecvStream>,
    pings: h2::PingPong,
    connection: JoinHandle<()>,
}

impl Stream {
    async fn open(bench: &Bench, charge: &Charge) -> Stream {
        let socket: TcpStream = charges::connect(bench.address).await.unwrap();
        let (requests, mut connection) = h2::client::handshake(socket).await.unwrap();
        let pings = connection.ping_pong().unwrap();
        let connection = tokio::spawn(async move { drop(connection.await) });
        let (response, sender) = requests
            .ready()
            .await
            .unwrap()
            .send_request(charge.request_http2(()), false)
            .unwrap();
        Stream {
            sender,
            response: Some(response),
            answer: None,
            pings,
            connection,
        }
    }

    /// Reads until the flow-control window is used up, and never extends it.
    async fn read_what_fits(&mut self) {
        let mut answer = self.response.take().unwrap().await.unwrap().into_body();
        let mut read = 0;
        while read < WINDOW_BYTES {
            read += in_time("the answer goes on", answer.data())
                .await
                .unwrap()
                .unwrap()
                .len();
        }
        self.answer = Some(answer);
    }

    /// Waits until the gateway has read everything sent so far: it reads frames in order, and
    /// answers a ping after them.
    async fn arrived(&mut self) {
        in_time("a ping is answered", self.pings.ping(h2::Ping::opaque()))
            .await
            .unwrap();
    }

    async fn leave(mut self, way: Way) {
        match way {
            Way::Reset => {
                self.sender.send_reset(Reason::CANCEL);
                self.arrived().await;
            }
            Way::Dropped => self.connection.abort(),
        }
    }
}
