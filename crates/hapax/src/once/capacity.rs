//! Room for new keys: how many records a store may hold, and for which principals the last part is
//! reserved.
//!
//! The store counts its records, and every node reads the counts with the store info, at most once
//! a second. In between a node adds the records that it has begun itself. So the limit may be
//! exceeded by the records that all nodes begin in about a second. No record is ever removed to
//! make room.
//!
//! An unverified caller can present any number of forged credentials, each of which is another
//! principal. Such a caller is a *stranger* until one of its operations has been answered with 2xx.
//! The store remembers the principals that have such a record, for as long as they have it and up
//! to a day longer. A node writes this once per principal and day.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hapax_core::outcome::REFUSED_FOR;
use hapax_core::record::{Head, State};
use hapax_core::rejection::Rejection;
use hapax_core::scope::{PrincipalId, Scope};
use hapax_core::store::{Counts, KnownPrincipal, Store, StoreInfo};
use hapax_core::time::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::call::{Call, PeerId};
use super::engine::Engine;
use super::quota_store::Quotas;

/// The part of all records that only known principals may begin: a tenth.
const RESERVED_PART: u64 = 10;
/// The part of the limit on refused records from which a peer is refused, once the limit is
/// reached: a hundredth.
const PEER_PART: u64 = 100;
/// The number of peers that are counted individually; further ones share a count.
const PEERS_MAX: usize = 65_536;
/// The number of principals that a node remembers as known.
const KNOWN_MAX: usize = 10_000;
/// The number of known principals that may wait to be written; others are noticed again with their
/// next record.
const UNWRITTEN_MAX: usize = 10_000;
/// How long the store remembers a principal beyond the life of its record. The principal is written
/// again when that time is used up.
const KNOWN_LONGER: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a node trusts the store's reply about a principal.
const KNOWN_FOR: Duration = Duration::from_secs(60);
/// How long known principals are gathered before they are written together.
const GATHER: Duration = Duration::from_secs(1);
/// When a refused stranger may try again.
const COME_BACK: Duration = Duration::from_secs(60);

pub(crate) struct Capacity {
    records_max: AtomicU64,
    refused_max: AtomicU64,
    /// The store's last count, plus the records that this node has begun since.
    records: AtomicU64,
    refused: AtomicU64,
    /// The store's time of the last count, in microseconds.
    now: AtomicU64,
    refused_by: Mutex<RefusedBy>,
    /// Until when each principal is known, by the store's clock.
    known: quick_cache::sync::Cache<PrincipalId, Timestamp>,
    unwritten: Mutex<Vec<KnownPrincipal>>,
}

/// Who may begin a new key, considering only the number of records.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    Anybody,
    KnownPrincipals,
    Nobody,
}

impl Capacity {
    pub(super) fn new(quotas: Quotas) -> Self {
        let capacity = Capacity {
            records_max: AtomicU64::default(),
            refused_max: AtomicU64::default(),
            records: AtomicU64::default(),
            refused: AtomicU64::default(),
            now: AtomicU64::default(),
            refused_by: Mutex::default(),
            known: quick_cache::sync::Cache::new(KNOWN_MAX),
            unwritten: Mutex::default(),
        };
        capacity.set_quotas(quotas);
        capacity
    }

    pub(crate) fn set_quotas(&self, quotas: Quotas) {
        self.records_max
            .store(quotas.records_max.unwrap_or(u64::MAX), Ordering::Relaxed);
        self.refused_max.store(
            quotas.refused_records_max.unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
    }

    /// Takes over the store's counts.
    pub(super) fn learn(&self, info: &StoreInfo) {
        let Counts { records, refused } = info.counts.unwrap_or_default();
        self.records.store(records, Ordering::Relaxed);
        self.refused.store(refused, Ordering::Relaxed);
        self.now.store(info.now.as_micros(), Ordering::Relaxed);
    }

    /// Counts a record that this node has begun.
    pub(super) fn add_record(&self) {
        self.records.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a record that is kept only because its caller was refused.
    pub(super) fn add_refused(&self, peer: Option<PeerId>, now: Instant) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        if let Some(peer) = peer {
            self.refused_by.lock().add(peer, now);
        }
    }

    fn space(&self) -> Space {
        let (records, max) = (
            self.records.load(Ordering::Relaxed),
            self.records_max.load(Ordering::Relaxed),
        );
        match records {
            _ if records >= max => Space::Nobody,
            _ if records >= max - max / RESERVED_PART => Space::KnownPrincipals,
            _ => Space::Anybody,
        }
    }

    /// Whether there are too many refused records, and this peer has made its part of them.
    fn is_over(&self, peer: PeerId, now: Instant) -> bool {
        let max = self.refused_max.load(Ordering::Relaxed);
        self.refused.load(Ordering::Relaxed) >= max
            && self.refused_by.lock().count(peer, now) >= (max / PEER_PART).max(1)
    }

    fn store_now(&self) -> Timestamp {
        Timestamp::from_micros(self.now.load(Ordering::Relaxed))
    }

    /// Remembers the principal of a completed record as known. Returns whether the caller has to
    /// start the task that writes known principals.
    fn note_known(&self, scope: &Scope, head: &Head) -> bool {
        let is_success = head.state == State::Completed && matches!(head.status, Some(200..=299));
        let Some(id) = PrincipalId::of(scope).filter(|_| is_success) else {
            return false;
        };
        if self
            .known
            .get(&id)
            .is_some_and(|until| until >= head.tombstone_until)
        {
            return false;
        }
        let mut unwritten = self.unwritten.lock();
        if unwritten.len() >= UNWRITTEN_MAX {
            return false;
        }
        let until = head.tombstone_until.after(KNOWN_LONGER);
        self.known.insert(id, until);
        unwritten.push(KnownPrincipal { id, until });
        unwritten.len() == 1
    }
}

impl Engine {
    /// Checks that there is room for a new key of this caller. Returns whether the caller is a
    /// stranger, if that matters; the store is asked only then.
    pub(super) async fn find_room(&self, call: &Call) -> Result<bool, Rejection> {
        let space = self.capacity.space();
        if space == Space::Nobody {
            return Err(Rejection::StoreFull);
        }
        let is_peer_over = call
            .unverified
            .as_ref()
            .is_some_and(|unverified| self.capacity.is_over(unverified.peer, self.clock.now()));
        let is_counted = call
            .unverified
            .as_ref()
            .is_some_and(|unverified| !unverified.counted.is_empty());
        let matters = space == Space::KnownPrincipals || is_peer_over || is_counted;
        if !matters || self.is_known(call).await? {
            return Ok(false);
        }
        match space {
            Space::KnownPrincipals => Err(Rejection::StoreFull),
            _ if is_peer_over => Err(Rejection::KeysTooFast {
                retry_after: COME_BACK,
            }),
            _ => Ok(true),
        }
    }

    async fn is_known(&self, call: &Call) -> Result<bool, Rejection> {
        let Some(id) = PrincipalId::of(&call.scope) else {
            return Ok(false);
        };
        let now = self.capacity.store_now();
        if self
            .capacity
            .known
            .get(&id)
            .is_some_and(|until| until > now)
        {
            return Ok(true);
        }
        let is_known = self
            .ask_in(call.policy.store_timeout, self.store.knows(id))
            .await?;
        if is_known {
            self.capacity.known.insert(id, now.after(KNOWN_FOR));
        }
        Ok(is_known)
    }

    /// Takes account of the end of an attempt of this call.
    pub(super) fn note_end(self: &Arc<Self>, call: &Call, head: &Head) {
        if head.is_refused() {
            let peer = call.unverified.as_ref().map(|unverified| unverified.peer);
            self.capacity.add_refused(peer, self.clock.now());
        } else if self.capacity.note_known(&call.scope, head) {
            let (engine, timeout) = (Arc::downgrade(self), call.policy.store_timeout);
            tokio::spawn(async move {
                tokio::time::sleep(GATHER).await;
                if let Some(engine) = engine.upgrade() {
                    engine.write_known(timeout).await;
                }
            });
        }
    }

    /// Writes the known principals to the store. After a failure this node forgets them too, so
    /// that they are written with their next record.
    async fn write_known(&self, timeout: Duration) {
        let unwritten = std::mem::take(&mut *self.capacity.unwritten.lock());
        if self
            .ask_in(timeout, self.store.remember(unwritten.clone()))
            .await
            .is_err()
        {
            for known in unwritten {
                self.capacity.known.remove(&known.id);
            }
        }
    }
}

/// The number of refused records that each peer has made in the last ten to twenty minutes.
#[derive(Default)]
struct RefusedBy {
    since: Option<Instant>,
    latest: HashMap<PeerId, u64>,
    before: HashMap<PeerId, u64>,
    /// The shared counts of peers beyond `PEERS_MAX`.
    others: [u64; 2],
}

impl RefusedBy {
    fn add(&mut self, peer: PeerId, now: Instant) {
        self.pass(now);
        let is_room = self.latest.len() < PEERS_MAX;
        match self.latest.get_mut(&peer) {
            Some(count) => *count += 1,
            None if is_room => drop(self.latest.insert(peer, 1)),
            None => self.others[0] += 1,
        }
    }

    fn count(&mut self, peer: PeerId, now: Instant) -> u64 {
        self.pass(now);
        let of = |counts: &HashMap<PeerId, u64>, others: u64| {
            counts
                .get(&peer)
                .copied()
                .unwrap_or(if counts.len() < PEERS_MAX { 0 } else { others })
        };
        of(&self.latest, self.others[0]) + of(&self.before, self.others[1])
    }

    fn pass(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(*self.since.get_or_insert(now));
        if elapsed < REFUSED_FOR {
            return;
        }
        self.since = Some(now);
        self.before = if elapsed < REFUSED_FOR * 2 {
            std::mem::take(&mut self.latest)
        } else {
            HashMap::new()
        };
        self.others = [
            0,
            if elapsed < REFUSED_FOR * 2 {
                self.others[0]
            } else {
                0
            },
        ];
        self.latest.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: PeerId = [1; 16];
    const BOB: PeerId = [2; 16];

    fn capacity(records_max: u64, refused_records_max: u64) -> Capacity {
        let (records_max, refused_records_max) = (Some(records_max), Some(refused_records_max));
        Capacity::new(Quotas {
            records_max,
            refused_records_max,
            ..Quotas::default()
        })
    }

    #[test]
    fn the_last_tenth_is_for_known_principals() {
        let capacity = capacity(20, 10);
        let space_at = |records: u64| {
            capacity.records.store(records, Ordering::Relaxed);
            capacity.space()
        };
        assert!(space_at(17) == Space::Anybody);
        assert!(space_at(18) == Space::KnownPrincipals && space_at(19) == Space::KnownPrincipals);
        assert!(space_at(20) == Space::Nobody && space_at(21) == Space::Nobody);
        capacity.set_quotas(Quotas::default());
        assert!(
            space_at(1 << 40) == Space::Anybody,
            "without a limit there is none"
        );
    }

    #[test]
    fn only_a_peer_with_more_than_its_part_is_over() {
        let capacity = capacity(1_000, 200);
        let now = Instant::now();
        (0..199).for_each(|_| capacity.add_refused(Some(ANN), now));
        assert!(!capacity.is_over(ANN, now), "there is room for all");
        capacity.add_refused(Some(BOB), now);
        assert!(
            capacity.is_over(ANN, now) && !capacity.is_over(BOB, now),
            "one of two hundred is within a hundredth"
        );
        capacity.add_refused(Some(BOB), now);
        assert!(capacity.is_over(BOB, now));
        assert!(
            !capacity.is_over(ANN, now + REFUSED_FOR * 2),
            "what it made is gone by now"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn peers_beyond_the_limit_share_a_count() {
        let (mut counts, now) = (RefusedBy::default(), Instant::now());
        let peer = |number: usize| {
            let mut peer = [9; 16];
            peer[..8].copy_from_slice(&number.to_be_bytes());
            peer
        };
        (0..PEERS_MAX + 10).for_each(|number| counts.add(peer(number), now));
        assert_eq!(counts.latest.len(), PEERS_MAX);
        assert_eq!(
            (
                counts.count(peer(0), now),
                counts.count(peer(PEERS_MAX + 5), now)
            ),
            (1, 10)
        );
    }
}
