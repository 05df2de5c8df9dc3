//! Nodes whose clocks are an hour apart and jump: nothing depends on them.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hapax_server::config::Protocol;
use hapax_testkit::servers::{Postgres, faketime_file};
use tempfile::TempDir;

use super::harness::charges::{Charge, Charged, Upstream, Version, answer, send};
use super::harness::{self, Program};
use super::serve;

/// The offsets to which the nodes' clocks jump. They start with the first line.
const STEPS: [[&str; 3]; 4] = [
    ["+3600s", "-3600s", "+0s"],
    ["-3600s", "+3600s", "+86400s"],
    ["+0s", "-86400s", "-1s"],
    ["+7200s", "+7200s", "-7200s"],
];
const LEASE: Duration = Duration::from_secs(1);
const RETENTION: Duration = Duration::from_secs(4);
/// Extra time for a loaded machine.
const SLACK: Duration = Duration::from_secs(10);

/// The nodes, and their clocks.
struct World {
    nodes: Vec<Program>,
    upstream: Upstream,
    clocks: Vec<PathBuf>,
    _directory: TempDir,
}

impl World {
    fn start() -> Option<World> {
        let (postgres, directory) = (Postgres::shared()?, tempfile::tempdir().unwrap());
        let clocks: Vec<PathBuf> = (0..3)
            .map(|node| directory.path().join(format!("clock-{node}")))
            .collect();
        set(&clocks, STEPS[0]);
        let (store, upstream) = (
            harness::migrated(postgres),
            Upstream::start(&[Protocol::Http1; 3]),
        );
        let defaults = format!(
            "lease = \"{}s\"\nretention = \"{}s\"",
            LEASE.as_secs(),
            RETENTION.as_secs()
        );
        let mut nodes = Vec::new();
        for (node, clock) in clocks.iter().enumerate() {
            let environment = faketime_file(clock)?;
            nodes.push(serve(
                &store,
                upstream.address(node),
                &defaults,
                &environment,
            ));
        }
        Some(World {
            nodes,
            upstream,
            clocks,
            _directory: directory,
        })
    }

    fn step(&self, step: usize) {
        set(&self.clocks, STEPS[step % STEPS.len()]);
    }
}

fn set(clocks: &[PathBuf], offsets: [&str; 3]) {
    for (clock, offset) in clocks.iter().zip(offsets) {
        harness::replace(clock, &format!("{offset}\n"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_is_over_early_or_late_because_a_clock_is_wrong() {
    let Some(mut world) = World::start() else {
        return;
    };
    let gate = world.upstream.gate("long");
    let first = tokio::spawn(answer(
        world.nodes[0].clients,
        &Charge::new("long").held_at("long"),
    ));
    gate.wait_held(1).await;
    let (begun, mut asked) = (Instant::now(), 0);
    while begun.elapsed() < LEASE * 3 {
        world.step(asked / 8);
        let repeat = answer(world.nodes[1 + asked % 2].clients, &Charge::new("long")).await;
        assert!(
            repeat.is_problem("in-flight"),
            "taken for over after {:?}: {repeat:?}",
            begun.elapsed()
        );
        asked += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    gate.open(1);
    let first = first.await.unwrap();
    assert!(first.is_charged() && !first.is_replay(), "{first:?}");

    // An attempt that is lost while every clock keeps jumping.
    let lost = tokio::spawn({
        let (node, charge) = (
            world.nodes[0].clients,
            Charge::new("lost").held_at("nowhere"),
        );
        async move { send(node, Version::Http1, &charge).await }
    });
    while world.upstream.ledger().dispatches_of("lost") == 0 {
        tokio::task::yield_now().await;
    }
    let killed = Instant::now();
    world.nodes[0].kill();
    assert_eq!(lost.await.unwrap(), None);
    world.step(1);
    for node in &world.nodes[1..] {
        let told = answer(node.clients, &Charge::new("lost").waiting(30)).await;
        assert!(told.is_unknown(), "{told:?}");
    }
    assert!(
        killed.elapsed() < LEASE + SLACK,
        "a lost attempt was noticed only after {:?}",
        killed.elapsed()
    );
    hapax_testkit::report!(
        "clocks: {asked} repeats over {:?} of jumping clocks, none early; a lost attempt was noticed after {:?}, with a lease of {LEASE:?}",
        begun.elapsed(),
        killed.elapsed()
    );
    world.upstream.ledger().assert_none_twice();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_expire_and_fences_grow_by_the_databases_clock() {
    let Some(world) = World::start() else { return };
    let now = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_micros() as u64
    };
    let (mut keys, mut fence_before) = (Vec::new(), now());
    for number in 0..24 {
        world.step(number / 6);
        let (key, asked_at) = (format!("turn-{number}"), Instant::now());
        let first = answer(world.nodes[number % 3].clients, &Charge::new(&key)).await;
        assert!(
            first.is_charged() && !first.is_replay(),
            "{key} got {first:?}"
        );
        let fence = world.upstream.ledger().dispatches[&key][0];
        assert!(
            fence_before <= fence && fence <= now(),
            "{key} has fence {fence}, the one before {fence_before}"
        );
        fence_before = fence;
        keys.push((key, asked_at, first));
    }
    // Each key on another node than the one that ran it, and on that one too, which has the answer
    // in memory.
    let (mut replays, mut step) = (0, 0);
    for (number, (key, asked_at, first)) in keys.iter().enumerate() {
        for node in [number + 1, number] {
            loop {
                world.step(step / 16);
                step += 1;
                let sent_at = Instant::now();
                let repeat = answer(world.nodes[node % 3].clients, &Charge::new(key)).await;
                if repeat.is_problem("key-expired") {
                    let age = asked_at.elapsed();
                    assert!(age >= RETENTION, "{key} expired after {age:?}");
                    break;
                }
                repeat.assert_replays(first);
                replays += 1;
                let age = sent_at.duration_since(*asked_at);
                assert!(age < RETENTION + SLACK, "{key} was replayed after {age:?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
    assert!(replays > 0, "nothing was replayed before it expired");
    world.upstream.ledger().assert_none_twice();
    hapax_testkit::report!(
        "clocks: {} keys, {replays} replays before and none after the {RETENTION:?} of retention; fences grow by the true time",
        keys.len()
    );
}
