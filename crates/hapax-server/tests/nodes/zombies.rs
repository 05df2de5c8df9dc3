//! Nodes that are stopped past their lease in the middle of an attempt, and then continue.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use hapax_server::config::Protocol;
use hapax_testkit::servers::Postgres;
use tokio::task::JoinHandle;

use super::harness::charges::{Charge, Charged, Upstream, answer};
use super::harness::{self, Answer, Gate, Program, in_time};
use super::serve;

const NODES: usize = 3;
/// Attempts that are running on the stopped node.
const ATTEMPTS: usize = 8;
/// Short, because every test here waits until it is over.
const LEASE: &str = "lease = \"1s\"";
/// Longer than any lease here, in seconds.
const PATIENT: u32 = 30;

/// Three nodes on a new database. The first one will be stopped.
fn nodes(postgres: &Postgres, upstream: &Upstream, defaults: &str) -> Vec<Program> {
    let store = harness::migrated(postgres);
    let start = |node| serve(&store, upstream.address(node), defaults, &[]);
    (0..NODES).map(start).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_stopped_past_its_lease_is_held_as_unknown_elsewhere_and_still_ends_its_attempts() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let upstream = Upstream::start(&[Protocol::Http1; NODES]);
    let nodes = nodes(postgres, &upstream, LEASE);
    let gate = upstream.gate("zombie");
    let keys: Vec<String> = (0..ATTEMPTS)
        .map(|number| format!("held-{number}"))
        .collect();
    let first = begin(&nodes[0], &gate, &keys).await;
    for key in &keys {
        let repeat = answer(nodes[1].clients, &Charge::new(key)).await;
        assert!(
            repeat.status == 409 && repeat.is_problem("in-flight"),
            "{key} got {repeat:?} while its attempt was under way"
        );
    }

    nodes[0].stop();
    for (number, key) in keys.iter().enumerate() {
        // Waiting requests are answered when the lease is over, and so are later ones.
        let repeat = answer(
            nodes[1 + number % 2].clients,
            &Charge::new(key).waiting(PATIENT),
        )
        .await;
        assert!(
            repeat.status == 409 && repeat.is_unknown(),
            "{key} got {repeat:?} after the lease"
        );
    }
    gate.open(ATTEMPTS);
    let repeat = answer(nodes[1].clients, &Charge::new(&keys[0])).await;
    assert!(
        repeat.is_unknown(),
        "nobody has heard the answer yet: {repeat:?}"
    );

    nodes[0].go_on();
    for (key, first) in keys.iter().zip(first) {
        let first = first.await.unwrap();
        assert!(
            first.is_charged() && !first.is_replay(),
            "{key} got {first:?} when its node went on"
        );
        for node in &nodes {
            answer(node.clients, &Charge::new(key))
                .await
                .assert_replays(&first);
        }
    }
    let ledger = upstream.ledger();
    ledger.assert_none_twice();
    assert_eq!(ledger.effects.len(), ATTEMPTS);
    hapax_testkit::report!(
        "zombies, hold: {ATTEMPTS} attempts past their lease, each unknown elsewhere, then ended late; {ATTEMPTS} dispatches"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_lost_attempts_run_again_the_successor_counts_and_the_stopped_node_is_fenced_out() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let upstream = Upstream::start(&[Protocol::Http1; NODES]);
    let nodes = nodes(postgres, &upstream, &format!("{LEASE}\nmode = \"rerun\""));
    let gate = upstream.gate("zombie");
    let keys: Vec<String> = (0..ATTEMPTS)
        .map(|number| format!("rerun-{number}"))
        .collect();
    let first = begin(&nodes[0], &gate, &keys).await;

    nodes[0].stop();
    // For every other key the successor has ended when the stopped node continues; for the rest it
    // is still running.
    let (ended, under_way): (Vec<_>, Vec<_>) = keys
        .iter()
        .enumerate()
        .partition(|(number, _)| number % 2 == 0);
    let later = upstream.gate("successor");
    let succeed = |(number, key): (usize, &String), charge: Charge| {
        let (key, node) = (key.clone(), nodes[1 + number / 2 % 2].clients);
        tokio::spawn(async move { (run_again(node, &charge.waiting(PATIENT)).await, key) })
    };
    let mut successors: BTreeMap<String, Answer> = BTreeMap::new();
    for key in ended {
        let (successor, key) = succeed(key, Charge::new(key.1)).await.unwrap();
        successors.insert(key, successor);
    }
    let under_way: Vec<_> = under_way
        .into_iter()
        .map(|key| succeed(key, Charge::new(key.1).held_at("successor")))
        .collect();
    later.wait_held(under_way.len()).await;

    // Only now does the stopped node receive its answers, which no longer count.
    gate.open(ATTEMPTS);
    nodes[0].go_on();
    let told = in_time("the callers of the stopped node", all(first)).await;
    later.open(under_way.len());
    for successor in under_way {
        let (successor, key) = successor.await.unwrap();
        successors.insert(key, successor);
    }
    for (key, told) in keys.iter().zip(told) {
        let successor = &successors[key];
        assert!(
            !told.is_charged() || told.body == successor.body,
            "{key} was answered with what does not count: {told:?}"
        );
        for node in &nodes {
            answer(node.clients, &Charge::new(key))
                .await
                .assert_replays(successor);
        }
    }
    let ledger = upstream.ledger();
    for key in &keys {
        let fences = &ledger.dispatches[key];
        assert!(
            fences.len() == 2 && fences[0] < fences[1],
            "{key} was dispatched with these fences: {fences:?}"
        );
    }
    hapax_testkit::report!(
        "zombies, rerun: {ATTEMPTS} attempts fenced out; two dispatches for each key, the second with the higher fence, and only its answer told"
    );
}

/// Begins an attempt for each key at a node, and waits until all of them are held.
async fn begin(node: &Program, gate: &Gate, keys: &[String]) -> Vec<JoinHandle<Answer>> {
    let charge = |key: &String| Charge::new(key).held_at("zombie");
    let begun = keys
        .iter()
        .map(|key| tokio::spawn(answer(node.clients, &charge(key))));
    let begun = begun.collect();
    gate.wait_held(ATTEMPTS).await;
    begun
}

/// The answer of another attempt. A request that waited for the lost attempt is told to retry.
async fn run_again(node: SocketAddr, charge: &Charge) -> Answer {
    loop {
        let told = answer(node, charge).await;
        if told.is_charged() {
            assert!(
                !told.is_replay(),
                "{} was not run again: {told:?}",
                charge.key
            );
            return told;
        }
        assert!(told.is_problem("in-flight"), "{} got {told:?}", charge.key);
    }
}

async fn all<T>(tasks: Vec<JoinHandle<T>>) -> Vec<T> {
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    results
}
