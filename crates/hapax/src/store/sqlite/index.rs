//! The index: the row of each record, in memory.
//!
//! An index in the file would dirty a page for each random id, and with many records these pages
//! are far apart. The file has one owner, so a map in its memory is sufficient: eight bytes of the
//! id and eight of the row number. Eight bytes do not identify an id, so a lookup reads the row and
//! compares. Running records are kept here whole, because most writes end one.
//!
//! The index contains only durable records: the writer adds a batch after its commit, and before it
//! answers the callers.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;
use std::sync::Arc;

use hapax_core::record::Head;
use hapax_core::scope::RecordId;
use hapax_core::time::Timestamp;
use hashbrown::HashTable;
use parking_lot::{Mutex, MutexGuard};

use super::row_number::RowNumber;
use crate::hash::Ids;

/// Shards by the first bits of the id, so that growing a table takes a fraction of a millisecond
/// and ids can be listed in order.
const SHARD_BITS: u32 = 10;

/// The row of each record.
pub(super) struct Index {
    shards: Box<[Mutex<Shard>]>,
    /// Records that are kept only because their caller was refused, by the second in which they
    /// expire. Not read from the file: records from before it was opened expire within ten minutes.
    refused: Mutex<BTreeMap<u64, u64>>,
}

struct Shard {
    ids: Ids,
    entries: HashTable<Entry>,
    running: HashMap<RecordId, Running, Ids>,
}

/// The first bytes of an id, and a row that may contain its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) prefix: u64,
    pub(super) row_number: RowNumber,
}

/// A running record.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) row_number: RowNumber,
    pub(super) head: Arc<Head>,
}

/// The result of looking up an id.
pub(super) enum Found {
    /// There is no record.
    Absent,
    Running(Running),
    /// Rows to check: at most one of them is the record.
    Rows(Vec<RowNumber>),
}

/// The move of one record from one row to another.
#[derive(Debug)]
pub(super) struct Move {
    pub(super) id: RecordId,
    pub(super) from: Option<RowNumber>,
    pub(super) to: To,
}

#[derive(Debug)]
pub(super) enum To {
    Nowhere,
    Row(RowNumber),
    Running(Running),
}

impl Default for Index {
    fn default() -> Self {
        let ids = Ids::default();
        let shard = |_| {
            Mutex::new(Shard {
                ids: ids.clone(),
                entries: HashTable::new(),
                running: HashMap::with_hasher(ids.clone()),
            })
        };
        Index {
            shards: (0..1 << SHARD_BITS).map(shard).collect(),
            refused: Mutex::default(),
        }
    }
}

impl Index {
    pub(super) fn find(&self, id: &RecordId) -> Found {
        let prefix = prefix(id);
        let shard = self.shard(prefix);
        if let Some(running) = shard.running.get(id) {
            return Found::Running(running.clone());
        }
        let rows: Vec<_> = shard.with_prefix(prefix).collect();
        if rows.is_empty() {
            Found::Absent
        } else {
            Found::Rows(rows)
        }
    }

    pub(super) fn apply(&self, moved: Move) {
        let prefix = prefix(&moved.id);
        let mut shard = self.shard(prefix);
        if let Some(row_number) = moved.from
            && shard.running.remove(&moved.id).is_none()
        {
            shard.remove(Entry { prefix, row_number });
        }
        match moved.to {
            To::Nowhere => {}
            To::Row(row_number) => shard.insert(Entry { prefix, row_number }),
            To::Running(running) => drop(shard.running.insert(moved.id, running)),
        }
    }

    /// Adds many entries. Fastest when they are sorted, because each shard then stays in the
    /// processor's cache.
    pub(super) fn extend(&self, entries: &[Entry]) {
        for chunk in entries.chunk_by(|a, b| shard_of(a.prefix) == shard_of(b.prefix)) {
            let mut shard = self.shard(chunk[0].prefix);
            for entry in chunk {
                shard.insert(*entry);
            }
        }
    }

    /// Reserves room, so that no table is moved while it is filled.
    pub(super) fn reserve(&self, records: usize) {
        let each = records.div_ceil(self.shards.len());
        for shard in &self.shards {
            // A sixteenth more, because random ids do not spread exactly evenly.
            let Shard { ids, entries, .. } = &mut *shard.lock();
            entries.reserve(each + each / 16, |entry| ids.hash_one(entry.prefix));
        }
    }

    /// Running records whose lease is over, the longest lapsed first.
    pub(super) fn lapsed(&self, now: Timestamp, limit: usize) -> Vec<RecordId> {
        let mut lapsed: Vec<_> = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let over = shard
                .running
                .values()
                .filter(|running| running.head.lease_until <= now);
            lapsed.extend(over.map(|running| (running.head.lease_until, running.head.id)));
        }
        lapsed.sort_unstable();
        lapsed.into_iter().take(limit).map(|(_, id)| id).collect()
    }

    /// How many records are running.
    pub(super) fn running(&self) -> usize {
        self.shards
            .iter()
            .map(Mutex::lock)
            .map(|shard| shard.running.len())
            .sum()
    }

    /// The entries of the next shard at or after a prefix, in order, including running records; and
    /// the prefix from which to continue.
    pub(super) fn page(&self, from: u64) -> (Vec<Entry>, Option<u64>) {
        let shard = self.shard(from);
        let running = shard.running.iter().map(|(id, running)| Entry {
            prefix: prefix(id),
            row_number: running.row_number,
        });
        let mut entries: Vec<_> = shard
            .entries
            .iter()
            .copied()
            .chain(running)
            .filter(|entry| entry.prefix >= from)
            .collect();
        entries.sort_unstable();
        let next = shard_of(from) + 1;
        (
            entries,
            (next < 1 << SHARD_BITS).then_some(next << (64 - SHARD_BITS)),
        )
    }

    pub(super) fn len(&self) -> usize {
        self.shards
            .iter()
            .map(Mutex::lock)
            .map(|shard| shard.entries.len() + shard.running.len())
            .sum()
    }

    /// Counts a refused record, or removes it from the count.
    pub(super) fn count_refused(&self, until: Timestamp, is_refused: bool) {
        let mut refused = self.refused.lock();
        let count = refused.entry(second(until)).or_default();
        *count = if is_refused {
            *count + 1
        } else {
            count.saturating_sub(1)
        };
    }

    /// The number of refused records that have not expired.
    pub(super) fn refused(&self, now: Timestamp) -> u64 {
        let mut refused = self.refused.lock();
        *refused = refused.split_off(&(second(now) + 1));
        refused.values().sum()
    }

    fn shard(&self, prefix: u64) -> MutexGuard<'_, Shard> {
        self.shards[shard_of(prefix) as usize].lock()
    }
}

impl Shard {
    fn with_prefix(&self, prefix: u64) -> impl Iterator<Item = RowNumber> {
        self.entries
            .iter_hash(self.ids.hash_one(prefix))
            .filter(move |entry| entry.prefix == prefix)
            .map(|entry| entry.row_number)
    }

    fn insert(&mut self, entry: Entry) {
        self.entries
            .insert_unique(self.ids.hash_one(entry.prefix), entry, |entry| {
                self.ids.hash_one(entry.prefix)
            });
    }

    fn remove(&mut self, entry: Entry) {
        if let Ok(found) = self
            .entries
            .find_entry(self.ids.hash_one(entry.prefix), |other| *other == entry)
        {
            found.remove();
        }
    }
}

fn second(time: Timestamp) -> u64 {
    time.as_micros() / 1_000_000
}

/// The part of an id that the index keeps.
pub(super) fn prefix(id: &RecordId) -> u64 {
    let (first, _) = id.as_bytes().split_first_chunk().expect("an id is longer");
    u64::from_be_bytes(*first)
}

fn shard_of(prefix: u64) -> u64 {
    prefix >> (64 - SHARD_BITS)
}
