//! The decision: what to do with a request, given the record of its key.
//!
//! `decide` proposes; the [`Condition`] is judged inside the store, by the store's clock. Acting on
//! a stale reading therefore costs a round trip and never a second effect: the losing write returns
//! the current record, and `decide` is called again.

use std::time::Duration;

use crate::fingerprint::Fingerprint;
use crate::outcome::Loss;
use crate::policy::{Mode, Policy};
use crate::record::{Head, Last, State};
use crate::rejection::Rejection;
use crate::store::Condition;
use crate::time::Timestamp;

/// The parts of a request that the decision depends on.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    /// The request's fingerprint, made under the policy stored in the record where there is one.
    pub fingerprint: &'a Fingerprint,
    /// The caller asks that no attempt begin after this time (`Idempotency-Deadline`).
    pub deadline: Option<Timestamp>,
    /// The key is an issued token, which may not begin an attempt after this time.
    pub token_until: Option<Timestamp>,
}

/// What the node does with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Claim a new attempt under this condition.
    Attempt(Condition),
    /// Send the stored answer.
    Replay,
    /// An attempt is running: wait for it, or ask the caller to come back.
    Wait,
    /// The attempt's lease is over: write that it is lost, under this condition, then answer.
    WriteLost(Condition),
    /// Answer with this rejection.
    Reject(Rejection),
}

/// Tolerated difference between the store's clock and the clock of a caller who sets a deadline.
pub const DEADLINE_TOLERANCE: Duration = Duration::from_secs(5);

/// Decides what to do with a request. `now` is by the clock of the store the record was read from.
pub fn decide(record: Option<&Head>, ask: &Ask<'_>, now: Timestamp, policy: &Policy) -> Decision {
    let Some(head) = record.filter(|head| !head.is_gone(now)) else {
        return attempt(Condition::Absent, ask, now);
    };
    let state = head.state_at(now);

    match &head.fingerprint {
        // Only `forget` leaves a record without a fingerprint. There is nothing to compare with.
        None => {
            return Decision::Reject(Rejection::KeyExpired {
                last: Some(state.last()),
                is_forgotten: true,
            });
        }
        // Comes first: a different request must learn nothing about this record, not even its
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
        // If it is too late to begin another attempt, the answer is not `DeadlinePassed`, which
        // says that nothing was begun: the lost attempt may have had its effect.
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

/// Whether a lost attempt may be followed by another. In transaction mode it may not if the service
/// answered as done without joining the transaction: nothing was rolled back.
fn may_follow(head: &Head, mode: Mode) -> bool {
    match mode {
        Mode::Hold => false,
        Mode::Transaction => !head
            .loss(State::Unknown)
            .is_some_and(Loss::may_be_done_outside),
        Mode::Rerun | Mode::Fenced | Mode::Probe => true,
    }
}

/// Begins an attempt, unless the caller's deadline or the token's time has passed.
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
