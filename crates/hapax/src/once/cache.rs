//! Finished records in memory: a replay without a round trip.
//!
//! An entry is good only under the forget-epoch it was read in, and only while that epoch is known
//! to be current: read from the store no longer than [`EPOCH_GOOD_FOR`] ago. `forget` raises the
//! epoch and waits that long, so that when it returns no node can serve the answer.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::record::Record;
use hapax_core::scope::RecordId;
use hapax_core::store::{Seen, StoreInfo};
use hapax_core::time::Timestamp;
use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::sync::DefaultLifecycle;
use tokio::time::Instant;

use crate::hash::Ids;

/// How long a reading of the forget-epoch is good for.
pub(crate) const EPOCH_GOOD_FOR: Duration = Duration::from_secs(1);

/// Roughly what an entry takes besides its answer.
const ENTRY_BYTES: usize = 512;

pub(crate) struct Cache {
    entries: quick_cache::sync::Cache<RecordId, Entry, Weight, Ids>,
    epoch: Mutex<Option<(Instant, u64)>>,
}

#[derive(Clone)]
struct Entry {
    record: Arc<Record>,
    epoch: u64,
    /// The store's time, and ours, when the record was read.
    seen: Timestamp,
    at: Instant,
}

#[derive(Clone)]
struct Weight;

impl Weighter<RecordId, Entry> for Weight {
    fn weight(&self, _: &RecordId, entry: &Entry) -> u64 {
        let answer = entry
            .record
            .answer
            .as_ref()
            .map_or(0, |answer| answer.weight());
        (answer + ENTRY_BYTES) as u64
    }
}

impl Cache {
    pub(crate) fn new(bytes_max: u64) -> Self {
        let items = usize::try_from(bytes_max).unwrap_or(usize::MAX) / (ENTRY_BYTES * 2);
        let entries = quick_cache::sync::Cache::with(
            items,
            bytes_max,
            Weight,
            Ids::default(),
            DefaultLifecycle::default(),
        );
        Cache {
            entries,
            epoch: Mutex::new(None),
        }
    }

    /// The epoch, if it is known well enough to serve or fill entries under it.
    pub(crate) fn epoch(&self) -> Option<u64> {
        let known = *self.epoch.lock();
        known
            .filter(|(read_at, _)| read_at.elapsed() < EPOCH_GOOD_FOR)
            .map(|(_, epoch)| epoch)
    }

    /// Takes note of the store info that was asked for at `asked_at`; counting from then errs on the safe
    /// side.
    pub(crate) fn learn(&self, info: &StoreInfo, asked_at: Instant) {
        let mut known = self.epoch.lock();
        if known.is_none_or(|(read_at, _)| read_at < asked_at) {
            *known = Some((asked_at, info.epoch));
        }
    }

    /// A record that may be replayed, and what time it is by the store's clock.
    pub(crate) fn get(&self, id: &RecordId, epoch: u64) -> Option<(Arc<Record>, Timestamp)> {
        let entry = self.entries.get(id)?;
        let now = entry.seen.after(entry.at.elapsed());
        let is_good = entry.epoch == epoch;
        (is_good && entry.record.head.expires_at > now).then_some((entry.record, now))
    }

    /// Keeps a record that has an answer. `epoch` must have been read before the record was.
    pub(crate) fn keep(&self, seen: &Seen, epoch: u64) {
        let Some(record) = seen
            .record
            .as_ref()
            .filter(|record| record.answer.is_some())
        else {
            return;
        };
        let entry = Entry {
            record: Arc::new(record.clone()),
            epoch,
            seen: seen.now,
            at: Instant::now(),
        };
        self.entries.insert(record.head.id, entry);
    }

    /// Drops a record that was forgotten here.
    pub(crate) fn forget(&self, id: &RecordId) {
        self.entries.remove(id);
        *self.epoch.lock() = None;
    }
}
