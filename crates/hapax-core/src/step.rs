//! The steps of a call on one node: what it does next, given what just happened.
//!
//! [`decide`](mod@crate::decide) says what a record means for a request. [`Step::next`] says what
//! the node does about it, from the first question to the store until the end of the attempt is
//! written. A step is one action; it results in one event; the event leads to the next step. The
//! code that performs the steps adds time limits and pauses, but no rules. The model in
//! `tests/model.rs` drives this code through every interleaving of crashing nodes and a network
//! that loses and delays messages; the table in `step/tests.rs` has every pair of step and event.
//!
//! # Before the work
//!
//! | Step | `Seen` | `Won` | `Failed` | `NotAdmitted` |
//! |---|---|---|---|---|
//! | [`Read`](Step::Read) | decide | | reject | |
//! | [`Claim`](Step::Claim) | ours and live: run; ours: release; else decide | run | again, while there is time; else abandon | read, if nothing was read; else reject |
//! | [`Release`](Step::Release) | decide | decide | abandon | |
//! | [`WriteLost`](Step::WriteLost) | decide | decide | reject | |
//!
//! "Decide" leads to `Claim`, `WriteLost`, or an end: [`Replay`](Step::Replay),
//! [`Wait`](Step::Wait), [`Reject`](Step::Reject). [`Abandon`](Step::Abandon) is an end for the
//! caller. The claim may have been written, so it continues as an orphan: the node claims again
//! until the store answers, and releases the claim if it exists. That ends in [`Over`](Step::Over).
//!
//! # From the work on
//!
//! | Step | Event | Next |
//! |---|---|---|
//! | [`Run`](Step::Run) | `Ended` | conclude, if the work completed its record in its own transaction; else write the end |
//! | | `LeaseLost` | [`LetGo`](Step::LetGo): waiting callers ask the store themselves; the work continues |
//! | | `RanTooLong` | [`GiveUp`](Step::GiveUp): written as lost; the work continues and may still complete |
//! | `LetGo`, `GiveUp` | any result | keep running |
//! | [`WriteEnd`](Step::WriteEnd) | `Won` | conclude: written |
//! | | `Seen` | conclude: an earlier try was written, or the work's own transaction, or the attempt lost its fence |
//! | | `Failed` | again, without end; conclude only if the stored record cannot be read |
//!
//! Any other pair is a bug in the code that performs the steps, and panics.

use std::sync::Arc;

use crate::answer::Answer;
use crate::decide::{Ask, Decision, decide};
use crate::outcome::{Loss, Outcome};
use crate::policy::{Mode, Policy};
use crate::record::{AttemptToken, Fence, Head, Record, State};
use crate::rejection::Rejection;
use crate::store::{Change, Condition, Finish, Lifetime, Put, Seen, Won, Written};
use crate::time::Timestamp;

/// What a call does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask the store for the record.
    Read {
        /// The rejection if the read fails: why no attempt can be begun.
        otherwise: Option<Rejection>,
    },
    /// Send a claim.
    Claim {
        /// The claim.
        claiming: Claiming,
        /// The reading on which the claim is based. `None`: the record is assumed to be absent.
        seen: Option<Seen>,
    },
    /// End a claim of this call that never ran: its lease was over when it was found, or its caller
    /// has gone.
    Release {
        /// The claim.
        claiming: Claiming,
        /// Its fence.
        fence: Fence,
    },
    /// Write that an attempt whose lease is over is lost.
    WriteLost(Condition),
    /// Send the stored answer. An end.
    Replay(Seen),
    /// Wait for the attempt that is running. An end.
    Wait(Seen),
    /// Answer with this rejection. An end.
    Reject {
        /// The rejection.
        rejection: Rejection,
        /// The record it is based on. Callers that wait for this one may decide on it for
        /// themselves.
        seen: Option<Seen>,
    },
    /// Answer with this rejection and resolve the claim without the caller. An end.
    Abandon {
        /// The orphaned claim.
        claiming: Claiming,
        /// The rejection.
        rejection: Rejection,
    },
    /// The orphaned claim no longer holds its key. An end.
    Over,
    /// Wait for the work.
    Run(Box<Running>),
    /// Let go of the callers that wait, and keep running.
    LetGo(Box<Running>),
    /// Write that the attempt counts as lost, and keep running.
    GiveUp(Box<Running>),
    /// Write the end of the attempt.
    WriteEnd(Box<End>),
    /// Inform all callers. An end.
    Conclude(Conclusion),
}

/// A claim that is being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claiming {
    /// Its condition.
    pub condition: Condition,
    /// Why the attempt before it is unknown, if it is.
    pub follows: Option<Loss>,
    /// Whether it was sent before and may have been written.
    pub may_be_written: bool,
    /// Whether its caller has gone.
    pub is_orphan: bool,
}

/// An attempt whose work runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// The record as it was claimed.
    pub head: Head,
    /// Why the attempt before it is unknown, if it is.
    pub follows: Option<Loss>,
    /// Whether the attempt was written as lost.
    pub is_given_up: bool,
}

/// The end of an attempt, to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Which attempt.
    pub running: Running,
    /// The change to write.
    pub finish: Finish,
    /// Whether the work reports success but did not complete its record in its transaction.
    pub is_not_joined: bool,
}

/// How an attempt ended, with the record as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conclusion {
    /// As the work reported.
    Written(Seen),
    /// In the transaction of its effect. The answer stored there counts.
    InTransaction(Option<Seen>),
    /// The work reports success but did not complete its record: the record is unknown.
    NotJoined(Seen),
    /// The work reports success, but its transaction did not commit.
    NotCommitted(Seen),
    /// Another attempt or an operator took over the record: the outcome of this attempt does not
    /// count.
    FencedOut(Seen),
    /// The stored record cannot be read.
    Unreadable,
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The current record: from a read, or from a write whose condition did not hold.
    Seen(Seen),
    /// The write took place.
    Won(Won),
    /// The store failed, or did not reply.
    Failed {
        /// The rejection to send if the call ends here.
        rejection: Rejection,
        /// Whether there is time to try again.
        is_time_left: bool,
    },
    /// No further attempt can be begun.
    NotAdmitted(Rejection),
    /// The work ended.
    Ended {
        /// The outcome.
        outcome: Outcome,
        /// Whether the work's own transaction has completed the record.
        is_joined: bool,
        /// Whether the work tried to join a transaction but none was open: its effect is not rolled
        /// back.
        has_acted_outside: bool,
    },
    /// The lease was lost.
    LeaseLost,
    /// The attempt has reached the limit on its running time.
    RanTooLong,
    /// The callers that waited were let go.
    LetGo,
}

impl From<Written> for Event {
    fn from(written: Written) -> Self {
        match written {
            Written::Won(won) => Event::Won(won),
            Written::Lost(seen) => Event::Seen(seen),
        }
    }
}

/// The call that the steps belong to.
#[derive(Clone, Debug)]
pub struct Caller<'a> {
    /// The request, with the fingerprint made under the policy of the record seen last.
    pub ask: Ask<'a>,
    /// The route's policy.
    pub policy: &'a Policy,
    /// The token of the claim under way.
    pub token: AttemptToken,
}

impl Step {
    /// The first step. A new key costs one round trip: the claim assumes that the record is absent,
    /// and its condition checks that. `looks_first` is for a caller that must not consume its
    /// allowance for new keys before the key is known to be new.
    pub fn first(looks_first: bool) -> Step {
        if looks_first {
            return Step::Read { otherwise: None };
        }
        let claiming = Claiming::new(Condition::Absent, None);
        Step::Claim {
            claiming,
            seen: None,
        }
    }

    /// Whether the call can stop here without leaving anything in the store to resolve. A node that
    /// has found the record changed too often may then stop.
    pub fn may_be_left(&self) -> bool {
        match self {
            Step::Read { .. } | Step::WriteLost(_) => true,
            Step::Claim { claiming, .. } => !claiming.may_be_written,
            _ => false,
        }
    }

    /// The record that the request is compared with on this event, if any.
    pub fn judged<'a>(&self, event: &'a Event, token: AttemptToken) -> Option<&'a Head> {
        match (self, event) {
            (Step::Claim { .. }, Event::Seen(seen)) if mine(seen, token).is_some() => None,
            (_, Event::Seen(seen)) => seen.head(),
            (Step::WriteLost(_) | Step::Release { .. }, Event::Won(won)) => Some(&won.head),
            _ => None,
        }
    }

    /// The step after this one.
    ///
    /// # Panics
    ///
    /// If this step cannot result in the event.
    pub fn next(self, event: Event, caller: &Caller<'_>) -> Step {
        match (self, event) {
            (Step::Read { .. } | Step::WriteLost(_), Event::Seen(seen)) => caller.decide(seen),
            (Step::Release { claiming, .. }, Event::Seen(_) | Event::Won(_))
                if claiming.is_orphan =>
            {
                Step::Over
            }
            (Step::Release { .. }, Event::Seen(seen)) => caller.decide(seen),
            (Step::WriteLost(_) | Step::Release { .. }, Event::Won(won)) => {
                caller.decide(won.into())
            }
            (Step::Read { otherwise }, Event::Failed { rejection, .. }) => Step::Reject {
                rejection: otherwise.unwrap_or(rejection),
                seen: None,
            },
            (Step::WriteLost(_), Event::Failed { rejection, .. }) => Step::Reject {
                rejection,
                seen: None,
            },

            (Step::Claim { claiming, .. }, Event::Won(won)) => claiming.own(won.head, won.now),
            (Step::Claim { claiming, .. }, Event::Seen(seen)) => match mine(&seen, caller.token) {
                // An earlier try had won; its reply was lost.
                Some(head) => claiming.own(head.clone(), seen.now),
                None if claiming.is_orphan => Step::Over,
                None => caller.decide(seen),
            },
            // A finished record can be replayed even if no attempt can be begun: read before
            // refusing.
            (Step::Claim { seen: None, .. }, Event::NotAdmitted(rejection)) => Step::Read {
                otherwise: Some(rejection),
            },
            (Step::Claim { seen, .. }, Event::NotAdmitted(rejection)) => {
                Step::Reject { rejection, seen }
            }
            (
                Step::Claim { claiming, seen },
                Event::Failed {
                    rejection,
                    is_time_left,
                },
            ) => claiming.failed(seen, rejection, is_time_left),
            (Step::Release { claiming, .. }, Event::Failed { rejection, .. }) => {
                claiming.abandon(rejection)
            }

            (
                Step::Run(running),
                Event::Ended {
                    outcome,
                    is_joined,
                    has_acted_outside,
                },
            ) => {
                if is_joined {
                    return Step::Conclude(Conclusion::InTransaction(None));
                }
                Step::WriteEnd(Box::new(running.end(
                    outcome,
                    has_acted_outside,
                    caller.policy,
                )))
            }
            (Step::Run(running), Event::LeaseLost) => Step::LetGo(running),
            (Step::Run(running), Event::RanTooLong) => Step::GiveUp(running),
            (Step::LetGo(running), Event::LetGo) => Step::Run(running),
            // If the write failed, the lease lapses by itself.
            (Step::GiveUp(running), Event::Won(_) | Event::Seen(_) | Event::Failed { .. }) => {
                Step::Run(Box::new(Running {
                    is_given_up: true,
                    ..*running
                }))
            }
            (Step::WriteEnd(end), Event::Won(Won { head, now })) => {
                let answer = end.finish.answer.clone();
                let record = Some(Record { head, answer });
                Step::Conclude(end.written(Seen { record, now }))
            }
            (Step::WriteEnd(end), Event::Seen(seen)) => {
                Step::Conclude(end.refused(seen, caller.policy.mode))
            }
            // Retrying would not help. The attempt is no longer renewed and counts as unknown.
            (
                Step::WriteEnd(_),
                Event::Failed {
                    rejection: Rejection::AnswerCorrupt,
                    ..
                },
            ) => Step::Conclude(Conclusion::Unreadable),
            (step @ Step::WriteEnd(_), Event::Failed { .. }) => step,
            (step, event) => panic!("{event:?} cannot come of {step:?}"),
        }
    }
}

impl Claiming {
    fn new(condition: Condition, follows: Option<Loss>) -> Self {
        Claiming {
            condition,
            follows,
            may_be_written: false,
            is_orphan: false,
        }
    }

    /// The store failed to answer the claim.
    fn failed(self, seen: Option<Seen>, rejection: Rejection, is_time_left: bool) -> Step {
        let is_locked = matches!(rejection, Rejection::InFlight { .. });
        // Another transaction has locked the record. Nothing was written, and the lock may last, so
        // do not retry. A new key has no record that could be locked, so the store itself is
        // unavailable.
        if is_locked && !self.may_be_written && !self.is_orphan {
            let rejection = if self.condition == Condition::Absent {
                Rejection::StoreUnavailable
            } else {
                rejection
            };
            return Step::Reject {
                rejection,
                seen: None,
            };
        }
        if is_time_left && !self.is_orphan && rejection == Rejection::StoreUnavailable {
            let claiming = Claiming {
                may_be_written: true,
                ..self
            };
            return Step::Claim { claiming, seen };
        }
        self.abandon(rejection)
    }

    /// The caller no longer waits for this claim. An orphan is sent again until the store says what
    /// became of it.
    fn abandon(self, rejection: Rejection) -> Step {
        let claiming = Claiming {
            may_be_written: true,
            is_orphan: true,
            ..self
        };
        if self.is_orphan {
            return Step::Claim {
                claiming,
                seen: None,
            };
        }
        Step::Abandon {
            claiming,
            rejection,
        }
    }

    /// The claim exists. If its caller has gone or its lease is already over, it never ran: it is
    /// released and need not be held as unknown.
    fn own(self, head: Head, now: Timestamp) -> Step {
        if self.is_orphan || head.state_at(now) != State::Running {
            return Step::Release {
                claiming: self,
                fence: head.fence,
            };
        }
        Step::Run(Box::new(Running {
            head,
            follows: self.follows,
            is_given_up: false,
        }))
    }

    /// The write that ends this claim unused and restores the previous state of the record. If the
    /// previous attempt was lost, the record stays unknown for the same reason.
    pub fn release(&self, put: &Put, fence: Fence, lifetime: Lifetime) -> Put {
        let (state, status) = match self.follows {
            None => (State::Retryable, None),
            Some(loss) => (State::Unknown, loss.code()),
        };
        let finish = Finish {
            state,
            status,
            answer: None,
            lifetime,
        };
        Put {
            id: put.id,
            condition: Condition::Held { fence },
            change: Change::Finish(finish),
        }
    }
}

impl Running {
    /// The end to write when the work ends in `outcome`.
    fn end(self, outcome: Outcome, has_acted_outside: bool, policy: &Policy) -> End {
        // In transaction mode, a completed outcome that reaches this point did not join: its
        // transaction would have completed the record. Work done outside a transaction was not
        // rolled back, whatever the outcome says.
        let is_done = policy.mode == Mode::Transaction && outcome.state() == State::Completed;
        let is_not_joined = is_done || has_acted_outside;
        let outcome = if is_not_joined {
            Outcome::Lost(Loss::NotJoined(outcome.status()))
        } else {
            outcome
        };
        End {
            finish: self.finish(&outcome, policy),
            running: self,
            is_not_joined,
        }
    }

    /// The change that ends the attempt in this outcome.
    pub fn finish(&self, outcome: &Outcome, policy: &Policy) -> Finish {
        let version = policy.answer_version.as_deref();
        let answer = match outcome {
            Outcome::Kept {
                answer: Some(answer),
                ..
            } if version.is_some() => Some(Arc::new(Answer::clone(answer).under(version))),
            Outcome::Kept { answer, .. } => answer.clone(),
            Outcome::Released { .. } | Outcome::Lost(_) => None,
        };
        Finish {
            state: outcome.state(),
            status: outcome.code(),
            answer,
            lifetime: outcome.lifetime(&self.head, self.follows.is_some(), policy),
        }
    }

    /// The write that makes this change, if the attempt still owns its record.
    pub fn put(&self, finish: Finish) -> Put {
        Put {
            id: self.head.id,
            condition: Condition::Held {
                fence: self.head.fence,
            },
            change: Change::Finish(finish),
        }
    }

    /// The record's head, if this attempt is its latest.
    fn own<'a>(&self, seen: &'a Seen) -> Option<&'a Head> {
        let head = seen.head()?;
        (head.token == self.head.token && head.fence == self.head.fence).then_some(head)
    }
}

impl End {
    fn written(&self, seen: Seen) -> Conclusion {
        if self.is_not_joined {
            Conclusion::NotJoined(seen)
        } else {
            Conclusion::Written(seen)
        }
    }

    /// The conclusion if the write was refused and the store returned `seen`.
    fn refused(&self, seen: Seen, mode: Mode) -> Conclusion {
        let state = self.running.own(&seen).map(|head| head.state);
        match (state, mode) {
            // The work's own transaction completed the record: the answer stored there counts.
            (Some(State::Completed | State::Failed), Mode::Transaction) => {
                Conclusion::InTransaction(Some(seen))
            }
            // The transaction did not commit, and another node found that out and released the
            // record.
            (Some(State::Retryable), Mode::Transaction) if self.is_not_joined => {
                Conclusion::NotCommitted(seen)
            }
            (Some(State::Retryable), Mode::Transaction) => Conclusion::Written(seen),
            // An earlier try had won; its reply was lost.
            (Some(state), _) if state == self.finish.state => self.written(seen),
            _ => Conclusion::FencedOut(seen),
        }
    }
}

impl Caller<'_> {
    /// Decides on the record and returns the next step.
    pub fn decide(&self, seen: Seen) -> Step {
        let head = seen.head();
        match decide(head, &self.ask, seen.now, self.policy) {
            Decision::Attempt(condition) => Step::Claim {
                claiming: Claiming::new(condition, head.and_then(|head| loss(head, seen.now))),
                seen: Some(seen),
            },
            Decision::Replay => Step::Replay(seen),
            Decision::Wait => Step::Wait(seen),
            Decision::WriteLost(condition) => Step::WriteLost(condition),
            Decision::Reject(rejection) => Step::Reject {
                rejection,
                seen: Some(seen),
            },
        }
    }
}

/// Why the attempt in this record was lost. `None` if it was not lost.
fn loss(head: &Head, now: Timestamp) -> Option<Loss> {
    (head.state_at(now) == State::Unknown)
        .then(|| head.loss(State::Unknown))
        .flatten()
}

/// The head, if it is this call's own claim and has not ended.
fn mine(seen: &Seen, token: AttemptToken) -> Option<&Head> {
    let head = seen.head()?;
    (head.token == token && matches!(head.state, State::Running | State::Unknown)).then_some(head)
}

#[cfg(test)]
mod tests;
