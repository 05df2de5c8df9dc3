//! The contract of every store, and a step-by-step comparison with the reference store.

use std::sync::Arc;

use hapax_contract::Bench;
use hapax_core::{Memory, Secret};
use hapax_testkit::history;

use super::shop::Shop;

async fn guest() -> Bench {
    let shop = Shop::new();
    let guest = shop.guest().await;
    Bench::by_hand(Arc::new(guest), shop.clock.clone()).keeping(shop)
}

hapax_contract::store_contract!(guest);

#[tokio::test]
async fn random_histories_are_the_same_in_memory_and_as_a_guest() {
    let mut tally = history::Tally::default();
    for seed in 0..20 {
        let shop = Shop::new();
        let memory = Memory::new(Arc::new(shop.clock.clone()), Secret::from_bytes([7; 32]));
        tally += history::run(seed, 250, &memory, &shop.guest().await, &shop.clock).await;
    }
    hapax_testkit::report!("{tally}");
    for kind in [
        "claim",
        "takeover",
        "completion",
        "late completion",
        "release",
        "loss",
        "settlement",
        "forgetting",
        "renewal",
    ] {
        for result in ["won", "lost"] {
            assert!(
                tally.count(kind, result) > 0,
                "no {kind} {result}: this run shows nothing of it"
            );
        }
    }
}
