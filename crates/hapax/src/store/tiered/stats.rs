//! Statistics of the cache.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters and gauges of the cache, for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Repeats that were answered from Redis.
    pub hits: u64,
    /// Requests that Redis had no copy for.
    pub misses: u64,
    /// Copies that did not count: for another request, of an earlier epoch, or at the end of their
    /// retention. Postgres decided.
    pub set_aside: u64,
    /// Values that are no copies of this store: damaged, forged, or of another store. Postgres
    /// decided. Something else writes to this Redis.
    pub unreadable: u64,
    /// Copies written.
    pub kept: u64,
    /// Calls to Redis that failed or took too long.
    pub failures: u64,
    /// Requests for which Redis was not asked, because it had failed.
    pub left_alone: u64,
    /// Whether Redis is being left alone now.
    pub is_left_alone: bool,
}

/// The counters behind [`Stats`].
#[derive(Default)]
pub(super) struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    set_aside: AtomicU64,
    unreadable: AtomicU64,
    kept: AtomicU64,
    failures: AtomicU64,
    left_alone: AtomicU64,
}

impl Counters {
    pub(super) fn hit(&self) {
        add::<()>(&self.hits);
    }

    pub(super) fn kept(&self) {
        add::<()>(&self.kept);
    }

    /// Each of these says why Postgres is asked.
    pub(super) fn miss<T>(&self) -> Option<T> {
        add(&self.misses)
    }

    pub(super) fn set_aside<T>(&self) -> Option<T> {
        add(&self.set_aside)
    }

    pub(super) fn unreadable<T>(&self) -> Option<T> {
        add(&self.unreadable)
    }

    pub(super) fn failure<T>(&self) -> Option<T> {
        add(&self.failures)
    }

    pub(super) fn left_alone<T>(&self) -> Option<T> {
        add(&self.left_alone)
    }

    pub(super) fn read(&self, is_left_alone: bool) -> Stats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            hits: load(&self.hits),
            misses: load(&self.misses),
            set_aside: load(&self.set_aside),
            unreadable: load(&self.unreadable),
            kept: load(&self.kept),
            failures: load(&self.failures),
            left_alone: load(&self.left_alone),
            is_left_alone,
        }
    }
}

fn add<T>(counter: &AtomicU64) -> Option<T> {
    counter.fetch_add(1, Ordering::Relaxed);
    None
}
