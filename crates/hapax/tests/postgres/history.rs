//! Random histories: Postgres and the reference store never differ.

use std::ops::Range;
use std::sync::Arc;

use hapax_core::{Memory, Secret, Store};
use hapax_testkit::ManualClock;
use hapax_testkit::history::{self, Tally};

use crate::company::Batched;
use crate::place;

const SEEDS: u64 = 4;
const STEPS: usize = 400;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_and_memory_never_differ() {
    compare(0..SEEDS, |store| store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_and_memory_never_differ_in_company() {
    compare(SEEDS..2 * SEEDS, Batched).await;
}

async fn compare<S: Store>(seeds: Range<u64>, around: fn(place::ByHand) -> S) {
    let mut sum = Tally::default();
    for seed in seeds {
        let Some((_, url)) = place::prepared().await else {
            return;
        };
        let clock = ManualClock::new();
        let memory = Memory::new(Arc::new(clock.clone()), Secret::from_bytes([7; 32]));
        let store = around(place::ByHand::open(&url, clock.clone()).await);
        sum += history::run_dropping_in_bulk(seed, STEPS, &memory, &store, &clock).await;
    }
    hapax_testkit::report!("{sum}");
    for (kind, result) in [
        ("claim", "won"),
        ("takeover", "won"),
        ("completion", "won"),
        ("settlement", "won"),
        ("forgetting", "won"),
    ] {
        assert!(sum.count(kind, result) > 0, "{kind} {result} never:\n{sum}");
    }
}
