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

    /// The next fence. It is above the previous fence of this record and above every fence the
    /// store has removed. It is also at least the store's time, so that it grows even if a store
    /// has lost all its fences.
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

/// Identifies who made a claim. A driver may re-send a claim whose reply was lost; a record with
/// the driver's own token is then the driver's own claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct AttemptToken([u8; 16]);

impl AttemptToken {
    /// A token from 16 random bytes. This crate has no source of randomness.
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

/// What a tombstone remembers of the record it replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Last {
    /// The effect was done.
    Completed,
    /// The request was definitively refused.
    Failed,
    /// The effect is known not to have happened.
    Retryable,
    /// The outcome was never resolved.
    Unknown,
}

impl State {
    /// The name of this state in commands and metrics.
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

    /// Whether the end of the attempt is not known. Such a record is never removed by time alone:
    /// that would turn "unknown" into "never happened".
    pub const fn is_open(self) -> bool {
        matches!(
            self,
            State::Running | State::Unknown | State::Expired(Last::Unknown)
        )
    }

    /// What a tombstone remembers of this state.
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

/// Which states a listing includes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StateFilter {
    /// [`State::Running`].
    Running,
    /// [`State::Completed`].
    Completed,
    /// [`State::Failed`].
    Failed,
    /// [`State::Retryable`].
    Retryable,
    /// [`State::Unknown`].
    Unknown,
    /// [`State::Expired`], whatever the record was before.
    Expired,
    /// Every state [without a known end](State::is_open): all records that an operator may have to
    /// look into.
    Open,
}

impl StateFilter {
    /// All of them.
    pub const ALL: [StateFilter; 7] = [
        StateFilter::Running,
        StateFilter::Completed,
        StateFilter::Failed,
        StateFilter::Retryable,
        StateFilter::Unknown,
        StateFilter::Expired,
        StateFilter::Open,
    ];

    /// The name of this filter: that of its state, or `open`.
    pub const fn word(self) -> &'static str {
        match self {
            StateFilter::Running => "running",
            StateFilter::Completed => "completed",
            StateFilter::Failed => "failed",
            StateFilter::Retryable => "retryable",
            StateFilter::Unknown => "unknown",
            StateFilter::Expired => "expired",
            StateFilter::Open => "open",
        }
    }

    /// Whether a listing includes records in this state.
    pub const fn matches(self, state: State) -> bool {
        match self {
            StateFilter::Running => matches!(state, State::Running),
            StateFilter::Completed => matches!(state, State::Completed),
            StateFilter::Failed => matches!(state, State::Failed),
            StateFilter::Retryable => matches!(state, State::Retryable),
            StateFilter::Unknown => matches!(state, State::Unknown),
            StateFilter::Expired => matches!(state, State::Expired(_)),
            StateFilter::Open => state.is_open(),
        }
    }
}

impl Last {
    /// The name of this state in problem bodies.
    pub const fn word(self) -> &'static str {
        match self {
            Last::Completed => "completed",
            Last::Failed => "failed",
            Last::Retryable => "retryable",
            Last::Unknown => "unknown",
        }
    }
}

/// The small part of a record: all that [`decide`](crate::decide::decide) needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The record's name in its store.
    pub id: RecordId,
    /// Namespace, principal and operation.
    pub scope: Arc<Scope>,
    /// The caller's key.
    pub key: Key,
    /// The state as stored. [`Head::state_at`] gives the state at a time.
    pub state: State,
    /// The number of the latest attempt.
    pub fence: Fence,
    /// Who made the latest claim.
    pub token: AttemptToken,
    /// Counts every write. An operator's change is conditional on it.
    pub version: u64,
    /// How many attempts were begun.
    pub attempts: u32,
    /// Until when the attempt may run, by the store's clock. Only valid while running.
    pub lease_until: Timestamp,
    /// The fingerprint of the first request. `None` only in a tombstone left by `forget`.
    pub fingerprint: Option<Fingerprint>,
    /// When the key was first claimed.
    pub created_at: Timestamp,
    /// When the latest attempt was claimed.
    pub claimed_at: Timestamp,
    /// When the latest terminal write was made.
    pub finished_at: Timestamp,
    /// When replay ends. Not valid while running.
    pub expires_at: Timestamp,
    /// When the tombstone ends. Not valid while running.
    pub tombstone_until: Timestamp,
    /// Below 1000, the status of the service's answer, kept or not. From 1000 on, a code for why
    /// the attempt was lost. [`Head::answered`] and [`Head::loss`] decode it.
    pub status: Option<u16>,
    /// Whether the answer was kept.
    pub kept: bool,
    /// The id of the request that made the latest attempt. Each claim sets it; a replay and the end
    /// of an attempt leave it unchanged; `forget` erases it. `None` in records of versions without
    /// request ids, and where the caller had none.
    pub request_id: Option<RequestId>,
}

/// A whole record: the head, and the answer if one was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// All that deciding needs.
    pub head: Head,
    /// What a replay sends. `Some` iff `head.kept`.
    pub answer: Option<Arc<Answer>>,
}

impl Head {
    /// The state at `now`, whether or not a sweep has written it.
    pub fn state_at(&self, now: Timestamp) -> State {
        match self.state {
            State::Running if self.lease_until <= now => State::Unknown,
            State::Running => State::Running,
            finished if self.expires_at <= now => State::Expired(finished.last()),
            finished => finished,
        }
    }

    /// Whether an operator has to find out what became of the attempt and can still settle it.
    /// `state` is the state at the time of reading. A forgotten record cannot be settled: without a
    /// fingerprint, its answer could be replayed to anyone who guesses the key.
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

    /// Why the outcome of the latest attempt is not known. `state` is the state at the time of
    /// reading. `None` if the outcome is known or the attempt is running.
    pub fn loss(&self, state: State) -> Option<Loss> {
        matches!(state, State::Unknown | State::Expired(Last::Unknown))
            .then(|| Loss::from_code(self.status))
    }

    /// The head as a reader sees it at `now`: past its retention it is a tombstone without an
    /// answer. This follows from the time alone, without a write, so a store may drop answers in
    /// bulk and leave heads unchanged.
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

    /// Whether the last attempt that ended left the record with a lifetime of at most
    /// [`REFUSED_FOR`] and without a tombstone.
    pub(crate) fn was_short_lived(&self) -> bool {
        self.finished_at != Timestamp::ZERO
            && self.tombstone_until == self.expires_at
            && self.expires_at <= self.finished_at.after(REFUSED_FOR)
    }

    /// Whether the key's attempts ended only in 401 or 403, so that the record is kept for
    /// [`REFUSED_FOR`] only.
    pub fn is_refused(&self) -> bool {
        self.state == State::Retryable
            && matches!(self.status, Some(401 | 403))
            && self.was_short_lived()
    }

    /// Whether the tombstone is over, so that the record counts as absent. A record that was never
    /// resolved is never gone.
    pub fn is_gone(&self, now: Timestamp) -> bool {
        !self.state_at(now).is_open() && self.tombstone_until <= now
    }
}
