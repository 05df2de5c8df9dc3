//! The database is killed or stops answering under load, and comes back: meanwhile requests get 503
//! in time, and no node is restarted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hapax_server::config::Protocol;
use hapax_testkit::servers::{FaultProxy, Postgres};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::harness::charges::{Charge, Charged, Upstream, answer};
use super::harness::{self, Answer, Program, in_time};
use super::serve;

const NODES: usize = 3;
const OUTAGES: [Outage; 2] = [Outage::Killed, Outage::Silent];
/// Callers of each node.
const CALLERS: usize = 3;
/// Attempts of each node that are running when the outage begins.
const HELD: usize = 4;
/// A request calls the store for a claim and for a completion, and each may take the two seconds of
/// `store_timeout`. The rest allows for a busy machine.
const ANSWERED_WITHIN: Duration = Duration::from_secs(8);

/// The lease of a lost attempt, and as much again.
const SETTLED_WITHIN: Duration = Duration::from_secs(20);

/// The kinds of outages.
#[derive(Clone, Copy, Debug)]
enum Outage {
    /// Connections are refused.
    Killed,
    /// Connections stay open without any answer.
    Silent,
}

impl Outage {
    fn begin(self, postgres: &mut Postgres, proxy: &FaultProxy) {
        match self {
            Outage::Killed => postgres.kill(),
            Outage::Silent => proxy.blackhole(true),
        }
    }

    fn end(self, postgres: &mut Postgres, proxy: &FaultProxy) {
        match self {
            Outage::Killed => postgres.start_again(),
            Outage::Silent => proxy.blackhole(false),
        }
    }
}

/// A key, and the answer that its caller got.
struct Told {
    key: String,
    node: usize,
    answer: Answer,
    took: Duration,
}

/// The numbers of a node's refused and served callers.
#[derive(Clone, Copy, Default)]
struct Count {
    refused: usize,
    served: usize,
}

#[test]
fn without_its_database_a_node_refuses_in_time_and_serves_again_when_it_is_back() {
    let Some(mut postgres) = Postgres::start() else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let (store, upstream) = (
        harness::migrated(&postgres),
        Upstream::start(&[Protocol::Http1; NODES]),
    );
    let proxy = runtime.block_on(FaultProxy::in_front_of(postgres.address()));
    let store = store.replace(
        &postgres.address().to_string(),
        &proxy.address().to_string(),
    );
    let nodes: Vec<Program> = (0..NODES)
        .map(|node| serve(&store, upstream.address(node), "", &[]))
        .collect();

    let (stop, counts) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(watch::Sender::new([Count::default(); NODES])),
    );
    let mut callers = JoinSet::new();
    for caller in 0..NODES * CALLERS {
        let node = caller % NODES;
        let calling = call(
            format!("caller-{caller}"),
            node,
            nodes[node].clients,
            stop.clone(),
            counts.clone(),
        );
        callers.spawn_on(calling, runtime.handle());
    }
    let mut held = Vec::new();
    for (number, outage) in OUTAGES.into_iter().enumerate() {
        let gate = upstream.gate(&format!("outage-{number}"));
        let begun: Vec<_> = (0..NODES * HELD)
            .map(|attempt| begin(number, attempt, &nodes, &runtime))
            .collect();
        runtime.block_on(gate.wait_held(NODES * HELD));
        outage.begin(&mut postgres, &proxy);
        // Their effects are done, but cannot be recorded.
        gate.open(NODES * HELD);
        runtime.block_on(everybody(&counts, "is refused", |count| count.refused));
        for (key, first) in begun {
            let first = runtime.block_on(first).unwrap();
            assert!(
                first.status == 503 && first.is_problem("store-unavailable"),
                "{key} got {first:?} while the database was {outage:?}"
            );
            held.push(key);
        }
        outage.end(&mut postgres, &proxy);
        runtime.block_on(everybody(&counts, "is served again", |count| count.served));
    }
    stop.store(true, Ordering::Relaxed);
    let told: Vec<Told> = runtime
        .block_on(callers.join_all())
        .into_iter()
        .flatten()
        .collect();
    runtime.block_on(repeat(&nodes, &told, &held));

    let ledger = upstream.ledger();
    ledger.assert_none_twice();
    for told in told.iter().filter(|told| told.answer.is_charged()) {
        assert_eq!(
            ledger.effects_of(&told.key),
            1,
            "{} was answered with success",
            told.key
        );
    }
    held.iter()
        .for_each(|key| assert_eq!(ledger.effects_of(key), 1, "{key} had its effect"));
    assert!(
        proxy.faults() > 0,
        "no outage hit a statement: this run shows nothing"
    );
    let refused: Vec<Duration> = told
        .iter()
        .filter(|told| told.answer.status == 503)
        .map(|told| told.took)
        .collect();
    hapax_testkit::report!(
        "outages: {OUTAGES:?}, {} connections hit in the middle of a statement; {} keys, {} refused, the last of them after {:.1?}; {} attempts were under way and replayed afterwards",
        proxy.faults(),
        told.len(),
        refused.len(),
        refused.iter().max().unwrap(),
        held.len()
    );
}

/// Begins an attempt that the upstream holds.
fn begin(
    outage: usize,
    attempt: usize,
    nodes: &[Program],
    runtime: &tokio::runtime::Runtime,
) -> (String, tokio::task::JoinHandle<Answer>) {
    let key = format!("held-{outage}-{attempt}");
    let charge = Charge::new(&key).held_at(&format!("outage-{outage}"));
    (
        key,
        runtime.spawn(answer(nodes[attempt % NODES].clients, &charge)),
    )
}

/// Sends one key after the other to a node, each once. Every answer must come in time.
async fn call(
    name: String,
    node: usize,
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    counts: Arc<watch::Sender<[Count; NODES]>>,
) -> Vec<Told> {
    let mut told = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let (key, asked_at) = (format!("{name}-{}", told.len()), Instant::now());
        let answer = answer(address, &Charge::new(&key)).await;
        let took = asked_at.elapsed();
        assert!(took < ANSWERED_WITHIN, "{key} was answered after {took:?}");
        let is_refused = answer.status == 503 && answer.is_problem("store-unavailable");
        assert!(
            answer.is_charged() || is_refused || answer.is_unknown(),
            "{key} got {answer:?}"
        );
        counts.send_modify(|counts| {
            counts[node].refused += usize::from(is_refused);
            counts[node].served += usize::from(answer.is_charged());
        });
        told.push(Told {
            key,
            node,
            answer,
            took,
        });
        // A refusal is fast, so this pause keeps callers from polling a thousand times a second.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    told
}

/// Waits until this has happened once more at every node.
async fn everybody(counts: &watch::Sender<[Count; NODES]>, what: &str, count: fn(&Count) -> usize) {
    let mut counts = counts.subscribe();
    // Two more for each caller: the first may have begun before.
    let wanted: Vec<usize> = counts
        .borrow()
        .iter()
        .map(|node| count(node) + 2 * CALLERS)
        .collect();
    let what = format!("every node {what}");
    let has_happened = counts.wait_for(|counts| {
        counts
            .iter()
            .zip(&wanted)
            .all(|(node, wanted)| count(node) >= *wanted)
    });
    in_time(&what, has_happened).await.unwrap();
}

/// After the outage, repeats everything at another node: acknowledged answers are replayed, and so
/// are those of the held attempts.
async fn repeat(nodes: &[Program], told: &[Told], held: &[String]) {
    for told in told {
        let again = settled(
            nodes[(told.node + 1) % NODES].clients,
            &told.key,
            Answer::is_unknown,
        )
        .await;
        match told.answer.is_charged() {
            true => again.assert_replays(&told.answer),
            false => assert!(
                again.is_charged() || again.is_unknown(),
                "{} got {again:?}",
                told.key
            ),
        }
    }
    for (number, key) in held.iter().enumerate() {
        // The attempt may have lapsed before its end could be recorded.
        let again = settled(nodes[(number + 1) % NODES].clients, key, |_| false).await;
        assert!(
            again.is_charged() && again.is_replay(),
            "{key} got {again:?} after the database was back"
        );
    }
}

/// The final answer for a key: a success, or one that `may_be` accepts. Requests that waited for a
/// claim which is then released must retry.
async fn settled(node: SocketAddr, key: &str, may_be: fn(&Answer) -> bool) -> Answer {
    let begun = Instant::now();
    loop {
        let again = answer(node, &Charge::new(key).waiting(30)).await;
        if again.is_charged() || may_be(&again) {
            return again;
        }
        assert!(
            begun.elapsed() < SETTLED_WITHIN,
            "{key} still gets {again:?} after {:?}",
            begun.elapsed()
        );
        // A connection that was not used since may still be reconnecting.
        let is_passing = again.is_unknown()
            || ["in-flight", "store-unavailable"]
                .iter()
                .any(|code| again.is_problem(code));
        assert!(is_passing, "{key} got {again:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
