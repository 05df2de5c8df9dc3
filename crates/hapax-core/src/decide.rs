//! The decision: what to do with a request, given what is remembered.
//!
//! `decide` proposes; the [`Condition`] decides, inside the store, by the store's clock. Acting on
//! a stale reading therefore costs a round trip and never an effect: the losing write comes back
//! with the current record, and `decide` is asked again.

use std::time::Duration;

use crate::fingerprint::Fingerprint;
use crate::outcome::Loss;
use crate::policy::{Mode, Policy};
use crate::record::{Head, Last, State};
use crate::rejection::Rejection;
use crate::store::Condition;
use crate::time::Timestamp;

/// What a request asks, as far as deciding goes.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    /// The request's fingerprint, made under the policy stored in the record where there is one.
    pub fingerprint: &'a Fingerprint,
    /// The caller wants nothing begun after this (`Idempotency-Deadline`).
    pub deadline: Option<Timestamp>,
    /// The key is a token that may begin nothing after this.
    pub token_until: Option<Timestamp>,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Claim a new attempt under this condition.
    Attempt(Condition),
    /// Send the stored answer.
    Replay,
    /// An attempt is running: wait for it, or tell the caller to come back.
    Wait,
    /// The attempt's lease is over: write down that it is lost, under this condition, then say so.
    WriteLost(Condition),
    /// Answer with this.
    Reject(Rejection),
}

/// How far the clock of a caller who sets a deadline may be from ours.
pub const DEADLINE_TOLERANCE: Duration = Duration::from_secs(5);

/// Decides what to do with a request. `now` is by the clock of the store the record was read from.
pub fn decide(record: Option<&Head>, ask: &Ask<'_>, now: Timestamp, policy: &Policy) -> Decision {
    let Some(head) = record.filter(|head| !head.is_gone(now)) else {
        return attempt(Condition::Absent, ask, now);
    };
    let state = head.state_at(now);

    match &head.fingerprint {
        // Only `forget` leaves no fingerprint: nothing to compare with, nothing to tell.
        None => {
            return Decision::Reject(Rejection::KeyExpired {
                last: Some(state.last()),
                is_forgotten: true,
            });
        }
        // Before everything else: another request learns nothing of this record, not even its
        // state.
        Some(first) if first != ask.fingerprint => return Decision::Reject(Rejection::KeyReused),
        Some(_) => {}
    }

    let lapsed = Condition::Lapsed { fence: head.fence };
    let may_try_again = head.attempts < policy.attempts_max;
    match state {
        State::Running => Decision::Wait,
        State::Completed | State::Failed if head.kept => Decision::Replay,
        State::Completed | State::Failed => Decision::Reject(Rejection::AnswerNotKept {
            status: head.answered(),
            at: head.finished_at,
        }),
        State::Retryable if may_try_again => attempt(lapsed, ask, now),
        State::Retryable => Decision::Reject(Rejection::AttemptsExhausted),
        // Too late to begin another is not "nothing was begun": the lost one may have had its
        // effect.
        State::Unknown
            if may_follow(head, policy.mode)
                && may_try_again
                && attempt(lapsed, ask, now) == Decision::Attempt(lapsed) =>
        {
            Decision::Attempt(lapsed)
        }
        State::Unknown if head.state == State::Running => Decision::WriteLost(lapsed),
        State::Unknown => Decision::Reject(Rejection::OutcomeUnknown),
        State::Expired(Last::Unknown) => Decision::Reject(Rejection::OutcomeUnknown),
        State::Expired(last) => Decision::Reject(Rejection::KeyExpired {
            last: Some(last),
            is_forgotten: false,
        }),
    }
}

/// Whether a lost attempt may be followed by another. One that was answered as done, though not in
/// the transaction of its effect, was not lost: there is nothing that was rolled back.
fn may_follow(head: &Head, mode: Mode) -> bool {
    match mode {
        Mode::Hold => false,
        Mode::Transaction => !head
            .loss(State::Unknown)
            .is_some_and(Loss::may_be_done_outside),
        Mode::Rerun | Mode::Fenced | Mode::Probe => true,
    }
}

/// Begin, unless it is too late to begin.
fn attempt(condition: Condition, ask: &Ask<'_>, now: Timestamp) -> Decision {
    if ask
        .deadline
        .is_some_and(|deadline| deadline.after(DEADLINE_TOLERANCE) < now)
    {
        return Decision::Reject(Rejection::DeadlinePassed);
    }
    if ask.token_until.is_some_and(|until| until < now) {
        return Decision::Reject(Rejection::KeyExpired {
            last: None,
            is_forgotten: false,
        });
    }
    Decision::Attempt(condition)
}

#[cfg(test)]
mod tests;
