//! The record: what is remembered of one scope and key.

use std::fmt;
use std::sync::Arc;

use crate::answer::Answer;
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::outcome::{Loss, REFUSED_FOR};
use crate::request_id::RequestId;
use crate::scope::{RecordId, Scope};
use crate::time::Timestamp;

/// The number of an attempt. For one scope and key it only ever grows, and stays below 2^53 so that
/// any language can compare it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Fence(u64);

impl Fence {
    /// Below every fence a store mints.
    pub const ZERO: Fence = Fence(0);

    /// A fence read back from a store or a header.
    pub const fn from_u64(number: u64) -> Fence {
        Fence(number)
    }

    /// The number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The next fence: above the previous one of this record, above everything the store has
    /// removed, and near the store's clock, so that it grows even where nothing of the past is
    /// left.
    pub fn mint(previous: Fence, floor: Fence, now: Timestamp) -> Fence {
        let fence = (previous.0.max(floor.0) + 1).max(now.as_micros());
        assert!(
            fence < 1 << 53,
            "fences outgrew 2^53: the store's clock is wrong"
        );
        Fence(fence)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who made a claim. A driver may re-send a claim whose reply was lost; "exists with my token" then
/// means mine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct AttemptToken([u8; 16]);

impl AttemptToken {
    /// A token from a good source of randomness, which this crate does not have.
    pub const fn from_bytes(bytes: [u8; 16]) -> AttemptToken {
        AttemptToken(bytes)
    }

    /// The token as a store keeps it.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Where a record stands. See the table in `docs/concepts.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// An attempt holds a lease. Once the lease is over it counts as [`State::Unknown`].
    Running,
    /// The effect is done.
    Completed,
    /// A definitive refusal.
    Failed,
    /// The attempt ended and is known not to count.
    Retryable,
    /// The attempt was lost after it may have had its effect.
    Unknown,
    /// A tombstone: retention is over, or an operator had the record forgotten.
    Expired(Last),
}

/// What a tombstone remembers of the record it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Last {
    /// The effect was done.
    Completed,
    /// It was definitively refused.
    Failed,
    /// It is known not to have happened.
    Retryable,
    /// Nobody ever found out.
    Unknown,
}

impl State {
    /// The word for it, as commands and metrics print it.
    pub const fn word(self) -> &'static str {
        match self {
            State::Running => "running",
            State::Completed => "completed",
            State::Failed => "failed",
            State::Retryable => "retryable",
            State::Unknown => "unknown",
            State::Expired(_) => "expired",
        }
    }

    /// What to list every state [without a known end](State::is_open) by, instead of by its word:
    /// all that somebody may have to look into.
    pub const OPEN: &str = "open";

    /// Whether it is what a listing by this word asks for.
    pub fn is_called(self, word: &str) -> bool {
        word == self.word() || (word == State::OPEN && self.is_open())
    }

    /// Whether its end is not known: no time removes such a record, as that would turn "nobody
    /// knows" into "never happened".
    pub const fn is_open(self) -> bool {
        matches!(
            self,
            State::Running | State::Unknown | State::Expired(Last::Unknown)
        )
    }

    /// What a tombstone remembers of it.
    pub const fn last(self) -> Last {
        match self {
            State::Completed => Last::Completed,
            State::Failed => Last::Failed,
            State::Retryable => Last::Retryable,
            State::Running | State::Unknown => Last::Unknown,
            State::Expired(last) => last,
        }
    }
}

impl Last {
    /// The word for it, as problem bodies print it.
    pub const fn word(self) -> &'static str {
        match self {
            Last::Completed => "completed",
            Last::Failed => "failed",
            Last::Retryable => "retryable",
            Last::Unknown => "unknown",
        }
    }
}

/// The small part of a record: all that deciding needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The record's name in its store.
    pub id: RecordId,
    /// Whose record, for which operation.
    pub scope: Arc<Scope>,
    /// The caller's key.
    pub key: Key,
    /// Where it stands.
    pub state: State,
    /// The number of the latest attempt.
    pub fence: Fence,
    /// Who made the latest claim.
    pub token: AttemptToken,
    /// Counts every write; what an operator's change is conditional on.
    pub version: u64,
    /// How many attempts were begun.
    pub attempts: u32,
    /// Until when the attempt may run, by the store's clock. Means nothing unless running.
    pub lease_until: Timestamp,
    /// What the first request looked like. `None` only in a tombstone left by `forget`.
    pub fingerprint: Option<Fingerprint>,
    /// When the key was first claimed.
    pub created_at: Timestamp,
    /// When the latest attempt was claimed.
    pub claimed_at: Timestamp,
    /// When the latest terminal write was made.
    pub finished_at: Timestamp,
    /// When replay ends. Means nothing while running.
    pub expires_at: Timestamp,
    /// When the tombstone goes. Means nothing while running.
    pub tombstone_until: Timestamp,
    /// The status the effect was answered with, kept or not; from 1000 on, why the attempt was
    /// lost. [`Head::answered`] and [`Head::loss`] tell which.
    pub status: Option<u16>,
    /// Whether the answer was kept.
    pub kept: bool,
    /// The id of the request that made the latest attempt. Each claim sets it, whether it is the
    /// first or not, and nothing else changes it: a replay does not, nor does any end. Only
    /// `forget` erases it. `None` in records from before, and where the caller had none.
    pub request_id: Option<RequestId>,
}

/// A record whole: the head, and the answer where one was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// All that deciding needs.
    pub head: Head,
    /// What a replay sends. `Some` iff `head.kept`.
    pub answer: Option<Arc<Answer>>,
}

impl Head {
    /// The state as it is at `now`, whether or not a sweep has come by to write it down.
    pub fn state_at(&self, now: Timestamp) -> State {
        match self.state {
            State::Running if self.lease_until <= now => State::Unknown,
            State::Running => State::Running,
            finished if self.expires_at <= now => State::Expired(finished.last()),
            finished => finished,
        }
    }

    /// Whether somebody has to find out what became of it, and can still say so; `state` is what a
    /// reading tells. Of what was forgotten nothing can be said any more: without a fingerprint a
    /// settled answer could be replayed to anybody who guesses the key.
    pub fn is_unresolved(&self, state: State) -> bool {
        matches!(state, State::Unknown | State::Expired(Last::Unknown))
            && self.fingerprint.is_some()
    }

    /// The HTTP status of the service's answer, if it gave one.
    pub fn answered(&self) -> Option<u16> {
        match Loss::from_code(self.status) {
            Loss::Answered(status) => Some(status),
            Loss::NotJoined(status) => status,
            _ => None,
        }
    }

    /// Why nobody knows what became of the latest attempt; `state` is what a reading tells. `None`
    /// where somebody does, or will.
    pub fn loss(&self, state: State) -> Option<Loss> {
        matches!(state, State::Unknown | State::Expired(Last::Unknown))
            .then(|| Loss::from_code(self.status))
    }

    /// The head as a reader sees it at `now`: past its retention it is a tombstone and its answer
    /// is gone, by the time alone. Nobody has to write that down, so that a store may drop answers
    /// in bulk and leave heads as they are.
    #[must_use]
    pub fn at(self, now: Timestamp) -> Head {
        match self.state_at(now) {
            state @ State::Expired(_) => Head {
                state,
                kept: false,
                ..self
            },
            _ => self,
        }
    }

    /// Whether the last attempt that ended left the record for no longer than [`REFUSED_FOR`],
    /// without a tombstone.
    pub(crate) fn was_short_lived(&self) -> bool {
        self.finished_at != Timestamp::ZERO
            && self.tombstone_until == self.expires_at
            && self.expires_at <= self.finished_at.after(REFUSED_FOR)
    }

    /// Whether 401 or 403 is all that came of the key, so that the record is kept for
    /// [`REFUSED_FOR`] only.
    pub fn is_refused(&self) -> bool {
        self.state == State::Retryable
            && matches!(self.status, Some(401 | 403))
            && self.was_short_lived()
    }

    /// Whether the record is as good as absent: its tombstone is over. One that was never resolved
    /// stays for good.
    pub fn is_gone(&self, now: Timestamp) -> bool {
        !self.state_at(now).is_open() && self.tombstone_until <= now
    }
}
