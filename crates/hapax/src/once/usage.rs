//! The usage of each principal in a namespace: records that have not expired, and bytes of kept
//! answers.
//!
//! Kept in memory, and only while a quota is set. Every write of this process is noted, with the
//! record as written. Records from before are read in the background when counting begins, and
//! again after a sweep has marked attempts as lost, because the sweep does not say which ones
//! (`quota_store.rs`). For each record the latest version counts, so the order of these two sources
//! does not matter. A record counts until its retention is over, rounded up to a second.
//!
//! This costs about 150 bytes for each record that has not expired. Writes of other nodes on the
//! same store are not counted.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hapax_core::record::{Head, State};
use hapax_core::scope::{Principal, RecordId, Scope};
use hapax_core::time::Timestamp;
use tokio::time::Instant;

use crate::hash::Ids;

/// The usage of a principal in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Usage {
    /// Records whose retention is not over.
    pub records: u64,
    /// Bytes of their answers, as stored.
    pub bytes: u64,
    /// Whether everything that was in the store when counting began has been counted.
    pub is_complete: bool,
}

/// Accounts without records that are kept before they are searched for and dropped.
const EMPTY_ACCOUNTS_MAX: usize = 1_024;

/// All counted records, and the account of each.
#[derive(Default)]
pub(super) struct Ledger {
    accounts: HashMap<Owner, Arc<Account>>,
    entries: HashMap<RecordId, Entry, Ids>,
    /// The records by the second in which they expire. An id may be stale: its entry has the valid
    /// time.
    expiring: BTreeMap<u64, Vec<RecordId>>,
    /// The store's latest time, and this node's when it was learned.
    clock: Option<(Timestamp, Instant)>,
    pub(super) filling: Filling,
    filled_at: Option<Instant>,
    /// Records that were forgotten while the store is being read: an earlier reading must not count
    /// them again.
    forgotten: HashSet<RecordId, Ids>,
}

/// The shortest time between two complete readings of the store.
const REST: Duration = Duration::from_secs(60);

/// The progress of reading the store.
#[derive(Default, PartialEq, Eq)]
pub(super) enum Filling {
    /// It has to be read.
    #[default]
    Due,
    /// It is being read.
    Walking,
    /// It has been read.
    Done,
}

type Owner = (Arc<str>, Principal);

/// The usage of one principal. Changed only under the ledger's mutex, except for reservations.
#[derive(Default)]
pub(super) struct Account {
    records: AtomicU64,
    bytes: AtomicU64,
    reserved_records: AtomicU64,
    reserved_bytes: AtomicU64,
}

struct Entry {
    account: Arc<Account>,
    /// The second in which it stops counting; `None` while it is running.
    until: Option<u64>,
    bytes: u64,
    version: u64,
}

/// Room for a write that is about to happen, counted until the write is noted.
pub(crate) struct Reserved {
    account: Arc<Account>,
    records: u64,
    bytes: u64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.account
            .reserved_records
            .fetch_sub(self.records, Ordering::Relaxed);
        self.account
            .reserved_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Ledger {
    /// Notes a record that was just written.
    pub(super) fn wrote(&mut self, head: &Head, bytes: u64, now: Timestamp) {
        if matches!(head.state, State::Expired(_)) && self.filling == Filling::Walking {
            self.forgotten.insert(head.id);
        }
        self.note(head, bytes, now);
    }

    /// Notes a record that was read. It may have been written since.
    pub(super) fn read(&mut self, head: &Head, bytes: u64, now: Timestamp) {
        if !self.forgotten.contains(&head.id) {
            self.note(head, bytes, now);
        }
    }

    fn note(&mut self, head: &Head, bytes: u64, now: Timestamp) {
        self.learn(now);
        // A known version must not be noted again: repeats of a key read the same record many
        // times.
        let is_known = |entry: &Entry| {
            entry.version > head.version || (entry.version == head.version && entry.bytes == bytes)
        };
        if self.entries.get(&head.id).is_some_and(is_known) {
            return;
        }
        self.remove(&head.id);
        let until = match head.state_at(now) {
            State::Expired(_) => return,
            _ if head.state == State::Running => None,
            _ => Some(head.expires_at.as_micros().div_ceil(1_000_000)),
        };
        let account = self.account(&head.scope);
        account.records.fetch_add(1, Ordering::Relaxed);
        account.bytes.fetch_add(bytes, Ordering::Relaxed);
        if let Some(until) = until {
            self.expiring.entry(until).or_default().push(head.id);
        }
        self.entries.insert(
            head.id,
            Entry {
                account,
                until,
                bytes,
                version: head.version,
            },
        );
    }

    /// Whether the store has to be read and the last reading is long enough ago. If so, the caller
    /// must read it.
    pub(super) fn begin_filling(&mut self) -> bool {
        let has_rested = self
            .filled_at
            .is_none_or(|filled_at| filled_at.elapsed() >= REST);
        let begins = self.filling == Filling::Due && has_rested;
        if begins {
            self.filling = Filling::Walking;
        }
        begins
    }

    /// Requires a new reading of the store without a pause, because the ledger is missing records.
    pub(super) fn recount(&mut self) {
        self.filling = Filling::Due;
        self.filled_at = None;
    }

    /// Notes that the whole store has been read.
    pub(super) fn end_filling(&mut self) {
        // Unless another reading became due meanwhile.
        if self.filling == Filling::Walking {
            self.filling = Filling::Done;
        }
        self.filled_at = Some(Instant::now());
        self.forgotten = HashSet::default();
    }

    /// Learns the store's current time.
    pub(super) fn learn(&mut self, now: Timestamp) {
        if self.clock.is_none_or(|(latest, _)| latest <= now) {
            self.clock = Some((now, Instant::now()));
        }
    }

    /// Reserves room for one more record.
    pub(super) fn reserve_record(
        &mut self,
        scope: &Scope,
        records_max: u64,
        bytes_max: u64,
    ) -> Option<Reserved> {
        self.expire();
        let account = self.account(scope);
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let has_room = load(&account.records) + load(&account.reserved_records) < records_max
            && load(&account.bytes) < bytes_max;
        has_room.then(|| account.reserve(1, 0))
    }

    /// Reserves room for an answer of this length.
    pub(super) fn reserve_bytes(
        &mut self,
        scope: &Scope,
        bytes: u64,
        bytes_max: u64,
    ) -> Option<Reserved> {
        self.expire();
        let account = self.account(scope);
        let has_room = account.bytes.load(Ordering::Relaxed)
            + account.reserved_bytes.load(Ordering::Relaxed)
            + bytes
            <= bytes_max;
        has_room.then(|| account.reserve(0, bytes))
    }

    pub(super) fn usage(&mut self, namespace: &Arc<str>, principal: &Principal) -> Usage {
        self.expire();
        let is_complete = self.filling == Filling::Done;
        let account = self.accounts.get(&(namespace.clone(), principal.clone()));
        account.map_or(
            Usage {
                is_complete,
                ..Usage::default()
            },
            |account| Usage {
                records: account.records.load(Ordering::Relaxed),
                bytes: account.bytes.load(Ordering::Relaxed),
                is_complete,
            },
        )
    }

    /// Removes expired records, and accounts without records.
    fn expire(&mut self) {
        if self.accounts.len() > self.entries.len() + EMPTY_ACCOUNTS_MAX {
            self.accounts
                .retain(|_, account| Arc::strong_count(account) > 1);
        }
        let Some((latest, at)) = self.clock else {
            return;
        };
        let now = latest.after(at.elapsed()).as_micros() / 1_000_000;
        while let Some(second) = self
            .expiring
            .first_entry()
            .filter(|second| *second.key() <= now)
        {
            let (second, ids) = second.remove_entry();
            for id in ids {
                if self
                    .entries
                    .get(&id)
                    .is_some_and(|entry| entry.until == Some(second))
                {
                    self.remove(&id);
                }
            }
        }
    }

    fn remove(&mut self, id: &RecordId) {
        let Some(Entry { account, bytes, .. }) = self.entries.remove(id) else {
            return;
        };
        account.records.fetch_sub(1, Ordering::Relaxed);
        account.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn account(&mut self, scope: &Scope) -> Arc<Account> {
        let owner = (scope.namespace.clone(), scope.principal.clone());
        self.accounts.entry(owner).or_default().clone()
    }
}

impl Account {
    fn reserve(self: Arc<Self>, records: u64, bytes: u64) -> Reserved {
        self.reserved_records.fetch_add(records, Ordering::Relaxed);
        self.reserved_bytes.fetch_add(bytes, Ordering::Relaxed);
        Reserved {
            account: self,
            records,
            bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use hapax_core::Key;
    use hapax_core::record::Fence;

    use super::*;

    /// A repeat reads the known record. Any number of repeats must cost no memory.
    #[test]
    fn what_is_known_is_not_noted_again() {
        let scope = Scope {
            namespace: "shop".into(),
            principal: Principal::Anonymous,
            method: "POST".into(),
            path: "/".into(),
        };
        let (key, now) = (Key::new("k").unwrap(), Timestamp::from_micros(1_000_000));
        let head = Head {
            id: RecordId::of(&scope, &key),
            scope: Arc::new(scope),
            key,
            state: State::Unknown,
            fence: Fence::ZERO,
            token: Default::default(),
            version: 1,
            attempts: 1,
            lease_until: now,
            fingerprint: None,
            created_at: now,
            claimed_at: now,
            finished_at: now,
            expires_at: now.after(Duration::from_secs(60)),
            tombstone_until: now.after(Duration::from_secs(60)),
            status: None,
            kept: false,
            request_id: None,
        };
        let mut ledger = Ledger::default();
        (0..1_000).for_each(|_| ledger.read(&head, 0, now));
        assert_eq!(
            (
                ledger.entries.len(),
                ledger.expiring.values().map(Vec::len).sum::<usize>()
            ),
            (1, 1)
        );
    }
}
