//! What a consumer tells about itself.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a consumer has done since it began, and how it is.
#[derive(Debug, Default)]
pub struct Progress {
    pub(super) applied: AtomicU64,
    pub(super) duplicates: AtomicU64,
    pub(super) stale: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) parked: AtomicU64,
    pub(super) retried: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) batches: AtomicU64,
    pub(super) outages: AtomicU64,
    pub(super) waiting: AtomicU64,
    /// One more than the lag; zero: not known.
    pub(super) lag: AtomicU64,
}

/// Numbers of a [`Progress`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages whose effect was applied.
    pub applied: u64,
    /// Deliveries of messages that had been applied before: they changed nothing.
    pub duplicates: u64,
    /// Messages that were skipped, because a later version of their entity had been applied.
    pub stale: u64,
    /// Tries of a single message that failed.
    pub failed: u64,
    /// Messages that were parked for an operator.
    pub parked: u64,
    /// Parked messages that were applied after an operator asked for it.
    pub retried: u64,
    /// Messages that failed under `at-most-once`: they are not tried again.
    pub lost: u64,
    /// Transactions with messages.
    pub batches: u64,
    /// Times that the broker or the database could not be used.
    pub outages: u64,
}

impl Progress {
    /// The numbers at this moment.
    pub fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            applied: read(&self.applied),
            duplicates: read(&self.duplicates),
            stale: read(&self.stale),
            failed: read(&self.failed),
            parked: read(&self.parked),
            retried: read(&self.retried),
            lost: read(&self.lost),
            batches: read(&self.batches),
            outages: read(&self.outages),
        }
    }

    /// How many messages wait here for another try, or behind one that does.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// How many messages wait at the broker, as far as it said lately.
    pub fn lag(&self) -> Option<u64> {
        self.lag.load(Ordering::Relaxed).checked_sub(1)
    }

    pub(super) fn set_lag(&self, lag: Option<u64>) {
        let lag = lag.map_or(0, |lag| lag.saturating_add(1));
        self.lag.store(lag, Ordering::Relaxed);
    }
}

pub(super) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}
