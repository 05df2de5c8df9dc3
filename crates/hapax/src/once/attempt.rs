//! The life of an attempt: dispatched, finished, written down. It outlives the request that began
//! it.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::answer::Answer;
use hapax_core::guard;
use hapax_core::outcome::{Loss, Outcome};
use hapax_core::planted::{self, Bug};
use hapax_core::policy::Mode;
use hapax_core::record::{Head, Record, State};
use hapax_core::rejection::Rejection;
use hapax_core::request_id::RequestId;
use hapax_core::store::{Change, Condition, Finish, Put, Seen, Written};
use hapax_core::time::Timestamp;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;
use tracing::Instrument;

use super::call::{Call, Ended, Operation, Reply};
use super::engine::{Engine, Room};
use super::flights::Seat;
use super::path::lost;
use super::renew;
use super::usage::Reserved;
use crate::join::Joined;
use crate::observe::Event;

const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A claim that was won.
pub(super) struct Claimed {
    pub(super) head: Head,
    pub(super) operation: Operation,
    /// Held until the attempt has ended, however long that takes.
    pub(super) _room: Room,
}

/// One run of the effect.
pub(super) struct Attempt {
    pub(super) engine: Arc<Engine>,
    pub(super) call: Call,
    pub(super) claimed: Box<Claimed>,
    pub(super) epoch: Option<u64>,
}

/// Runs the work and writes down what it ended in. `tell` is called once, with what the first
/// caller gets.
pub(super) async fn run<T, W, F>(
    attempt: Attempt,
    seat: Seat,
    work: W,
    tell: impl FnOnce(Result<Reply<T>, Rejection>),
) where
    T: Send + 'static,
    W: FnOnce(Operation) -> F + Send + 'static,
    F: Future<Output = Ended<T>> + Send + 'static,
{
    let mut desk = Desk {
        seat: Some(seat),
        tell: Some(tell),
        live: None,
        since: Instant::now(),
        is_logged: false,
    };
    if let (Some(seat), Some(fingerprint)) = (&desk.seat, attempt.claimed.head.fingerprint.clone())
    {
        seat.running(fingerprint, desk.since);
    }
    let Claimed {
        head, operation, ..
    } = &*attempt.claimed;
    let renewed = renew::keep(&attempt.engine, head.id, operation, &attempt.call.policy);

    attempt
        .engine
        .observe(&Event::Dispatching(attempt.call.subject(head.id)));
    let operation = operation.clone();
    // A task of its own for the work, so that its panic is an outcome and not the end of this one.
    // Boxed, because starting a task moves its future several times, and this one holds the
    // request.
    let span = attempt.span();
    let work = Box::pin(async move { work(operation).await }.instrument(span.clone()));
    let task = tokio::spawn(work);
    let end = async {
        let joined = attempt.watch(task, &mut desk).await;
        attempt.finish(joined, &mut desk).await;
    };
    end.instrument(span).await;
    drop(renewed);
}

/// Who is still to be told what: the first caller, and those who joined.
struct Desk<T, F> {
    seat: Option<Seat>,
    tell: Option<F>,
    /// What the first caller gets, if it is still there to get it.
    live: Option<T>,
    since: Instant,
    /// The log has been told that it ended badly.
    is_logged: bool,
}

impl<T, F: FnOnce(Result<Reply<T>, Rejection>)> Desk<T, F> {
    fn tell(&mut self, reply: Result<Reply<T>, Rejection>) {
        // Whoever has been told gets nothing more: a response that nobody will read is not held on
        // to.
        self.live = None;
        if let Some(tell) = self.tell.take() {
            tell(reply);
        }
    }

    /// Hands over what was stored with the effect, whatever the work returned.
    fn tell_joined(&mut self, head: Head, answer: Option<Arc<Answer>>) {
        let (head, live) = (Box::new(head), self.live.take());
        self.tell(Ok(Reply::Joined { head, answer, live }));
    }

    /// Hands over the answer; for a first caller of work that broke off there is none.
    fn tell_live(&mut self, head: Head, otherwise: Rejection) {
        let head = Box::new(head);
        let reply = self
            .live
            .take()
            .map(|live| Reply::First { head, live })
            .ok_or(otherwise);
        self.tell(reply);
    }

    fn land(&mut self, seen: Seen) {
        if let Some(seat) = self.seat.take() {
            seat.land_seen(seen, true);
        }
    }
}

impl Attempt {
    /// What every line belongs to that is logged because of the attempt: by the work too, and after
    /// its caller is gone.
    fn span(&self) -> tracing::Span {
        let Claimed {
            head, operation, ..
        } = &*self.claimed;
        let request_id = head.request_id.as_ref().map(RequestId::as_str);
        // Of the highest level, so that no filter takes the id from a line that it lets through.
        tracing::error_span!("hapax.attempt", request_id, operation = %operation.id(), fence = %head.fence, attempt = head.attempts)
    }

    /// Waits for the work to end, however long it takes, but lets nobody else wait longer than they
    /// should.
    async fn watch<T, F>(
        &self,
        mut task: JoinHandle<Ended<T>>,
        desk: &mut Desk<T, F>,
    ) -> Result<Ended<T>, JoinError>
    where
        F: FnOnce(Result<Reply<T>, Rejection>),
    {
        let mut longest = std::pin::pin!(tokio::time::sleep(self.call.policy.longest_attempt));
        let mut is_given_up = false;
        loop {
            tokio::select! {
                joined = &mut task => return joined,
                () = &mut longest, if !is_given_up => {
                    is_given_up = true;
                    self.give_up(desk).await;
                }
                // Somebody else may know more by now: those who joined, and those who come, ask the
                // store.
                () = self.claimed.operation.lease_lost(), if desk.seat.is_some() => {
                    drop(desk.seat.take());
                    // Given up by a drain: the caller should hear of it while there is somebody to
                    // tell it.
                    if self.engine.is_draining() {
                        self.log_lost("this process stops before it has ended", desk);
                        desk.tell(Err(lost(&self.call.policy, true)));
                    }
                }
            }
        }
    }

    /// The attempt has run for as long as one may: from now on it counts as lost, unless it ends
    /// after all.
    async fn give_up<T, F: FnOnce(Result<Reply<T>, Rejection>)>(&self, desk: &mut Desk<T, F>) {
        self.engine
            .renewals
            .stop(self.claimed.head.id, self.claimed.head.fence);
        let put = self.put(&Outcome::Lost(Loss::RanTooLong));
        let written = self
            .engine
            .ask_in(
                self.call.policy.store_timeout,
                self.engine.store.put_if(put),
            )
            .await;
        self.log_lost(
            &format!(
                "it has run for {:?}, the longest that an attempt may (longest_attempt)",
                self.call.policy.longest_attempt
            ),
            desk,
        );
        desk.tell(Err(lost(&self.call.policy, true)));
        match written {
            Ok(Written::Won(won)) => desk.land(Seen {
                record: Some(Record {
                    head: won.head,
                    answer: None,
                }),
                now: won.now,
            }),
            Ok(Written::Lost(seen)) => desk.land(seen),
            // Unrenewed, the lease lapses by itself; joiners look for themselves.
            Err(_) => drop(desk.seat.take()),
        }
    }

    async fn finish<T, F>(&self, joined: Result<Ended<T>, JoinError>, desk: &mut Desk<T, F>)
    where
        F: FnOnce(Result<Reply<T>, Rejection>),
    {
        let outcome = match joined {
            Ok(ended) => {
                desk.live = desk.tell.is_some().then_some(ended.live);
                ended.outcome
            }
            Err(error) => {
                self.claimed
                    .operation
                    .note_cause(format!("the work broke off: {error}"));
                Outcome::Lost(if error.is_panic() {
                    Loss::Panicked
                } else {
                    Loss::NoAnswer
                })
            }
        };
        if let Some(joined) = self.claimed.operation.joined() {
            return self.joined(self.seen_joined(joined), &outcome, desk);
        }
        let subject = self.call.subject(self.claimed.head.id);
        let is_transaction = self.call.policy.mode == Mode::Transaction;
        // Of what is done, the transaction would have told us.
        let not_joined = match outcome {
            Outcome::Kept { status, .. }
                if is_transaction && outcome.state() == State::Completed =>
            {
                Some(Outcome::Lost(Loss::NotJoined(Some(status))))
            }
            // What it did without a transaction was not rolled back, whatever it says now.
            _ if self.claimed.operation.has_acted_outside() => {
                Some(Outcome::Lost(Loss::NotJoined(outcome.status())))
            }
            _ => None,
        };
        let (is_not_joined, written) = (
            not_joined.is_some(),
            not_joined.as_ref().unwrap_or(&outcome),
        );
        self.engine.observe(&Event::Finishing {
            subject,
            state: written.state(),
        });
        let (mut put, broke_off) = (self.put(written), lost(&self.call.policy, false));
        // Counted until what is written has been noted.
        let _room = self.room_for_answer(&mut put);
        if planted::is(Bug::AnswerBeforeDurable) {
            desk.tell_live(self.claimed.head.clone(), broke_off.clone());
        }
        match self.write(put, desk).await {
            Ok(seen) if is_not_joined => self.not_joined(seen, desk),
            Ok(seen) => {
                self.note_finished(&seen, desk.since);
                if let Some(epoch) = self.epoch {
                    self.engine.cache.keep(&seen, epoch);
                }
                let head = seen
                    .record
                    .as_ref()
                    .expect("what was written is there")
                    .head
                    .clone();
                self.log_end(&outcome, &head, desk);
                self.engine.note_end(&self.call, &head);
                desk.land(seen);
                desk.tell_live(head, broke_off);
            }
            // By the work itself, in its own transaction.
            Err(seen) if is_transaction && self.is_answered(&seen) => {
                self.joined(seen, &outcome, desk);
            }
            Err(seen) => {
                self.engine.observe(&Event::FencedOut(subject));
                let Head {
                    id, fence, scope, ..
                } = &self.claimed.head;
                tracing::warn!(method = %scope.method, path = %scope.path, record = %id, %fence, "an attempt ended after it had lost its fence");
                let reply = self.engine.after_fence_lost(&self.call, &seen).await;
                desk.land(seen);
                desk.tell(reply);
            }
        }
    }

    /// Tells the log of an attempt that ended without an answer, once and with its cause.
    fn log_end<T, F>(&self, outcome: &Outcome, head: &Head, desk: &mut Desk<T, F>) {
        let cause = self.claimed.operation.cause();
        if head.state == State::Unknown {
            return self.log_lost(cause, desk);
        }
        if matches!(outcome, Outcome::Released { status: None }) && !desk.is_logged {
            desk.is_logged = true;
            let Head { id, scope, .. } = head;
            tracing::warn!(method = %scope.method, path = %scope.path, record = %id, cause, "a request was not sent: the service could not be reached");
        }
    }

    fn log_lost<T, F>(&self, cause: &str, desk: &mut Desk<T, F>) {
        if std::mem::replace(&mut desk.is_logged, true) {
            return;
        }
        let Head {
            id, fence, scope, ..
        } = &self.claimed.head;
        let next = match self.call.policy.mode {
            Mode::Hold => "its key is held until its answer comes late or somebody settles it",
            Mode::Probe => "a repeat asks the service what became of it",
            _ => "a repeat runs it again",
        };
        tracing::warn!(method = %scope.method, path = %scope.path, record = %id, %fence, cause, next, "the outcome of an attempt is unknown");
    }

    /// The record was completed in the transaction of the effect: that is what everybody gets.
    fn joined<T, F: FnOnce(Result<Reply<T>, Rejection>)>(
        &self,
        seen: Seen,
        outcome: &Outcome,
        desk: &mut Desk<T, F>,
    ) {
        let Some(record) = &seen.record else { return };
        let (head, answer) = (record.head.clone(), record.answer.clone());
        if let Some(joins) = self.engine.store.joins() {
            joins.joined(&head, seen.now);
        }
        self.engine.note_end(&self.call, &head);
        let subject = self.call.subject(head.id);
        self.engine.observe(&Event::Joined {
            subject,
            differs: differs(outcome, &head, answer.as_deref()),
        });
        self.note_finished(&seen, desk.since);
        if let Some(epoch) = self.epoch {
            self.engine.cache.keep(&seen, epoch);
        }
        desk.land(seen);
        desk.tell_joined(head, answer);
    }

    /// The work says that it is done, and has not completed its record.
    fn not_joined<T, F: FnOnce(Result<Reply<T>, Rejection>)>(
        &self,
        seen: Seen,
        desk: &mut Desk<T, F>,
    ) {
        self.note_finished(&seen, desk.since);
        // It had been told that its transaction did not commit, and says otherwise.
        let is_released = self
            .own(&seen)
            .is_some_and(|head| head.state == State::Retryable);
        desk.land(seen);
        if is_released {
            return desk.tell(Err(lost(&self.call.policy, false)));
        }
        let Claimed {
            head, operation, ..
        } = &*self.claimed;
        self.engine
            .observe(&Event::NotJoined(self.call.subject(head.id)));
        tracing::error!(
            method = %head.scope.method, path = %head.scope.path, record = %head.id, fence = %head.fence, operation = %operation.id(),
            "ALARM: a transaction route was answered as done, but its record was not completed in a transaction; its outcome is unknown"
        );
        desk.tell(Err(Rejection::NotJoined));
    }

    /// The record as the attempt's own transaction has left it.
    fn seen_joined(&self, joined: &Joined) -> Seen {
        let Joined { finish, now } = joined;
        let record = Record {
            head: guard::ended(&self.claimed.head, finish, *now),
            answer: finish.answer.clone(),
        };
        self.engine.store.note_joined(&record, *now);
        Seen {
            record: Some(record),
            now: *now,
        }
    }

    /// Whether this very attempt has ended in an answer.
    fn is_answered(&self, seen: &Seen) -> bool {
        self.own(seen)
            .is_some_and(|head| matches!(head.state, State::Completed | State::Failed))
    }

    /// The record's head, if this attempt is its last.
    fn own<'a>(&self, seen: &'a Seen) -> Option<&'a Head> {
        let (mine, head) = (&self.claimed.head, &seen.record.as_ref()?.head);
        (head.token == mine.token && head.fence == mine.fence).then_some(head)
    }

    /// Writes the end of the attempt, for as long as that takes. `Err` with what is there, if the
    /// attempt no longer owns its fence.
    async fn write<T, F: FnOnce(Result<Reply<T>, Rejection>)>(
        &self,
        mut put: Put,
        desk: &mut Desk<T, F>,
    ) -> Result<Seen, Seen> {
        let timeout = self.call.policy.store_timeout;
        let patience = Instant::now() + timeout;
        let (mut pause, mut reserved) = (PAUSE_MIN, None);
        loop {
            let failed = match self
                .engine
                .ask_in(timeout, self.engine.store.put_if(put.clone()))
                .await
            {
                Ok(Written::Won(won)) => {
                    return Ok(Seen {
                        record: Some(Record {
                            head: won.head,
                            answer: put.change.answer().cloned(),
                        }),
                        now: won.now,
                    });
                }
                // An earlier try had won, and only its reply was lost.
                Ok(Written::Lost(seen)) if self.is_done(&seen, &put) => return Ok(seen),
                Ok(Written::Lost(seen)) => return Err(seen),
                // What is there cannot be read, and will not get better. Unrenewed, the attempt is
                // held as unknown.
                Err(Rejection::AnswerCorrupt) => {
                    desk.tell(Err(Rejection::AnswerCorrupt));
                    return Err(Seen {
                        record: None,
                        now: Timestamp::ZERO,
                    });
                }
                Err(failed) => failed,
            };
            if Instant::now() >= patience && reserved.is_none() {
                let Head { id, scope, .. } = &self.claimed.head;
                tracing::warn!(
                    method = %scope.method, path = %scope.path, record = %id,
                    "the end of an attempt could not be written in time: its caller is told to come back, and the writing goes on"
                );
                desk.tell(Err(failed));
                reserved = Some(self.reserve(&mut put));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Room in the principal's quota for the answer. Without it only the mark is written that the
    /// effect is done.
    fn room_for_answer(&self, put: &mut Put) -> Option<Reserved> {
        let Change::Finish(finish) = &mut put.change else {
            return None;
        };
        let answer = finish.answer.as_ref()?;
        let room = self
            .engine
            .store
            .reserve_bytes(&self.call.scope, answer.encoded_len());
        if room.is_err() {
            finish.answer = None;
        }
        room.ok().flatten()
    }

    /// Room in memory for an answer whose record cannot be written now. Without it only the mark is
    /// written that the effect is done.
    fn reserve(&self, put: &mut Put) -> Option<tokio::sync::OwnedSemaphorePermit> {
        let Change::Finish(finish) = &mut put.change else {
            return None;
        };
        let weight = u32::try_from(finish.answer.as_ref()?.weight()).unwrap_or(u32::MAX);
        let room = self
            .engine
            .unwritten
            .clone()
            .try_acquire_many_owned(weight)
            .ok();
        if room.is_none() {
            finish.answer = None;
        }
        room
    }

    fn is_done(&self, seen: &Seen, put: &Put) -> bool {
        let Change::Finish(finish) = &put.change else {
            return false;
        };
        let is_transaction = self.call.policy.mode == Mode::Transaction;
        self.own(seen).is_some_and(|head| match head.state {
            // By the work itself, or by an earlier try: what is stored counts either way.
            State::Completed | State::Failed if is_transaction => false,
            // What did not commit was released by whoever found that out, and there is no more to
            // say of it.
            State::Retryable if is_transaction => true,
            state => state == finish.state,
        })
    }

    fn note_finished(&self, seen: &Seen, since: Instant) {
        let Some(record) = &seen.record else { return };
        // Given up for lost in between: its lease was over before it ended, or it had run for too
        // long.
        let late = self.claimed.operation.has_lost_lease();
        let subject = self.call.subject(record.head.id);
        self.engine.observe(&Event::Finished {
            subject,
            state: record.head.state,
            elapsed: since.elapsed(),
            late,
        });
    }

    fn put(&self, outcome: &Outcome) -> Put {
        let (state, status) = (outcome.state(), outcome.code());
        let version = self.call.policy.answer_version.as_deref();
        let answer = match outcome {
            Outcome::Kept {
                answer: Some(answer),
                ..
            } if version.is_some() => Some(Arc::new(Answer::clone(answer).under(version))),
            Outcome::Kept { answer, .. } => answer.clone(),
            Outcome::Released { .. } | Outcome::Lost(_) => None,
        };
        let Claimed {
            head, operation, ..
        } = &*self.claimed;
        let lifetime = outcome.lifetime(head, operation.follows_lost(), &self.call.policy);
        let finish = Finish {
            state,
            status,
            answer,
            lifetime,
        };
        let Head { id, fence, .. } = *head;
        Put {
            id,
            condition: Condition::Held { fence },
            change: Change::Finish(finish),
        }
    }
}

/// Whether the work said something else than it has stored.
fn differs(outcome: &Outcome, head: &Head, stored: Option<&Answer>) -> bool {
    match (outcome, stored) {
        (
            Outcome::Kept {
                answer: Some(said), ..
            },
            Some(stored),
        ) => said.status != stored.status || said.body != stored.body,
        (Outcome::Kept { status, .. }, _) => Some(*status) != head.status,
        _ => true,
    }
}
