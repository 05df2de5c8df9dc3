//! Runs the contract on every store and prints the table of results.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use hapax::Sqlite;
use hapax_contract::{Bench, CASES, Case, ManualClock};
use hapax_core::{Memory, Secret};
use tokio::sync::Semaphore;

use crate::place;

/// The number of cases that run concurrently.
const AT_ONCE: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Skipped,
    Failed,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_store_passes_the_same_contract() {
    let directly = place::prepared_once().await;
    let pooled = place::pooled_once().await;
    let mut columns = vec![
        ("memory", run(async |_| memory()).await),
        ("sqlite", run(async |_| sqlite().await).await),
    ];
    if let Some(url) = directly {
        columns.push((
            "postgres",
            run(async |_| place::shared_bench(url).await).await,
        ));
    }
    if let Some(url) = &pooled {
        columns.push((
            "pgbouncer",
            run(async |_| place::shared_bench(url).await).await,
        ));
    }
    print(&columns);
    for (name, outcomes) in &columns {
        let failed: Vec<_> = CASES
            .iter()
            .zip(outcomes)
            .filter(|(_, outcome)| **outcome == Outcome::Failed)
            .collect();
        assert!(
            failed.is_empty(),
            "{name}: {:?}",
            failed.iter().map(|(case, _)| case.name).collect::<Vec<_>>()
        );
    }
}

async fn run(make: impl AsyncFn(&Case) -> Bench) -> Vec<Outcome> {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let mut cases = Vec::new();
    for case in CASES {
        let permit = room.clone().acquire_owned().await.expect("never closed");
        let bench = make(case).await;
        cases.push(tokio::spawn(async move {
            let ran = tokio::spawn(AssertUnwindSafe((case.run)(bench.clone())).0).await;
            drop(permit);
            match (ran, bench.skipped()) {
                (Err(_), _) => Outcome::Failed,
                (Ok(()), Some(_)) => Outcome::Skipped,
                (Ok(()), None) => Outcome::Passed,
            }
        }));
    }
    let mut outcomes = Vec::new();
    for case in cases {
        outcomes.push(case.await.expect("it does not panic"));
    }
    outcomes
}

fn memory() -> Bench {
    let clock = ManualClock::new();
    Bench::by_hand(
        Arc::new(Memory::new(
            Arc::new(clock.clone()),
            Secret::from_bytes([7; 32]),
        )),
        clock,
    )
}

async fn sqlite() -> Bench {
    let (clock, directory) = (
        ManualClock::new(),
        tempfile::tempdir().expect("a directory"),
    );
    let options = hapax::store::sqlite::Options {
        clock: Some(Arc::new(clock.clone())),
        ..Default::default()
    };
    let store = Sqlite::open_with(directory.path().join("hapax.db"), options)
        .await
        .expect("a new file");
    Bench::by_hand(Arc::new(store), clock).keeping(directory)
}

fn print(columns: &[(&str, Vec<Outcome>)]) {
    hapax_testkit::report!(
        "{:<12}{:>8}{:>8}{:>8}",
        "store",
        "passed",
        "skipped",
        "failed"
    );
    for (name, outcomes) in columns {
        let count = |wanted| {
            outcomes
                .iter()
                .filter(|outcome| **outcome == wanted)
                .count()
        };
        hapax_testkit::report!(
            "{name:<12}{:>8}{:>8}{:>8}",
            count(Outcome::Passed),
            count(Outcome::Skipped),
            count(Outcome::Failed)
        );
    }
}
