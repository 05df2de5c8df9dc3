//! The reference store keeps the contract.

use std::sync::Arc;

use hapax_contract::{Bench, ManualClock, store_contract};
use hapax_core::{Memory, Secret};

async fn memory() -> Bench {
    let clock = ManualClock::new();
    let store = Memory::new(Arc::new(clock.clone()), Secret::from_bytes([7; 32]));
    Bench::by_hand(Arc::new(store), clock)
}

store_contract!(memory);
