//! Room for new keys: how many records a store may hold, and for whom the last of it is kept.
//!
//! The store counts its records, and every node reads the counts with the store info, once a second at
//! most. In between a node adds what it has begun itself. So a limit may be passed by what all
//! nodes begin in about a second; no record is ever removed to make room.
//!
//! A caller whose credential nobody has checked can be anybody: forged credentials make as many
//! principals as somebody likes. Such a caller is a *stranger* until one of its operations has been
//! answered with 2xx. The store remembers the principals of whom that is true, as long as they have
//! such a record and up to a day longer; a node writes this down once per principal and day.

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

/// The part of all records that only principals with records may begin: a tenth.
const RESERVED_PART: u64 = 10;
/// The part of all refused records that one peer may have while there are too many: a hundredth.
const PEER_PART: u64 = 100;
/// Peers that are counted one by one; those that come after share a count.
const PEERS_MAX: usize = 65_536;
/// Principals that are known without asking the store.
const KNOWN_MAX: usize = 10_000;
/// Principals that wait to be written down; the others are noticed again with their next record.
const UNWRITTEN_MAX: usize = 10_000;
/// How long the store is told that a principal is known, beyond the life of its record: it is
/// written again when that is used up.
const KNOWN_LONGER: Duration = Duration::from_secs(24 * 60 * 60);
/// How long what the store says of a principal is believed.
const KNOWN_FOR: Duration = Duration::from_secs(60);
/// How long known principals are gathered before they are written down together.
const GATHER: Duration = Duration::from_secs(1);
/// When a stranger may ask again whose peer has made too many refused records.
const COME_BACK: Duration = Duration::from_secs(60);

pub(crate) struct Capacity {
    records_max: AtomicU64,
    refused_max: AtomicU64,
    /// What the store counted last, and what this node has begun since.
    records: AtomicU64,
    refused: AtomicU64,
    /// The store's time of that count, in microseconds.
    now: AtomicU64,
    refused_by: Mutex<RefusedBy>,
    /// Until when a principal is known, by the store's clock.
    known: quick_cache::sync::Cache<PrincipalId, Timestamp>,
    unwritten: Mutex<Vec<KnownPrincipal>>,
}

/// Who may begin a new key, as far as the number of records goes.
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

    /// What the store has counted.
    pub(super) fn learn(&self, info: &StoreInfo) {
        let Counts { records, refused } = info.counts.unwrap_or_default();
        self.records.store(records, Ordering::Relaxed);
        self.refused.store(refused, Ordering::Relaxed);
        self.now.store(info.now.as_micros(), Ordering::Relaxed);
    }

    /// One more record, begun here.
    pub(super) fn add_record(&self) {
        self.records.fetch_add(1, Ordering::Relaxed);
    }

    /// An attempt ended here in a record that is kept only because its caller was refused.
    pub(super) fn add_refused(&self, peer: Option<PeerId>) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        if let Some(peer) = peer {
            self.refused_by.lock().add(peer, Instant::now());
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

    /// Whether there are too many refused records, and this peer has more of them than its part.
    fn is_over(&self, peer: PeerId) -> bool {
        let max = self.refused_max.load(Ordering::Relaxed);
        self.refused.load(Ordering::Relaxed) >= max
            && self.refused_by.lock().count(peer, Instant::now()) >= (max / PEER_PART).max(1)
    }

    fn store_now(&self) -> Timestamp {
        Timestamp::from_micros(self.now.load(Ordering::Relaxed))
    }

    /// Notes that a principal has a completed record. Returns whether somebody has to begin writing
    /// such notes down.
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
    /// Whether there is room for a new key of this caller. Says whether the caller is a stranger,
    /// where that matters; the store is asked only then.
    pub(super) async fn find_room(&self, call: &Call) -> Result<bool, Rejection> {
        let space = self.capacity.space();
        if space == Space::Nobody {
            return Err(Rejection::StoreFull);
        }
        let is_peer_over = call
            .unverified
            .as_ref()
            .is_some_and(|unverified| self.capacity.is_over(unverified.peer));
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

    /// Takes note of what an attempt of this call has ended in.
    pub(super) fn note_end(self: &Arc<Self>, call: &Call, head: &Head) {
        if head.is_refused() {
            self.capacity
                .add_refused(call.unverified.as_ref().map(|unverified| unverified.peer));
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

    /// Writes down who is known. What fails is forgotten here too, so that it is written after the
    /// next record.
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

/// How many refused records each peer has made in the last ten to twenty minutes.
#[derive(Default)]
struct RefusedBy {
    since: Option<Instant>,
    latest: HashMap<PeerId, u64>,
    before: HashMap<PeerId, u64>,
    /// Of peers that came when there were too many of them.
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

    #[tokio::test(start_paused = true)]
    async fn only_a_peer_with_more_than_its_part_is_over() {
        let capacity = capacity(1_000, 200);
        (0..199).for_each(|_| capacity.add_refused(Some(ANN)));
        assert!(!capacity.is_over(ANN), "there is room for all");
        capacity.add_refused(Some(BOB));
        assert!(
            capacity.is_over(ANN) && !capacity.is_over(BOB),
            "one of two hundred is within a hundredth"
        );
        capacity.add_refused(Some(BOB));
        assert!(capacity.is_over(BOB));
        tokio::time::advance(REFUSED_FOR * 2).await;
        assert!(!capacity.is_over(ANN), "what it made is gone by now");
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
