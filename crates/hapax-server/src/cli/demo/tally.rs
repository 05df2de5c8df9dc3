//! What the customers of one storm have seen so far.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters that everybody in a storm adds to.
#[derive(Default)]
pub(super) struct Tally {
    /// Requests, those that the balancer sent again included.
    pub(super) sent: Count,
    /// Answers that said they were sent before.
    pub(super) replayed: Count,
    /// Requests that were told that the same one is being worked on.
    pub(super) told_to_wait: Count,
    /// Orders whose card the bank declined.
    pub(super) refused: Count,
    /// Orders of which a customer was told that nobody knows.
    pub(super) held: Count,
}

/// One counter.
#[derive(Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
