//! SIGKILL from outside, with many attempts in flight, at every named point.

use std::fmt;

use hapax::Policy;
use hapax_server::config::Protocol;
use hapax_testkit::crash;

use super::harness::charges::Upstream;
use super::harness::node::{self, NodeSettings};
use super::round::{Point, Round};

/// The total number of kills; `HAPAX_KILLS` overrides this.
const KILLS: usize = 1_000;

/// The protocols of the upstream.
const PROTOCOLS: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

const TEST: &str = "kill::no_key_is_dispatched_twice_whenever_the_gateway_is_killed";

#[test]
fn no_key_is_dispatched_twice_whenever_the_gateway_is_killed() {
    if crash::role().is_some() {
        return node::serve();
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
    hapax_testkit::report!("{:>20} {}", "killed at", Verdict::HEAD);
    for point in Point::ALL {
        let verdict = runtime.block_on(kill_at(point, kills));
        hapax_testkit::report!("{:>20} {verdict}", point.name());
        assert_eq!(
            verdict.kills,
            kills,
            "kills that landed at {:?}",
            point.name()
        );
        sum.add(&verdict);
    }
    hapax_testkit::report!("{:>20} {sum}", "in all");
    assert!(
        sum.unknown > 0 && sum.replayed > 0 && sum.run_on_retry > 0,
        "a run without all of these shows nothing"
    );
}

/// Totals from the ledger and the retries.
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
    let upstream = Upstream::start(&PROTOCOLS);
    let mut verdict = Verdict::default();
    let mut open = Round::default();
    for number in 0..=kills {
        let spoken = protocol(point, number);
        let birth = NodeSettings {
            test: TEST,
            store: format!("sqlite:{}", directory.path().join("hapax.db").display()),
            upstream: upstream.address(spoken),
            protocol: PROTOCOLS[spoken],
            listen: ([127, 0, 0, 1], 0).into(),
            lease: Policy::default().lease,
        };
        let (mut child, address) = birth.complete();
        open.retry_all(address, &mut verdict).await;
        open.judge(&upstream);
        if number == kills {
            break;
        }
        open = Round::send_and_kill(point, number, &mut child, address, (&upstream, spoken)).await;
        verdict.kills += 1;
    }
    verdict
}

/// Which of the [`PROTOCOLS`] the gateway uses with the upstream. Two rounds each, so that both
/// meet both protocols of the client.
fn protocol(point: Point, number: usize) -> usize {
    // Over HTTP/2 the test cannot tell when half an answer has left the upstream.
    usize::from(point != Point::AnswerHalfSent && number % 4 >= 2)
}
