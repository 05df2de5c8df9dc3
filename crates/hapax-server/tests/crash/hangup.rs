//! HTTP/1.1 clients that disconnect after every possible byte, close only their sending side, or
//! read a byte at a time.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::bench::Bench;
use super::harness::charges::{self, BODY, Charge, Version};
use super::harness::{Answer, RawAnswer, in_time, sockets};

/// How a client disconnects.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// With FIN, after an orderly close.
    Closed,
    /// With RST, as a process that is killed with unread data, or a phone that leaves the network.
    Reset,
}

const WAYS: [Way; 2] = [Way::Closed, Way::Reset];

impl Way {
    fn leave(self, socket: TcpStream) {
        if matches!(self, Way::Reset) {
            socket.set_zero_linger().unwrap();
        }
        drop(socket);
    }

    fn key(self, text: &str) -> String {
        format!("{text}-{self:?}").to_lowercase()
    }
}

fn whole(charge: &Charge) -> Vec<u8> {
    [&charge.head_bytes("")[..], BODY.as_bytes()].concat()
}

async fn send_raw(bench: &Bench, bytes: &[u8]) -> TcpStream {
    let mut socket = charges::connect(bench.address).await.unwrap();
    socket.write_all(bytes).await.unwrap();
    socket
}

#[tokio::test]
async fn a_client_that_hangs_up_after_any_byte_of_its_request_costs_no_effect() {
    let bench = Bench::start().await;
    let (mut keys, mut run_on_retry, mut replayed) = (Vec::new(), 0, 0);
    let bytes_max = whole(&Charge::new("hung-up-at-000-closed")).len();
    for way in WAYS {
        for len in 1..=bytes_max {
            let charge = Charge::new(way.key(&format!("hung-up-at-{len:03}")));
            let bytes = whole(&charge);
            let len = len.min(bytes.len());
            way.leave(send_raw(&bench, &bytes[..len]).await);
            let retried = bench.retry(Version::Http1, &charge).await;
            assert!(
                !retried.is_replay() || len == bytes.len(),
                "{}: part of a request was dispatched",
                charge.key
            );
            run_on_retry += usize::from(!retried.is_replay());
            replayed += usize::from(retried.is_replay());
            keys.push(charge.key);
        }
    }
    hapax_testkit::report!(
        "hung up during the request: {} times, retried: {run_on_retry} run, {replayed} replayed",
        keys.len()
    );
    bench.judge(&keys);
    bench.stop().await;
}

#[tokio::test]
async fn a_client_that_hangs_up_before_its_answer_gets_it_by_a_retry() {
    let bench = Bench::start().await;
    let mut keys = Vec::new();
    for way in WAYS {
        for index in 0..20 {
            let round = way.key(&format!("waiting-{index}"));
            let gate = bench.upstream.gate(&round);
            let charge = Charge::new(round.clone()).held_at(&round);
            let socket = send_raw(&bench, &whole(&charge)).await;
            gate.wait_held(1).await;
            let (own, other) = (socket.local_addr().unwrap(), socket.peer_addr().unwrap());
            way.leave(socket);
            sockets::wait_gone(own, other).await;
            gate.open(1);
            assert!(
                bench.retry(Version::Http1, &charge).await.is_replay(),
                "{}: the attempt ended with its client",
                charge.key
            );
            keys.push(charge.key);
        }
    }
    hapax_testkit::report!(
        "hung up while the upstream worked: {} times, all replayed",
        keys.len()
    );
    bench.judge(&keys);
    bench.stop().await;
}

#[tokio::test]
async fn a_client_that_hangs_up_after_any_byte_of_its_answer_gets_all_of_it_by_a_retry() {
    let bench = Bench::start().await;
    let mut keys = Vec::new();
    for way in WAYS {
        for len in 1.. {
            let charge = Charge::new(way.key(&format!("answered-{len:03}")));
            let mut socket = send_raw(&bench, &whole(&charge)).await;
            let mut read = vec![0; len];
            in_time(&charge.key, socket.read_exact(&mut read))
                .await
                .unwrap();
            way.leave(socket);
            assert!(
                bench.retry(Version::Http1, &charge).await.is_replay(),
                "{}: answered before it was durable",
                charge.key
            );
            keys.push(charge.key.clone());
            if parsed(&read).is_some() {
                break;
            }
        }
    }
    hapax_testkit::report!(
        "hung up during the answer: {} times, all replayed",
        keys.len()
    );
    bench.judge(&keys);
    bench.stop().await;
}

/// The answer in these bytes, if it is complete.
fn parsed(bytes: &[u8]) -> Option<RawAnswer> {
    let answer = RawAnswer::parse(bytes);
    (answer.status == 201 && answer.is_whole).then_some(answer)
}

/// Checks that `again` is the replay of an answer that was parsed from raw bytes.
fn assert_replays(again: &Answer, first: &RawAnswer) {
    assert_eq!(first.told(), "201", "{first:?}");
    assert!(again.is_replay(), "{again:?}");
    assert_eq!((again.status, &again.body[..]), (201, &first.body[..]));
}

#[tokio::test]
async fn a_client_that_closes_only_its_own_side_gets_its_answer() {
    let bench = Bench::start().await;
    let mut keys = Vec::new();
    for index in 0..20 {
        // Half of them are answered only after the gateway could notice the close.
        let is_held = index % 2 == 1;
        let round = format!("half-closed-{index}");
        let gate = bench.upstream.gate(&round);
        let mut charge = Charge::new(round.clone());
        if is_held {
            charge = charge.held_at(&round);
        }
        let mut socket = send_raw(&bench, &whole(&charge)).await;
        socket.shutdown().await.unwrap();
        if is_held {
            gate.wait_held(1).await;
            sockets::wait_gone(socket.local_addr().unwrap(), socket.peer_addr().unwrap()).await;
            gate.open(1);
        }
        let mut bytes = Vec::new();
        in_time(&charge.key, socket.read_to_end(&mut bytes))
            .await
            .unwrap();
        let first = parsed(&bytes).expect("a whole answer");
        assert_replays(&bench.retry(Version::Http1, &charge).await, &first);
        keys.push(charge.key);
    }
    hapax_testkit::report!(
        "closed only their own side: {} times, all answered, all replayed",
        keys.len()
    );
    bench.judge(&keys);
    bench.stop().await;
}

#[tokio::test]
async fn a_client_that_closes_its_own_side_within_its_request_has_asked_for_nothing() {
    let bench = Bench::start().await;
    let mut keys = Vec::new();
    let key = |len: usize, index: usize| format!("half-closed-at-{len:03}-{index:03}");
    let head_bytes = Charge::new(key(0, 0)).head_bytes("").len();
    for len in
        (1..head_bytes + BODY.len())
            .step_by(7)
            .chain([head_bytes - 1, head_bytes, head_bytes + 1])
    {
        let charge = Charge::new(key(len, keys.len()));
        let mut socket = send_raw(&bench, &whole(&charge)[..len]).await;
        socket.shutdown().await.unwrap();
        let mut refusal = Vec::new();
        // A reset is as acceptable as a refusal.
        let _ = in_time(&charge.key, socket.read_to_end(&mut refusal)).await;
        assert!(
            refusal.is_empty() || refusal.starts_with(b"HTTP/1.1 4"),
            "{}",
            String::from_utf8_lossy(&refusal)
        );
        assert!(
            !bench.retry(Version::Http1, &charge).await.is_replay(),
            "{}: part of a request was dispatched",
            charge.key
        );
        keys.push(charge.key);
    }
    hapax_testkit::report!(
        "closed their own side within the request: {} times, none dispatched, all run on retry",
        keys.len()
    );
    bench.judge(&keys);
    bench.stop().await;
}

#[tokio::test]
async fn a_client_that_reads_a_byte_at_a_time_gets_its_answer() {
    let bench = Bench::start().await;
    let mut keys = Vec::new();
    for index in 0..10 {
        let mut charge = Charge::new(format!("slow-{index}"));
        charge.answer_bytes = 2_000;
        let mut socket = send_raw(&bench, &whole(&charge)).await;
        let mut bytes = Vec::new();
        let first = loop {
            bytes.push(in_time(&charge.key, socket.read_u8()).await.unwrap());
            if let Some(first) = parsed(&bytes) {
                break first;
            }
        };
        assert_replays(&bench.retry(Version::Http1, &charge).await, &first);
        keys.push(charge.key);
    }
    hapax_testkit::report!("read a byte at a time: {} times, all replayed", keys.len());
    bench.judge(&keys);
    bench.stop().await;
}
