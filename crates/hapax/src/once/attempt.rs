//! The life of an attempt: takes the steps of a call from its work on. The attempt outlives the
//! request that began it.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::answer::Answer;
use hapax_core::fingerprint::Fingerprint;
use hapax_core::guard;
use hapax_core::outcome::{Loss, Outcome};
use hapax_core::policy::Mode;
use hapax_core::record::{Head, Record, State};
use hapax_core::rejection::Rejection;
use hapax_core::request_id::RequestId;
use hapax_core::step::{self, Caller, Conclusion, End, Running, Step};
use hapax_core::store::{Seen, Store, Written};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, Sleep};
use tracing::Instrument;

use super::call::{Call, Ended, Reply};
use super::engine::Engine;
use super::flights::FlightLead;
use super::lead::Claimed;
use super::operation::{Joined, Operation};
use super::renew;
use super::usage::Reserved;
use crate::backoff::Backoff;
use crate::observe::Event;

const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// One run of the effect.
pub(super) struct Attempt {
    pub(super) engine: Arc<Engine>,
    pub(super) call: Call,
    pub(super) claimed: Box<Claimed>,
    pub(super) epoch: Option<u64>,
}

/// Runs the work and writes its outcome. `tell` is called once, with the first caller's reply.
pub(super) async fn run<T, W, F>(
    attempt: Attempt,
    flight: FlightLead,
    work: W,
    tell: impl FnOnce(Result<Reply<T>, Rejection>),
) where
    T: Send + 'static,
    W: FnOnce(Operation) -> F + Send + 'static,
    F: Future<Output = Ended<T>> + Send + 'static,
{
    let mut audience = Callers {
        flight: Some(flight),
        tell: Some(tell),
        live: None,
        since: Instant::now(),
        is_logged: false,
    };
    let head = &attempt.claimed.running.head;
    let fingerprint = head.fingerprint.clone().expect("a claim has a fingerprint");
    if let Some(flight) = &audience.flight {
        flight.running(fingerprint.clone(), audience.since);
    }
    let operation = attempt.claimed.operation.clone();
    let renewed = renew::keep(&attempt.engine, head.id, &operation, &attempt.call.policy);

    attempt
        .engine
        .observe(&Event::Dispatching(attempt.call.subject(head.id)));
    // The work has its own task, so that its panic becomes an outcome and does not end this task.
    // The future is boxed, because starting a task moves it several times and it holds the request.
    let span = attempt.span();
    // In the caller's span too: ours is none where a filter leaves this crate out, and the task
    // would be in no span at all.
    let work = async move { work(operation).await }
        .instrument(span.clone())
        .in_current_span();
    let task = tokio::spawn(Box::pin(work));
    attempt
        .take_steps(task, &fingerprint, &mut audience)
        .instrument(span)
        .await;
    drop(renewed);
}

/// The callers still to be answered: the first one, and those who joined the flight.
struct Callers<T, F> {
    flight: Option<FlightLead>,
    tell: Option<F>,
    /// The first caller's response, while the caller is still waiting.
    live: Option<T>,
    since: Instant,
    /// Whether the log already says that the attempt ended badly.
    is_logged: bool,
}

impl<T, F: FnOnce(Result<Reply<T>, Rejection>)> Callers<T, F> {
    fn tell(&mut self, reply: Result<Reply<T>, Rejection>) {
        // A caller is answered once. Drop the response, which nothing will read any more.
        self.live = None;
        if let Some(tell) = self.tell.take() {
            tell(reply);
        }
    }

    /// Sends the first caller the answer stored with the effect, whatever the work returned.
    fn tell_joined(&mut self, head: Head, answer: Option<Arc<Answer>>) {
        let (head, live) = (Box::new(head), self.live.take());
        self.tell(Ok(Reply::Joined { head, answer, live }));
    }

    /// Sends the first caller the live response, or `otherwise` if the work ended without one.
    fn tell_live(&mut self, head: Head, otherwise: Rejection) {
        let head = Box::new(head);
        let reply = self
            .live
            .take()
            .map(|live| Reply::First { head, live })
            .ok_or(otherwise);
        self.tell(reply);
    }

    fn end_flight(&mut self, seen: Seen) {
        if let Some(flight) = self.flight.take() {
            flight.end_with(seen, true);
        }
    }
}

impl Attempt {
    /// The span for every line that is logged because of the attempt, by the work too, and even
    /// after the caller has gone.
    fn span(&self) -> tracing::Span {
        let (head, operation) = (&self.claimed.running.head, &self.claimed.operation);
        let request_id = head.request_id.as_ref().map(RequestId::as_str);
        // A span of the highest level, so that no filter removes the id from a line that it lets
        // through.
        tracing::error_span!("hapax.attempt", request_id, operation = %operation.id(), fence = %head.fence, attempt = head.attempts)
    }

    async fn take_steps<T, F>(
        &self,
        mut task: JoinHandle<Ended<T>>,
        fingerprint: &Fingerprint,
        audience: &mut Callers<T, F>,
    ) where
        F: FnOnce(Result<Reply<T>, Rejection>),
    {
        let caller = Caller {
            ask: self.call.ask(fingerprint),
            policy: &self.call.policy,
            token: self.claimed.running.head.token,
        };
        let mut longest = std::pin::pin!(tokio::time::sleep(self.call.policy.longest_attempt));
        let mut outcome = Outcome::Lost(Loss::NoAnswer);
        let mut step = Step::Run(Box::new(self.claimed.running.clone()));
        loop {
            step = match step {
                Step::Run(running) => {
                    let has_flight = audience.flight.is_some();
                    let event = match self
                        .watch(&running, &mut task, longest.as_mut(), has_flight)
                        .await
                    {
                        Watched::Ended(joined) => {
                            outcome = self.outcome(joined, audience);
                            self.ended(outcome.clone())
                        }
                        Watched::LeaseLost => step::Event::LeaseLost,
                        Watched::RanTooLong => step::Event::RanTooLong,
                    };
                    Step::Run(running).next(event, &caller)
                }
                Step::LetGo(_) => {
                    self.let_go(audience);
                    step.next(step::Event::LetGo, &caller)
                }
                Step::GiveUp(ref running) => {
                    let event = self.give_up(running, audience).await;
                    step.next(event, &caller)
                }
                Step::WriteEnd(end) => self.write(*end, audience, &caller).await,
                Step::Conclude(conclusion) => {
                    return self.conclude(conclusion, &outcome, audience).await;
                }
                other => unreachable!("{other:?} comes before the work"),
            };
        }
    }

    /// Waits for the work to end, without a limit, but reports when the attempt has run too long or
    /// lost its lease.
    async fn watch<T>(
        &self,
        running: &Running,
        task: &mut JoinHandle<Ended<T>>,
        longest: std::pin::Pin<&mut Sleep>,
        has_flight: bool,
    ) -> Watched<T> {
        tokio::select! {
            joined = task => Watched::Ended(joined),
            () = longest, if !running.is_given_up => Watched::RanTooLong,
            () = self.claimed.operation.lease_lost(), if has_flight => {
                Watched::LeaseLost
            }
        }
    }

    /// The outcome of the work. The first caller's response is put aside in `audience`.
    fn outcome<T, F>(
        &self,
        joined: Result<Ended<T>, JoinError>,
        audience: &mut Callers<T, F>,
    ) -> Outcome {
        match joined {
            Ok(ended) => {
                audience.live = audience.tell.is_some().then_some(ended.live);
                ended.outcome
            }
            Err(error) => match error.try_into_panic() {
                Ok(panic) => {
                    self.log_panic(&*panic);
                    Outcome::Lost(Loss::Panicked)
                }
                Err(error) => {
                    let operation = &self.claimed.operation;
                    operation.note_cause(format!("the work broke off: {error}"));
                    Outcome::Lost(Loss::NoAnswer)
                }
            },
        }
    }

    /// Logs a panic of the work with all that helps to find its cause.
    fn log_panic(&self, panic: &(dyn Any + Send)) {
        let message = panic_message(panic);
        let operation = &self.claimed.operation;
        operation.note_cause(format!("the work panicked: {message}"));
        let Head { id, scope, key, .. } = &self.claimed.running.head;
        tracing::error!(
            method = %scope.method, path = %scope.path, key = key.as_str(), record = %id, operation = %operation.id(), panic = message,
            "the guarded work panicked"
        );
    }

    fn ended(&self, outcome: Outcome) -> step::Event {
        let operation = &self.claimed.operation;
        step::Event::Ended {
            outcome,
            is_joined: operation.joined().is_some(),
            has_acted_outside: operation.has_acted_outside(),
        }
    }

    /// Ends the flight: another node may know more by now, so joiners and later callers ask the
    /// store.
    fn let_go<T, F: FnOnce(Result<Reply<T>, Rejection>)>(&self, audience: &mut Callers<T, F>) {
        drop(audience.flight.take());
        // A drain gave the attempt up. Answer the caller while the process still can.
        if self.engine.is_draining() {
            self.log_lost("this process stops before it has ended", audience);
            audience.tell(Err(Rejection::lost(&self.call.policy, true)));
        }
    }

    /// The attempt has reached its longest allowed time: it counts as lost from now on, unless it
    /// ends after all.
    async fn give_up<T, F: FnOnce(Result<Reply<T>, Rejection>)>(
        &self,
        running: &Running,
        audience: &mut Callers<T, F>,
    ) -> step::Event {
        let policy = &self.call.policy;
        self.engine
            .renewals
            .stop(running.head.id, running.head.fence);
        let finish = running.finish(&Outcome::Lost(Loss::RanTooLong), policy);
        let writing = self.engine.store.put_if(running.put(finish));
        let written = self.engine.ask_in(policy.store_timeout, writing).await;
        let why = format!(
            "it has run for {:?}, the longest that an attempt may (longest_attempt)",
            policy.longest_attempt
        );
        self.log_lost(&why, audience);
        audience.tell(Err(Rejection::lost(policy, true)));
        match written {
            Ok(written) => {
                audience.end_flight(match written.clone() {
                    Written::Won(won) => won.into(),
                    Written::Lost(seen) => seen,
                });
                written.into()
            }
            // Without renewal the lease lapses by itself. Joiners ask the store.
            Err(rejection) => {
                drop(audience.flight.take());
                step::Event::Failed {
                    rejection,
                    is_time_left: false,
                }
            }
        }
    }

    /// Writes the end of the attempt, and repeats that until the store replies.
    async fn write<T, F: FnOnce(Result<Reply<T>, Rejection>)>(
        &self,
        mut end: End,
        audience: &mut Callers<T, F>,
        caller: &Caller<'_>,
    ) -> Step {
        let head = &self.claimed.running.head;
        self.engine.observe(&Event::Finishing {
            subject: self.call.subject(head.id),
            state: end.finish.state,
        });
        // The reservation is held until the write has been counted.
        let _room = self.room_for_answer(&mut end);
        let timeout = self.call.policy.store_timeout;
        let patience = Instant::now() + timeout;
        let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        let mut reserved = None;
        loop {
            let put = end.running.put(end.finish.clone());
            let written = self.engine.ask_in(timeout, self.engine.store.put_if(put));
            let rejection = match written.await {
                Ok(written) => return Step::WriteEnd(Box::new(end)).next(written.into(), caller),
                Err(rejection) => rejection,
            };
            let failed = step::Event::Failed {
                rejection: rejection.clone(),
                is_time_left: true,
            };
            end = match Step::WriteEnd(Box::new(end)).next(failed, caller) {
                Step::WriteEnd(end) => *end,
                other => return other,
            };
            if Instant::now() >= patience && reserved.is_none() {
                tracing::warn!(
                    method = %head.scope.method, path = %head.scope.path, record = %head.id,
                    "the end of an attempt could not be written in time: its caller is told to come back, and the writing goes on"
                );
                audience.tell(Err(rejection));
                reserved = Some(self.reserve(&mut end));
            }
            backoff.pause().await;
        }
    }

    /// Reserves room for the answer in the principal's quota. Without room, the record only says
    /// that the effect is done.
    fn room_for_answer(&self, end: &mut End) -> Option<Reserved> {
        let length = end.finish.answer.as_ref()?.encoded_len();
        let room = self.engine.store.reserve_bytes(&self.call.scope, length);
        if room.is_err() {
            end.finish.answer = None;
        }
        room.ok().flatten()
    }

    /// Reserves memory for an answer whose record cannot be written now. Without room, the record
    /// only says that the effect is done.
    fn reserve(&self, end: &mut End) -> Option<OwnedSemaphorePermit> {
        let weight = u32::try_from(end.finish.answer.as_ref()?.weight()).unwrap_or(u32::MAX);
        let room = self.engine.unwritten.clone().try_acquire_many_owned(weight);
        if room.is_err() {
            end.finish.answer = None;
        }
        room.ok()
    }

    /// Answers the first caller and the joiners.
    async fn conclude<T, F: FnOnce(Result<Reply<T>, Rejection>)>(
        &self,
        conclusion: Conclusion,
        outcome: &Outcome,
        audience: &mut Callers<T, F>,
    ) {
        let policy = &self.call.policy;
        let Head {
            id, fence, scope, ..
        } = &self.claimed.running.head;
        let subject = self.call.subject(*id);
        match conclusion {
            Conclusion::Written(seen) => {
                let Some(head) = self.keep(&seen, audience.since) else {
                    return;
                };
                self.log_end(outcome, &head, audience);
                audience.end_flight(seen);
                audience.tell_live(head, Rejection::lost(policy, false));
            }
            Conclusion::InTransaction(seen) => {
                let Some(seen) = seen.or_else(|| self.seen_joined()) else {
                    return;
                };
                self.conclude_joined(seen, outcome, audience);
            }
            Conclusion::NotCommitted(seen) => {
                self.observe_finished(&seen, audience.since);
                audience.end_flight(seen);
                audience.tell(Err(Rejection::lost(policy, false)));
            }
            Conclusion::NotJoined(seen) => {
                self.observe_finished(&seen, audience.since);
                audience.end_flight(seen);
                self.engine.observe(&Event::NotJoined(subject));
                tracing::error!(
                    method = %scope.method, path = %scope.path, record = %id, %fence, operation = %self.claimed.operation.id(),
                    "ALARM: a transaction route was answered as done, but its record was not completed in a transaction; its outcome is unknown"
                );
                audience.tell(Err(Rejection::NotJoined));
            }
            Conclusion::FencedOut(seen) => {
                self.engine.observe(&Event::FencedOut(subject));
                tracing::warn!(method = %scope.method, path = %scope.path, record = %id, %fence, "an attempt ended after it had lost its fence");
                let reply = self.engine.after_fence_lost(&self.call, &seen).await;
                audience.end_flight(seen);
                audience.tell(reply);
            }
            Conclusion::Unreadable => {
                self.engine.observe(&Event::FencedOut(subject));
                tracing::warn!(method = %scope.method, path = %scope.path, record = %id, %fence, "the end of an attempt was not written: its record cannot be read");
                audience.tell(Err(Rejection::AnswerCorrupt));
            }
        }
    }

    /// The record was completed in the transaction of the effect: every caller gets that answer.
    fn conclude_joined<T, F: FnOnce(Result<Reply<T>, Rejection>)>(
        &self,
        seen: Seen,
        outcome: &Outcome,
        audience: &mut Callers<T, F>,
    ) {
        let Some(Record { head, answer }) = seen.record.clone() else {
            return;
        };
        if let Some(joins) = self.engine.store.joins() {
            joins.joined(&head, seen.now);
        }
        self.engine.observe(&Event::Joined {
            subject: self.call.subject(head.id),
            differs: differs(outcome, &head, answer.as_deref()),
        });
        self.keep(&seen, audience.since);
        audience.end_flight(seen);
        audience.tell_joined(head, answer);
    }

    /// The record as the attempt's own transaction left it.
    fn seen_joined(&self) -> Option<Seen> {
        let Joined { finish, now } = self.claimed.operation.joined()?;
        let record = Record {
            head: guard::ended(&self.claimed.running.head, finish, *now),
            answer: finish.answer.clone(),
        };
        self.engine.store.note_joined(&record, *now);
        Some(Seen {
            record: Some(record),
            now: *now,
        })
    }

    /// Caches the record of an attempt that ended as its work said, and reports it.
    fn keep(&self, seen: &Seen, since: Instant) -> Option<Head> {
        self.observe_finished(seen, since);
        if let Some(epoch) = self.epoch {
            self.engine.cache.keep(seen, epoch, self.engine.clock.now());
        }
        let head = seen.head()?.clone();
        self.engine.note_end(&self.call, &head);
        Some(head)
    }

    fn observe_finished(&self, seen: &Seen, since: Instant) {
        let Some(head) = seen.head() else { return };
        self.engine.observe(&Event::Finished {
            subject: self.call.subject(head.id),
            state: head.state,
            elapsed: since.elapsed(),
            // The attempt was given up for lost: its lease was over before it ended, or it ran too
            // long.
            late: self.claimed.operation.has_lost_lease(),
        });
    }

    /// Logs, once and with its cause, that an attempt ended without an answer.
    fn log_end<T, F>(&self, outcome: &Outcome, head: &Head, audience: &mut Callers<T, F>) {
        let cause = self.claimed.operation.cause();
        if head.state == State::Unknown {
            return self.log_lost(cause, audience);
        }
        if matches!(outcome, Outcome::Released { status: None }) && !audience.is_logged {
            audience.is_logged = true;
            let Head { id, scope, .. } = head;
            tracing::warn!(method = %scope.method, path = %scope.path, record = %id, cause, "an attempt had no effect: a repeat may run it again");
        }
    }

    fn log_lost<T, F>(&self, cause: &str, audience: &mut Callers<T, F>) {
        if std::mem::replace(&mut audience.is_logged, true) {
            return;
        }
        let Head {
            id, fence, scope, ..
        } = &self.claimed.running.head;
        let next = match self.call.policy.mode {
            Mode::Hold => "its key is held until its answer comes late or somebody settles it",
            Mode::Probe => "a repeat asks the service what became of it",
            _ => "a repeat runs it again",
        };
        tracing::warn!(method = %scope.method, path = %scope.path, record = %id, %fence, cause, next, "the outcome of an attempt is unknown");
    }
}

/// What ended the wait for the work.
enum Watched<T> {
    Ended(Result<Ended<T>, JoinError>),
    LeaseLost,
    RanTooLong,
}

/// The message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a value that is no text")
}

/// Whether the work returned something other than it stored.
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
