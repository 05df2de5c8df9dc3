//! Statistics of the store.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use std::time::Duration;

use hapax_core::store::StoreError;
use parking_lot::Mutex;

use crate::outage::{Outage, Over};

/// Counters and gauges of the store, for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Statements sent and answered, with success or not.
    pub statements: u64,
    /// Those of them that several callers can share: claims, completions and reads.
    pub batches: u64,
    /// The calls in them. Divided by [`batches`](Stats::batches), this is the number of callers
    /// that shared a statement.
    pub batched: u64,
    /// The most calls in one statement.
    pub batch_largest: u64,
    /// Writes that were sent alone, because the batch they were in failed.
    pub alone: u64,
    /// Bytes waiting to be sent now.
    pub queue_bytes: u64,
    /// Requests refused because too much was waiting: the database is slower than its callers.
    pub refused: u64,
    /// Connections made.
    pub connections: u64,
    /// Connections lost.
    pub connections_lost: u64,
    /// How often one of the tables with answers was emptied, which drops expired answers in bulk.
    pub turns: u64,
    /// How often the database turned out to be another server, or on another timeline: failovers
    /// and restores.
    pub failovers: u64,
    /// Acknowledged writes that are missing. An alarm: effects of these keys may be repeated.
    pub commits_lost: u64,
    /// Whether writes that this process had seen acknowledged before it stopped were missing when
    /// it started: the database was restored from a backup meanwhile. An alarm, as above. Only
    /// known with a [high-water file](super::Options::high_water_file).
    pub restored: bool,
    /// By how many seconds the database's clock is ahead of the store's time, because it was more
    /// than an hour ahead of a node's clock and of its own last reading. An alarm: one of the two
    /// clocks is wrong, and until they agree nothing expires by the database's clock.
    pub clock_ahead_seconds: u64,
    /// Why the store cannot be used at the moment, if it cannot.
    pub failing: Option<String>,
}

/// The counters behind [`Stats`].
#[derive(Default)]
pub(super) struct Counters {
    statements: AtomicU64,
    batches: AtomicU64,
    batched: AtomicU64,
    batch_largest: AtomicU64,
    pub(super) alone: AtomicU64,
    pub(super) queue_bytes: AtomicU64,
    pub(super) refused: AtomicU64,
    connections: AtomicU64,
    connections_lost: AtomicU64,
    pub(super) turns: AtomicU64,
    pub(super) failovers: AtomicU64,
    pub(super) commits_lost: AtomicU64,
    pub(super) restored: AtomicBool,
    clock_ahead_seconds: AtomicU64,
    outage: Outage,
    failing: Mutex<Option<String>>,
}

impl Counters {
    pub(super) fn statement(&self) {
        self.statements.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn batch(&self, parts: usize) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.batched.fetch_add(parts as u64, Ordering::Relaxed);
        self.batch_largest
            .fetch_max(parts as u64, Ordering::Relaxed);
    }

    pub(super) fn lost_connection(&self) {
        self.connections_lost.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn connected(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        if let Some(Over { lasted, .. }) = self.outage.pass(Duration::ZERO) {
            tracing::info!(
                seconds = lasted.as_secs_f64(),
                "the database can be reached again"
            );
        }
        *self.failing.lock() = None;
    }

    /// Logs when the clock gets ahead, and when it agrees again.
    pub(super) fn clock_is_ahead(&self, ahead: Duration) {
        let seconds = ahead.as_secs();
        let before = self.clock_ahead_seconds.swap(seconds, Ordering::Relaxed);
        if before == 0 && seconds > 0 {
            tracing::error!(
                seconds,
                "ALARM: the clock of the database is far ahead of this node's, and of where it last was; until they agree within an hour, the \
                 store's time goes on from there, and nothing expires by the database's clock. Set the wrong one of the two right"
            );
        } else if before > 0 && seconds == 0 {
            tracing::warn!(
                "the clock of the database and this node's agree again; the store's time follows the database's clock"
            );
        }
    }

    pub(super) fn failed(&self, error: &StoreError) {
        if self.outage.meet() {
            tracing::error!(%error, "the database cannot be reached");
        }
        *self.failing.lock() = Some(error.to_string());
    }

    pub(super) fn read(&self) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            statements: get(&self.statements),
            batches: get(&self.batches),
            batched: get(&self.batched),
            batch_largest: get(&self.batch_largest),
            alone: get(&self.alone),
            queue_bytes: get(&self.queue_bytes),
            refused: get(&self.refused),
            connections: get(&self.connections),
            connections_lost: get(&self.connections_lost),
            turns: get(&self.turns),
            failovers: get(&self.failovers),
            commits_lost: get(&self.commits_lost),
            restored: self.restored.load(Ordering::Relaxed),
            clock_ahead_seconds: get(&self.clock_ahead_seconds),
            failing: self.failing.lock().clone(),
        }
    }
}
