//! Random histories: Redis and the reference store never differ.

use std::sync::Arc;

use hapax_core::{Memory, Secret};
use hapax_testkit::history::{self, Tally};

use crate::place;

const SEEDS: u64 = 4;
const STEPS: usize = 250;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_and_memory_never_differ() {
    let mut sum = Tally::default();
    for seed in 0..SEEDS {
        let Some(store) = place::ByHand::open().await else {
            return;
        };
        let clock = store.clock();
        let memory = Memory::new(Arc::new(clock.clone()), Secret::from_bytes([7; 32]));
        sum += history::run(seed, STEPS, &memory, &store, &clock).await;
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
