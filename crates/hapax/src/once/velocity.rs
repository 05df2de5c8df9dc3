//! Velocity: limits how many new keys there may be in a time, with token buckets that each node
//! keeps for itself.
//!
//! A bucket holds as many tokens as its rule allows keys, and is filled evenly over the rule's
//! time. Only new keys take a token: a claim that finds a record gives its token back.
//!
//! For each bucket, only the time at which it will be full again is kept. A full bucket is the same
//! as none, so only full buckets are dropped to make room. If none is full, a new bucket is
//! refused: otherwise a caller that sends many values would gain tokens by having old buckets
//! dropped.
//!
//! So that no caller can fill all buckets and have the others refused, one principal's new keys may
//! open at most a quarter of them. All strangers together (unverified callers without a known
//! principal), who are counted by their peer, may open at most a half.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use hapax_core::policy::{Part, Velocity};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::hash::Ids;

/// How many principals it takes at least to use all buckets.
const OWNERS_MIN: usize = 4;

/// A rule and a value for which a new key counts.
#[derive(Clone, Copy)]
pub(crate) struct Counted {
    bucket: Bucket,
    owner: Owner,
    /// Whether the caller is a stranger: unverified, and its principal is not known.
    is_stranger: bool,
    /// The time in which one token is added, in nanoseconds.
    interval: u64,
    /// The time in which an empty bucket is filled, in nanoseconds.
    whole: u64,
}

/// A digest of the rule, its place, and the value. A reload of the same rule finds the same bucket.
type Bucket = [u8; 16];

/// A digest of the principal whose new key opened a bucket, or of the peer if the principal is a
/// stranger.
type Owner = [u8; 16];

impl Counted {
    pub(crate) fn new(rule: &Velocity, within: &[&str], owner: [u8; 32], value: [u8; 32]) -> Self {
        let (by, keys, per) = (
            rule.by.to_string(),
            rule.keys.to_be_bytes(),
            rule.per.as_nanos().to_be_bytes(),
        );
        let within = within.iter().map(|name| name.as_bytes());
        let digest = Part::digest_of(within.chain([by.as_bytes(), &keys, &per, &value]));
        let interval = nanos(rule.per / rule.keys.max(1)).max(1);
        let short = |digest: &[u8; 32]| digest.first_chunk().copied().expect("a digest has more");
        let (bucket, owner) = (short(&digest), short(&owner));
        Counted {
            bucket,
            owner,
            is_stranger: false,
            interval,
            whole: interval.saturating_mul(u64::from(rule.keys)),
        }
    }

    /// The same for a stranger, whose peer is the owner.
    pub(crate) fn of_stranger(self) -> Self {
        Counted {
            is_stranger: true,
            ..self
        }
    }
}

/// In nanoseconds. A duration of more than 584 years does not fit, and becomes 146 years.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4)
}

pub(crate) struct Velocities {
    began: Instant,
    entries_max: usize,
    inside: Mutex<Buckets>,
}

/// The buckets that are not full: when each will be full, and in which order.
#[derive(Default)]
struct Buckets {
    full_at: HashMap<Bucket, Open, Ids>,
    in_order: BTreeSet<(u64, Bucket)>,
    /// How many buckets each principal has opened.
    owned: HashMap<Owner, usize, Ids>,
    /// How many buckets strangers have opened.
    strangers: usize,
}

/// A bucket that is not full.
struct Open {
    full_at: u64,
    owner: Owner,
    is_stranger: bool,
}

/// Taken tokens. They are given back unless they are spent.
pub(crate) struct Taken {
    velocities: Arc<Velocities>,
    counted: Arc<[Counted]>,
}

impl Taken {
    /// Spends the tokens, because the key was new.
    pub(crate) fn spend(mut self) {
        self.counted = Arc::new([]);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if !self.counted.is_empty() {
            let mut buckets = self.velocities.lock();
            self.counted
                .iter()
                .for_each(|counted| buckets.give_back(counted));
        }
    }
}

impl Velocities {
    pub(crate) fn new(entries_max: usize) -> Self {
        Velocities {
            began: Instant::now(),
            entries_max,
            inside: Mutex::default(),
        }
    }

    /// Takes a token from each bucket. If one of them has none, takes none and returns the time
    /// until all have one.
    pub(crate) fn take(
        self: &Arc<Self>,
        counted: &Arc<[Counted]>,
        now: Instant,
    ) -> Result<Taken, Duration> {
        if !counted.is_empty() {
            let now = nanos(now.saturating_duration_since(self.began));
            let mut buckets = self.lock();
            buckets.make_room(counted, self.entries_max, now)?;
            let wait = counted
                .iter()
                .map(|counted| buckets.wait(counted, now))
                .max()
                .unwrap_or_default();
            if wait > 0 {
                return Err(Duration::from_nanos(wait));
            }
            counted
                .iter()
                .for_each(|counted| buckets.take(counted, now));
        }
        Ok(Taken {
            velocities: self.clone(),
            counted: counted.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Buckets> {
        self.inside.lock()
    }
}

impl Buckets {
    /// Drops full buckets, and checks that there is room for these. If not, returns when to try
    /// again.
    fn make_room(
        &mut self,
        counted: &[Counted],
        entries_max: usize,
        now: u64,
    ) -> Result<(), Duration> {
        while let Some(&(full_at, bucket)) = self.in_order.first()
            && full_at <= now
        {
            self.drop_full(full_at, bucket);
        }
        let new = || {
            counted
                .iter()
                .filter(|counted| !self.full_at.contains_key(&counted.bucket))
        };
        let (Some(first), count) = (new().next(), new().count()) else {
            return Ok(());
        };
        if self.full_at.len() + count > entries_max {
            let next = self
                .in_order
                .first()
                .map_or(first.interval, |(full_at, _)| full_at - now);
            return Err(Duration::from_nanos(next));
        }
        let theirs = self.owned.get(&first.owner).copied().unwrap_or_default();
        let is_too_strange = first.is_stranger && self.strangers + count > entries_max.div_ceil(2);
        if is_too_strange || theirs + count > entries_max.div_ceil(OWNERS_MIN) {
            return Err(Duration::from_nanos(first.interval));
        }
        Ok(())
    }

    fn drop_full(&mut self, full_at: u64, bucket: Bucket) {
        self.in_order.remove(&(full_at, bucket));
        let Some(Open {
            owner, is_stranger, ..
        }) = self.full_at.remove(&bucket)
        else {
            return;
        };
        self.strangers -= usize::from(is_stranger);
        let owned = self.owned.entry(owner).or_default();
        *owned = owned.saturating_sub(1);
        if *owned == 0 {
            self.owned.remove(&owner);
        }
    }

    fn full_at(&self, counted: &Counted, now: u64) -> u64 {
        self.full_at
            .get(&counted.bucket)
            .map_or(now, |open| open.full_at.max(now))
    }

    /// The time until the bucket has a token.
    fn wait(&self, counted: &Counted, now: u64) -> u64 {
        self.full_at(counted, now)
            .saturating_add(counted.interval)
            .saturating_sub(now.saturating_add(counted.whole))
    }

    fn take(&mut self, counted: &Counted, now: u64) {
        let full_at = self.full_at(counted, now);
        self.set(counted, full_at.saturating_add(counted.interval));
    }

    fn give_back(&mut self, counted: &Counted) {
        if let Some(open) = self.full_at.get(&counted.bucket) {
            self.set(counted, open.full_at.saturating_sub(counted.interval));
        }
    }

    fn set(&mut self, counted: &Counted, full_at: u64) {
        let Counted {
            bucket,
            owner,
            is_stranger,
            ..
        } = *counted;
        match self.full_at.get_mut(&bucket) {
            Some(open) => {
                self.in_order.remove(&(open.full_at, bucket));
                open.full_at = full_at;
            }
            None => {
                self.full_at.insert(
                    bucket,
                    Open {
                        full_at,
                        owner,
                        is_stranger,
                    },
                );
                self.strangers += usize::from(is_stranger);
                *self.owned.entry(owner).or_default() += 1;
            }
        }
        self.in_order.insert((full_at, bucket));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn counted(value: u8) -> Arc<[Counted]> {
        let rule = Velocity {
            by: Part::Principal,
            keys: 3,
            per: SECOND * 3,
        };
        Arc::new([Counted::new(&rule, &["shop"], [value; 32], [value; 32])])
    }

    fn spend(velocities: &Arc<Velocities>, value: u8, at: Instant) -> Result<(), Duration> {
        velocities.take(&counted(value), at).map(Taken::spend)
    }

    #[test]
    fn a_bucket_gives_what_it_holds_and_then_what_comes() {
        let velocities = Arc::new(Velocities::new(10));
        let start = Instant::now();
        for _ in 0..3 {
            spend(&velocities, 1, start).unwrap();
        }
        let early = spend(&velocities, 1, start).unwrap_err();
        assert_eq!(early, SECOND, "the next token comes in a third of the time");
        assert_eq!(
            spend(&velocities, 2, start),
            Ok(()),
            "another value has its own"
        );
        assert_eq!(spend(&velocities, 1, start + early), Ok(()));
        assert!(spend(&velocities, 1, start + early).is_err());
        // After any time without requests, the bucket holds no more than its capacity.
        let later = start + SECOND * 3_600;
        assert_eq!(
            (0..10)
                .filter(|_| spend(&velocities, 1, later).is_ok())
                .count(),
            3
        );
    }

    #[test]
    fn tokens_that_are_not_spent_are_given_back() {
        let velocities = Arc::new(Velocities::new(10));
        let now = Instant::now();
        for _ in 0..100 {
            drop(velocities.take(&counted(1), now).unwrap());
        }
        let held: Vec<_> = (0..3)
            .map(|_| velocities.take(&counted(1), now).unwrap())
            .collect();
        assert!(
            velocities.take(&counted(1), now).is_err(),
            "what is held is nobody else's"
        );
        drop(held);
        assert!(velocities.take(&counted(1), now).is_ok());
    }

    #[test]
    fn a_token_of_each_rule_or_of_none() {
        let velocities = Arc::new(Velocities::new(10));
        let now = Instant::now();
        let both: Arc<[Counted]> = [counted(1)[0], counted(2)[0]].into();
        for _ in 0..3 {
            spend(&velocities, 2, now).unwrap();
        }
        assert!(velocities.take(&both, now).is_err());
        assert_eq!(
            (0..10)
                .filter(|_| spend(&velocities, 1, now).is_ok())
                .count(),
            3,
            "none was taken of the first"
        );
    }

    #[test]
    fn the_buckets_are_bounded_and_only_full_ones_are_dropped() {
        let velocities = Arc::new(Velocities::new(2));
        let start = Instant::now();
        spend(&velocities, 1, start).unwrap();
        spend(&velocities, 2, start).unwrap();
        spend(&velocities, 2, start).unwrap();
        // Neither bucket is full: dropping one would give its value new tokens.
        let wait = spend(&velocities, 3, start).unwrap_err();
        assert_eq!(wait, SECOND, "until the first is full");
        assert_eq!(spend(&velocities, 3, start + wait), Ok(()));
        assert_eq!(velocities.lock().full_at.len(), 2);
        assert_eq!(velocities.lock().in_order.len(), 2);
        // The bucket that was not full was kept: it has two tokens by now.
        assert_eq!(
            (0..10)
                .filter(|_| spend(&velocities, 2, start + wait).is_ok())
                .count(),
            2
        );
    }

    #[test]
    fn the_same_rule_has_the_same_bucket_and_another_does_not() {
        let rule = |keys, per| Velocity {
            by: Part::Principal,
            keys,
            per,
        };
        let bucket = |rule: &Velocity, within: &[&str], value| {
            Counted::new(rule, within, [0; 32], [value; 32]).bucket
        };
        let first = bucket(&rule(3, SECOND), &["shop", "pay"], 1);
        assert_eq!(first, bucket(&rule(3, SECOND), &["shop", "pay"], 1));
        for other in [
            bucket(&rule(4, SECOND), &["shop", "pay"], 1),
            bucket(&rule(3, SECOND * 2), &["shop", "pay"], 1),
            bucket(&rule(3, SECOND), &["shop", "refund"], 1),
            bucket(&rule(3, SECOND), &["shop", "pay"], 2),
            bucket(
                &Velocity {
                    by: Part::Header("x".into()),
                    ..rule(3, SECOND)
                },
                &["shop", "pay"],
                1,
            ),
        ] {
            assert_ne!(first, other);
        }
    }

    #[test]
    fn nobody_fills_all_the_buckets() {
        let velocities = Arc::new(Velocities::new(8));
        let now = Instant::now();
        let rule = Velocity {
            by: Part::Header("x-card".into()),
            keys: 3,
            per: SECOND * 3,
        };
        let spend = |owner: u8, value: u8| {
            let counted: Arc<[Counted]> =
                Arc::new([Counted::new(&rule, &["shop"], [owner; 32], [value; 32])]);
            velocities.take(&counted, now).map(Taken::spend)
        };
        let eves = (0..100).filter(|value| spend(1, *value).is_ok()).count();
        assert_eq!(eves, 2, "a quarter");
        assert_eq!(spend(1, 0), Ok(()), "what she has opened is hers to use");
        assert_eq!(spend(2, 200), Ok(()), "and there is room for others");
        let later = now + SECOND * 10;
        let counted: Arc<[Counted]> = Arc::new([Counted::new(&rule, &["shop"], [1; 32], [99; 32])]);
        assert!(
            velocities.take(&counted, later).is_ok(),
            "full ones count for nobody"
        );
        assert!(velocities.lock().owned.len() <= 1);
    }

    #[test]
    fn strangers_leave_half_of_the_buckets_to_others() {
        let velocities = Arc::new(Velocities::new(8));
        let now = Instant::now();
        let spend = |value: u8, is_stranger: bool| {
            let counted = counted(value)[0];
            let counted: Arc<[Counted]> = Arc::new([if is_stranger {
                counted.of_stranger()
            } else {
                counted
            }]);
            velocities.take(&counted, now).map(Taken::spend)
        };
        assert_eq!(
            (0..100).filter(|value| spend(*value, true).is_ok()).count(),
            4
        );
        assert_eq!(
            (100..200)
                .filter(|value| spend(*value, false).is_ok())
                .count(),
            4
        );
        let later = now + SECOND * 10;
        let stranger: Arc<[Counted]> = Arc::new([counted(7)[0].of_stranger()]);
        assert_eq!(velocities.take(&stranger, later).map(Taken::spend), Ok(()));
        assert_eq!(velocities.lock().strangers, 1, "full ones count for nobody");
    }
}
