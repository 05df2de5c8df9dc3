//! Statistics of the store.

use std::sync::atomic::{AtomicU64, Ordering};

use std::time::Duration;

use parking_lot::Mutex;

use crate::outage::{Outage, Over};

/// Counters and gauges of the store, for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Commits since the file was opened: fewer than writes, because writes share them.
    pub commits: u64,
    /// Commits that failed.
    pub commits_failed: u64,
    /// The duration of the latest commit, from its first write until it was durable.
    pub commit_latest: Duration,
    /// The longest commit so far.
    pub commit_longest: Duration,
    /// Bytes waiting for the writer now.
    pub queue_bytes: u64,
    /// Writes refused because too much was waiting: the disk is slower than the callers.
    pub refused: u64,
    /// The number of records.
    pub records: u64,
    /// The length of the write-ahead log since its last reset, in bytes.
    pub log_bytes: u64,
    /// How often the log was reset.
    pub log_resets: u64,
    /// How often the file was closed and opened again because of an error.
    pub reopened: u64,
    /// Why the store cannot be used at the moment, if it cannot.
    pub failing: Option<String>,
    /// Whether the file was an older state of the store when it was opened, see
    /// [`Sqlite::restored`](super::Sqlite::restored).
    pub restored: bool,
}

/// The counters behind [`Stats`].
#[derive(Default)]
pub(super) struct Counters {
    commits: AtomicU64,
    commits_failed: AtomicU64,
    commit_latest_us: AtomicU64,
    commit_longest_us: AtomicU64,
    pub(super) queue_bytes: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) log_bytes: AtomicU64,
    pub(super) log_resets: AtomicU64,
    pub(super) reopened: AtomicU64,
    outage: Outage,
    failing: Mutex<Option<String>>,
}

impl Counters {
    pub(super) fn committed(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.commit_latest_us.store(micros, Ordering::Relaxed);
        self.commit_longest_us.fetch_max(micros, Ordering::Relaxed);
        if let Some(Over { lasted, .. }) = self.outage.pass(Duration::ZERO) {
            tracing::info!(
                seconds = lasted.as_secs_f64(),
                "the store file can be written again"
            );
            *self.failing.lock() = None;
        }
    }

    pub(super) fn failed(&self, reason: String) {
        self.commits_failed.fetch_add(1, Ordering::Relaxed);
        if self.outage.meet() {
            tracing::error!(error = reason, "the store file cannot be written");
        }
        *self.failing.lock() = Some(reason);
    }

    /// Notes that the store cannot be used. The caller has logged the reason.
    pub(super) fn failing(&self, reason: String) {
        self.outage.meet();
        *self.failing.lock() = Some(reason);
    }

    pub(super) fn read(&self, records: usize) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            commits: get(&self.commits),
            commits_failed: get(&self.commits_failed),
            commit_latest: Duration::from_micros(get(&self.commit_latest_us)),
            commit_longest: Duration::from_micros(get(&self.commit_longest_us)),
            queue_bytes: get(&self.queue_bytes),
            refused: get(&self.refused),
            records: records as u64,
            log_bytes: get(&self.log_bytes),
            log_resets: get(&self.log_resets),
            reopened: get(&self.reopened),
            failing: self.failing.lock().clone(),
            // Not counted here: the store knows it from opening the file.
            restored: false,
        }
    }
}
