//! SIGKILL from outside, with many attempts in flight, at every named point.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;

use hapax_testkit::crash::{self, Child, Ledger};
use tokio::task::JoinSet;

use super::client::{Answer, send};
use super::service::{self, FIRST_WAVE, IN_FLIGHT_MIN, POINTS};

/// Kills at each point. `HAPAX_KILLS` sets the total instead.
const KILLS_PER_POINT: usize = 100;
/// Requests sent before each kill.
const REQUESTS: usize = 24;

const TEST: &str = "kill::no_key_has_two_effects_whenever_the_process_is_killed";

#[test]
fn no_key_has_two_effects_whenever_the_process_is_killed() {
    if crash::role().is_some() {
        return service::serve();
    }
    let kills = std::env::var("HAPAX_KILLS").map_or(KILLS_PER_POINT, |kills| {
        kills.parse::<usize>().unwrap().div_ceil(POINTS.len())
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let mut sum = Verdict::default();
    for point in POINTS {
        let verdict = runtime.block_on(kill_at(point, kills));
        hapax_testkit::report!("{point:>17}: {verdict}");
        assert_eq!(verdict.kills, kills, "kills that landed at {point:?}");
        sum.add(&verdict);
    }
    hapax_testkit::report!("{:>17}: {sum}", "in all");
    assert!(
        sum.unknown > 0 && sum.replayed > 0 && sum.run_on_retry > 0,
        "a run without all of these shows nothing"
    );
}

/// Totals over all rounds, from the ledger and the retries.
#[derive(Default)]
struct Verdict {
    kills: usize,
    keys: usize,
    acknowledged: usize,
    replayed: usize,
    unknown: usize,
    run_on_retry: usize,
}

impl Verdict {
    fn add(&mut self, other: &Verdict) {
        self.kills += other.kills;
        self.keys += other.keys;
        self.acknowledged += other.acknowledged;
        self.replayed += other.replayed;
        self.unknown += other.unknown;
        self.run_on_retry += other.run_on_retry;
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
            "{kills} kills, {keys} keys, {acknowledged} acknowledged; retried: {replayed} replayed, {unknown} held as unknown, {run_on_retry} run"
        )
    }
}

async fn kill_at(point: &str, kills: usize) -> Verdict {
    let directory = tempfile::tempdir().unwrap();
    let mut verdict = Verdict::default();
    let mut open = Round::default();
    for round in 0..=kills {
        let (mut child, [address, _]) = service::start(TEST, directory.path(), "hold");
        open.retry_all(address, &mut verdict).await;
        open.judge(directory.path());
        if round == kills {
            break;
        }
        open = Round::send_and_kill(point, round, &mut child, address).await;
        verdict.kills += 1;
    }
    verdict
}

/// A client that sends one request after the other until the service is gone. Some of its answers
/// arrive just before the kill.
async fn send_steadily(
    round: usize,
    address: SocketAddr,
) -> (Vec<String>, BTreeMap<String, Answer>) {
    let (mut keys, mut acknowledged) = (Vec::new(), BTreeMap::new());
    loop {
        let key = format!("{round}-steady-{}", keys.len());
        keys.push(key.clone());
        match send(address, "/charges", &key, false).await {
            Some(answer) => acknowledged.insert(key, answer),
            None => return (keys, acknowledged),
        };
    }
}

/// The keys sent before one kill, and the answers that their callers received.
#[derive(Default)]
struct Round {
    keys: Vec<String>,
    acknowledged: BTreeMap<String, Answer>,
    definite: BTreeSet<String>,
}

impl Round {
    async fn send_and_kill(
        point: &str,
        round: usize,
        child: &mut Child,
        address: SocketAddr,
    ) -> Round {
        let mut keys: Vec<_> = (0..REQUESTS).map(|i| format!("{round}-{i}")).collect();
        let mut requests = JoinSet::new();
        let mut send_keys = |keys: &[String]| {
            for key in keys.iter().cloned() {
                requests.spawn(async move { (send(address, "/charges", &key, true).await, key) });
            }
        };
        let steady = tokio::spawn(send_steadily(round, address));
        send_keys(&keys[..FIRST_WAVE]);
        child.wait_for("the first wave is in flight");
        // Lets one attempt continue from its effect to its end; the others stay in flight.
        service::order(child, "let 1");
        // The test does not wait here: the point may be reached before the order is acknowledged.
        child.say(&format!("arm {point}"));
        send_keys(&keys[FIRST_WAVE..]);
        let mut acknowledged = BTreeMap::new();
        if point == "after answer" {
            let (answer, key) = requests.join_next().await.unwrap().unwrap();
            acknowledged.insert(key, answer.expect("the one that went through was answered"));
        } else {
            let in_flight: usize = child
                .wait_for(&format!("at {point} with "))
                .parse()
                .unwrap();
            assert!(in_flight >= IN_FLIGHT_MIN, "{in_flight} attempts in flight");
        }
        child.kill();
        while let Some(request) = requests.join_next().await {
            let (answer, key) = request.unwrap();
            acknowledged.extend(answer.map(|answer| (key, answer)));
        }
        let (steady_keys, steadily_acknowledged) = steady.await.unwrap();
        keys.extend(steady_keys);
        acknowledged.extend(steadily_acknowledged);
        Round {
            keys,
            acknowledged,
            definite: BTreeSet::new(),
        }
    }

    /// Retries every key to a definite answer.
    async fn retry_all(&mut self, address: SocketAddr, verdict: &mut Verdict) {
        let mut retries = JoinSet::new();
        for key in self.keys.clone() {
            retries.spawn(async move { (send(address, "/charges", &key, false).await, key) });
        }
        while let Some(retry) = retries.join_next().await {
            let (answer, key) = retry.unwrap();
            let answer = answer.expect("nobody kills this one");
            verdict.keys += 1;
            match self.acknowledged.get(&key) {
                Some(first) => {
                    assert_eq!(
                        (first.status, &first.body, answer.is_replay),
                        (answer.status, &answer.body, true),
                        "{key} was acknowledged"
                    );
                    verdict.acknowledged += 1;
                }
                None => assert!(
                    answer.status == 201 || answer.is_unknown(),
                    "{key} got {answer:?}"
                ),
            }
            match answer {
                _ if answer.is_unknown() => verdict.unknown += 1,
                Answer {
                    is_replay: true, ..
                } => verdict.replayed += 1,
                _ => verdict.run_on_retry += 1,
            }
            if answer.status == 201 {
                self.definite.insert(key);
            }
        }
    }

    /// Checks the ledger: at most one effect for each key, exactly one for each that was answered
    /// with success.
    fn judge(&self, directory: &Path) {
        let effects = Ledger::open(directory.join("ledger")).counts();
        for (key, count) in &effects {
            assert!(*count <= 1, "{key} had {count} effects");
        }
        for key in &self.definite {
            assert_eq!(
                effects.get(key),
                Some(&1),
                "{key} was answered with success"
            );
        }
    }
}
