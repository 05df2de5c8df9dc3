//! Statistics of the store.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hapax_core::store::StoreError;
use parking_lot::Mutex;

use crate::outage::Outage;

/// Counters and gauges of the store, for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Calls sent to Redis: scripts and commands.
    pub calls: u64,
    /// Pipelines they were sent in. [`calls`](Stats::calls) divided by this is the number of calls
    /// that shared a round trip.
    pub pipelines: u64,
    /// The most calls in one pipeline.
    pub pipeline_largest: u64,
    /// Bytes waiting to be sent now.
    pub queue_bytes: u64,
    /// Calls refused because too much was waiting.
    pub refused: u64,
    /// Calls that were sent again because the slot had moved, a script was missing, or Redis was
    /// not ready. Redis had not executed them.
    pub sent_again: u64,
    /// Connections made.
    pub connections: u64,
    /// Connections lost.
    pub connections_lost: u64,
    /// How often a master turned out to be another server, or to have been restarted. An alarm:
    /// what Redis had not yet saved or replicated is lost, and effects of these keys may be
    /// repeated.
    pub failovers: u64,
    /// Writes that fewer replicas than asked for have confirmed in time.
    pub unreplicated: u64,
    /// What may be lost with the settings of this Redis, each in a sentence.
    pub warnings: Vec<String>,
    /// Why the store cannot be used at the moment, if it cannot.
    pub failing: Option<String>,
}

/// The counters behind [`Stats`].
#[derive(Default)]
pub(super) struct Counters {
    pub(super) calls: AtomicU64,
    pub(super) pipelines: AtomicU64,
    pipeline_largest: AtomicU64,
    pub(super) queue_bytes: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) sent_again: AtomicU64,
    pub(super) connections: AtomicU64,
    connections_lost: AtomicU64,
    pub(super) failovers: AtomicU64,
    pub(super) unreplicated: AtomicU64,
    pub(super) warnings: Mutex<Vec<String>>,
    outage: Outage,
    failing: Mutex<Option<String>>,
}

/// An outage is over when no call has failed for this long.
const QUIET: Duration = Duration::from_secs(1);

impl Counters {
    pub(super) fn pipeline(&self, calls: usize) {
        self.pipelines.fetch_add(1, Ordering::Relaxed);
        self.calls.fetch_add(calls as u64, Ordering::Relaxed);
        self.pipeline_largest
            .fetch_max(calls as u64, Ordering::Relaxed);
    }

    pub(super) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// A call has failed: Redis is failing from the first failure on.
    pub(super) fn failed(&self, error: &StoreError, is_store: bool) {
        match self.outage.meet() {
            true if is_store => tracing::error!(%error, "Redis cannot be used"),
            true => {
                tracing::warn!(%error, "Redis cannot be used as a cache: Postgres does its work");
            }
            false => {}
        }
        *self.failing.lock() = Some(error.to_string());
    }

    pub(super) fn succeeded(&self) {
        if self.outage.is_on()
            && let Some(over) = self.outage.pass(QUIET)
        {
            *self.failing.lock() = None;
            tracing::info!(seconds = over.lasted.as_secs(), "Redis can be used again");
        }
    }

    pub(super) fn connection_lost(&self) {
        Counters::add(&self.connections_lost);
    }

    pub(super) fn read(&self) -> Stats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            calls: load(&self.calls),
            pipelines: load(&self.pipelines),
            pipeline_largest: load(&self.pipeline_largest),
            queue_bytes: load(&self.queue_bytes),
            refused: load(&self.refused),
            sent_again: load(&self.sent_again),
            connections: load(&self.connections),
            connections_lost: load(&self.connections_lost),
            failovers: load(&self.failovers),
            unreplicated: load(&self.unreplicated),
            warnings: self.warnings.lock().clone(),
            failing: self.failing.lock().clone(),
        }
    }
}
