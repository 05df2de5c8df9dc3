//! Finished records in memory: a replay without a round trip.
//!
//! An entry is valid only under the forget-epoch in which it was read, and only while that epoch is
//! known to be current: read from the store no longer than [`EPOCH_GOOD_FOR`] ago. `forget` raises
//! the epoch and waits that long, so that when it returns no node can serve the answer.

use std::sync::Arc;

use hapax_core::record::Record;
use hapax_core::scope::RecordId;
use hapax_core::store::{EPOCH_GOOD_FOR, Seen, StoreInfo};
use hapax_core::time::Timestamp;
use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::sync::DefaultLifecycle;
use tokio::time::Instant;

use crate::hash::Ids;

/// The approximate size of an entry without its answer.
const ENTRY_BYTES: usize = 512;

pub(crate) struct Cache {
    entries: quick_cache::sync::Cache<RecordId, Entry, Weight, Ids>,
    epoch: Mutex<Option<(Instant, u64)>>,
}

#[derive(Clone)]
struct Entry {
    record: Arc<Record>,
    epoch: u64,
    /// The store's time, and this node's, when the record was read.
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

    /// The epoch, if its reading is recent enough to read or fill entries under it.
    pub(crate) fn epoch(&self, now: Instant) -> Option<u64> {
        let known = *self.epoch.lock();
        known
            .filter(|(read_at, _)| now.saturating_duration_since(*read_at) < EPOCH_GOOD_FOR)
            .map(|(_, epoch)| epoch)
    }

    /// Takes the epoch of the store info that was requested at `asked_at`. The reading counts from
    /// the request, not from the reply, which errs on the safe side.
    pub(crate) fn learn(&self, info: &StoreInfo, asked_at: Instant) {
        let mut known = self.epoch.lock();
        if known.is_none_or(|(read_at, _)| read_at < asked_at) {
            *known = Some((asked_at, info.epoch));
        }
    }

    /// A record that may be replayed, and the store's current time.
    pub(crate) fn get(
        &self,
        id: &RecordId,
        epoch: u64,
        now: Instant,
    ) -> Option<(Arc<Record>, Timestamp)> {
        let entry = self.entries.get(id)?;
        let now = entry.seen.after(now.saturating_duration_since(entry.at));
        let is_good = entry.epoch == epoch;
        (is_good && entry.record.head.expires_at > now).then_some((entry.record, now))
    }

    /// Keeps a record that has an answer. `epoch` must have been read before the record was.
    pub(crate) fn keep(&self, seen: &Seen, epoch: u64, now: Instant) {
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
            at: now,
        };
        self.entries.insert(record.head.id, entry);
    }

    /// Drops a record that was forgotten here.
    pub(crate) fn forget(&self, id: &RecordId) {
        self.entries.remove(id);
        *self.epoch.lock() = None;
    }
}
