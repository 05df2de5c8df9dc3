//! SIGKILL from outside, with many attempts in flight, at every named point.

use std::fmt;

use hapax_server::config::Protocol;
use hapax_testkit::crash;

use super::gateway;
use super::round::{Point, Round};
use super::upstream::Upstream;

/// Kills in all; `HAPAX_KILLS` asks for more.
const KILLS: usize = 1_000;

const TEST: &str = "kill::no_key_is_dispatched_twice_whenever_the_gateway_is_killed";

#[test]
fn no_key_is_dispatched_twice_whenever_the_gateway_is_killed() {
    if crash::role().is_some() {
        return gateway::serve();
    }
    let kills = std::env::var("HAPAX_KILLS")
        .map_or(KILLS, |kills| kills.parse().unwrap())
        .div_ceil(Point::ALL.len());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let mut sum = Verdict::default();
    println!("{:>20} {}", "killed at", Verdict::HEAD);
    for point in Point::ALL {
        let verdict = runtime.block_on(kill_at(point, kills));
        println!("{:>20} {verdict}", point.name());
        assert_eq!(
            verdict.kills,
            kills,
            "kills that landed at {:?}",
            point.name()
        );
        sum.add(&verdict);
    }
    println!("{:>20} {sum}", "in all");
    assert!(
        sum.unknown > 0 && sum.replayed > 0 && sum.run_on_retry > 0,
        "a run without all of these shows nothing"
    );
}

/// What the ledger and the retries say.
#[derive(Default)]
pub struct Verdict {
    pub kills: usize,
    pub keys: usize,
    pub acknowledged: usize,
    pub replayed: usize,
    pub unknown: usize,
    pub run_on_retry: usize,
}

impl Verdict {
    const HEAD: &str = "  kills    keys  acknowledged  replayed  unknown  run on retry";

    fn add(&mut self, other: &Verdict) {
        self.kills += other.kills;
        self.keys += other.keys;
        self.acknowledged += other.acknowledged;
        self.replayed += other.replayed;
        self.unknown += other.unknown;
        self.run_on_retry += other.run_on_retry;
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict {
            kills,
            keys,
            acknowledged,
            replayed,
            unknown,
            run_on_retry,
        } = self;
        write!(
            f,
            "{kills:>7} {keys:>7} {acknowledged:>13} {replayed:>9} {unknown:>8} {run_on_retry:>13}"
        )
    }
}

async fn kill_at(point: Point, kills: usize) -> Verdict {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::start(directory.path());
    let mut verdict = Verdict::default();
    let mut open = Round::default();
    for number in 0..=kills {
        let (mut child, address) =
            gateway::start(TEST, directory.path(), &upstream, protocol(point, number));
        open.retry_all(address, &mut verdict).await;
        open.judge(&upstream);
        if number == kills {
            break;
        }
        open = Round::send_and_kill(point, number, &mut child, address, &upstream).await;
        verdict.kills += 1;
    }
    verdict
}

/// Both, two rounds each, so that they meet both versions of the client's.
fn protocol(point: Point, number: usize) -> Protocol {
    // Over HTTP/2 nobody can tell when half an answer has left the upstream.
    if point == Point::AnswerHalfSent || number % 4 < 2 {
        Protocol::Http1
    } else {
        Protocol::Http2
    }
}
