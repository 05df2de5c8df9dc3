//! The path of a call through this node: first the cache, then a flight of the same key, then the
//! store.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::answer::Answer;
use hapax_core::decide::{Decision, decide};
use hapax_core::policy::Policy;
use hapax_core::record::{Head, State};
use hapax_core::rejection::Rejection;
use hapax_core::scope::RecordId;
use hapax_core::store::Seen;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::Instrument;

use super::attempt::{self, Attempt};
use super::call::{Call, Ended, Reply};
use super::engine::Engine;
use super::flights::{Entry, Flight, FlightEnd, FlightLead, FlightState};
use super::lead::{Lead, Leader, ROUNDS_MAX};
use super::operation::Operation;
use super::remote;
use crate::observe::{Event, Source};

impl Engine {
    /// Answers a call, and runs its work if no record prevents it.
    ///
    /// Dropping the future does not stop the work, which has its own task.
    pub(crate) async fn drive<T, W, F>(
        self: &Arc<Self>,
        call: Call,
        work: W,
    ) -> Result<Reply<T>, Rejection>
    where
        T: Send + 'static,
        W: FnOnce(Operation) -> F + Send + 'static,
        F: Future<Output = Ended<T>> + Send + 'static,
    {
        self.start_background();
        let id = call.id;
        let reply = self.find_answer(&call, id, work).await;
        match &reply {
            Err(rejection) => self.observe(&Event::Rejected {
                subject: Some(call.subject(id)),
                rejection,
            }),
            Ok(Reply::First { .. } | Reply::Joined { .. }) => {
                self.observe(&Event::Answering(call.subject(id)));
            }
            Ok(Reply::Replay { .. }) => {}
        }
        reply
    }

    async fn find_answer<T, W, F>(
        self: &Arc<Self>,
        call: &Call,
        id: RecordId,
        work: W,
    ) -> Result<Reply<T>, Rejection>
    where
        T: Send + 'static,
        W: FnOnce(Operation) -> F + Send + 'static,
        F: Future<Output = Ended<T>> + Send + 'static,
    {
        // Read the epoch before any record: a record that is read later may be cached under it.
        let epoch = self.epoch(call.policy.store_timeout).await;
        if let Some(reply) = self.recall(call, id, epoch).await {
            return reply;
        }
        let patience = Instant::now() + call.wait.min(call.policy.wait_max);
        let (mut work, mut known) = (work, None);
        for _ in 0..ROUNDS_MAX {
            match self.flights.enter(id) {
                Entry::Lead(flight) => {
                    let (send, received) = oneshot::channel();
                    // Boxed, because starting a task moves its future several times, and this one
                    // holds the whole request.
                    let lead = Box::pin(lead(
                        self.clone(),
                        call.clone(),
                        epoch,
                        known.take(),
                        flight,
                        work,
                        send,
                    ));
                    tokio::spawn(lead.in_current_span());
                    // A leader that disappears is a bug in Hapax; the outcome is unknown.
                    let lost = || Led::Reply(Err(Rejection::lost(&call.policy, false)));
                    match received.await.unwrap_or_else(|_| lost()) {
                        Led::Reply(reply) => return reply,
                        Led::Wait { running_for, .. } if patience <= Instant::now() => {
                            return Err(Rejection::in_flight(running_for));
                        }
                        Led::Wait { work: unused, .. } => work = unused,
                    }
                }
                Entry::Join(flight) => match self.wait_for_flight(call, flight, patience).await? {
                    None => {}
                    Some(seen) => match self.reply_from(call, &seen, Source::Wait).await {
                        Found::Reply(reply) => return reply,
                        Found::Running if patience <= Instant::now() => {
                            return Err(Rejection::in_flight(seen.running_for()));
                        }
                        Found::Running | Found::MayRun => known = Some(Seen::clone(&seen)),
                    },
                },
            }
        }
        Err(Rejection::in_flight(Duration::ZERO))
    }

    /// Replays an answer from memory. The fingerprint is compared here too.
    async fn recall<T>(
        &self,
        call: &Call,
        id: RecordId,
        epoch: Option<u64>,
    ) -> Option<Result<Reply<T>, Rejection>> {
        let (record, now) = self.cache.get(&id, epoch?, self.clock.now())?;
        let answer = record.answer.clone()?;
        let head = Box::new(record.head.clone());
        let of_version = is_of_version(&answer, &call.policy);
        let decision = match call.fingerprint_for(Some(&record.head)).await {
            Ok(fingerprint) => decide(
                Some(&record.head),
                &call.ask(&fingerprint),
                now,
                &call.policy,
            ),
            Err(rejection) => Decision::Reject(rejection),
        };
        match decision {
            Decision::Replay if !of_version => return Some(Err(not_kept(&head))),
            Decision::Replay => {}
            Decision::Reject(rejection) => return Some(Err(rejection)),
            _ => return None,
        }
        self.observe(&Event::Replayed {
            subject: call.subject(id),
            source: Source::Cache,
        });
        Some(Ok(Reply::Replay {
            head,
            answer,
            source: Source::Cache,
        }))
    }

    /// Waits for a flight. Returns the record it ended with, or `None` if the caller should look
    /// again.
    async fn wait_for_flight(
        &self,
        call: &Call,
        flight: Arc<Flight>,
        patience: Instant,
    ) -> Result<Option<Arc<Seen>>, Rejection> {
        let counted = flight.wait(
            &self.flights,
            self.limits.waiters_per_key_max,
            self.limits.waiters_max,
        );
        let waiter = counted.ok_or_else(|| Rejection::in_flight(Duration::ZERO))?;
        // The leader's calls to the store are bounded; this timeout only guards against a leader
        // that is stuck.
        let claiming = tokio::time::timeout(call.policy.store_timeout * 4, waiter.flight.decided());
        let end = match claiming.await.map_err(|_| Rejection::StoreUnavailable)? {
            FlightState::Claiming => return Ok(None),
            FlightState::Ended(end) => end,
            FlightState::Running(running) => {
                if call.fingerprint(&running.fingerprint.policy).await? != running.fingerprint {
                    return Err(Rejection::KeyReused);
                }
                let come_back = || Rejection::in_flight(running.since.elapsed());
                if patience <= Instant::now() {
                    return Err(come_back());
                }
                self.observe(&Event::Waiting(call.subject(call.id)));
                tokio::time::timeout_at(patience, waiter.flight.ended())
                    .await
                    .map_err(|_| come_back())?
            }
        };
        match end {
            FlightEnd::Again => Ok(None),
            FlightEnd::Failed(rejection) => Err(rejection),
            // After a released attempt the waiters are refused, so that they do not all start at
            // once.
            FlightEnd::Seen { seen, ran: true } if is_retryable(&seen) => {
                let head = seen.head();
                let is_same = Some(call.fingerprint_for(head).await?)
                    == head.and_then(|head| head.fingerprint.clone());
                Err(if is_same {
                    Rejection::in_flight(Duration::ZERO)
                } else {
                    Rejection::KeyReused
                })
            }
            FlightEnd::Seen { seen, .. } => Ok(Some(seen)),
        }
    }

    /// The reply that a record gives to a caller without a claim.
    async fn reply_from<T>(&self, call: &Call, seen: &Seen, source: Source) -> Found<T> {
        let fingerprint = match call.fingerprint_for(seen.head()).await {
            Ok(fingerprint) => fingerprint,
            Err(rejection) => return Found::Reply(Err(rejection)),
        };
        match decide(seen.head(), &call.ask(&fingerprint), seen.now, &call.policy) {
            Decision::Replay => Found::Reply(self.replay(call, seen, source)),
            Decision::Reject(rejection) => Found::Reply(Err(rejection)),
            Decision::Wait => Found::Running,
            Decision::Attempt(_) | Decision::WriteLost(_) => Found::MayRun,
        }
    }

    pub(super) fn replay<T>(
        &self,
        call: &Call,
        seen: &Seen,
        source: Source,
    ) -> Result<Reply<T>, Rejection> {
        let record = seen.record.as_ref();
        let (Some(head), Some(answer)) = (
            record.map(|record| &record.head),
            record.and_then(|record| record.answer.clone()),
        ) else {
            return Err(Rejection::AnswerCorrupt);
        };
        if !is_of_version(&answer, &call.policy) {
            return Err(not_kept(head));
        }
        self.observe(&Event::Replayed {
            subject: call.subject(head.id),
            source,
        });
        Ok(Reply::Replay {
            head: Box::new(head.clone()),
            answer,
            source,
        })
    }

    /// The reply after an attempt lost its fence: discard the outcome, read the record again,
    /// replay.
    pub(super) async fn after_fence_lost<T>(
        &self,
        call: &Call,
        seen: &Seen,
    ) -> Result<Reply<T>, Rejection> {
        match self.reply_from(call, seen, Source::Store).await {
            Found::Reply(reply) => reply,
            Found::Running | Found::MayRun => Err(Rejection::in_flight(seen.running_for())),
        }
    }
}

/// The result of judging a record without claiming it.
enum Found<T> {
    Reply(Result<Reply<T>, Rejection>),
    /// An attempt is running.
    Running,
    /// Another attempt may begin.
    MayRun,
}

/// What a leader reports to its caller.
enum Led<T, W> {
    Reply(Result<Reply<T>, Rejection>),
    /// An attempt of another node is running; the work was not started.
    Wait {
        running_for: Duration,
        work: W,
    },
}

/// Leads a flight, on its own task, so that a caller who hangs up stops nothing.
async fn lead<T, W, F>(
    engine: Arc<Engine>,
    call: Call,
    epoch: Option<u64>,
    known: Option<Seen>,
    flight: FlightLead,
    work: W,
    send: oneshot::Sender<Led<T, W>>,
) where
    T: Send + 'static,
    W: FnOnce(Operation) -> F + Send + 'static,
    F: Future<Output = Ended<T>> + Send + 'static,
{
    match Leader::new(&engine, &call).lead(known).await {
        Lead::Run(claimed) => {
            let attempt = Attempt {
                engine,
                call,
                claimed,
                epoch,
            };
            let tell = |reply| drop(send.send(Led::Reply(reply)));
            attempt::run(attempt, flight, work, tell).await;
        }
        Lead::Replay(seen) => {
            if let Some(epoch) = epoch {
                engine.cache.keep(&seen, epoch, engine.clock.now());
            }
            let reply = engine.replay(&call, &seen, Source::Store);
            flight.end_with(seen, false);
            let _ = send.send(Led::Reply(reply));
        }
        Lead::Wait(seen) => {
            let running_for = seen.running_for();
            if call.wait.is_zero() {
                flight.end_with(seen, false);
            } else if let Some((head, fingerprint)) = seen
                .head()
                .and_then(|head| Some((head, head.fingerprint.clone()?)))
            {
                let now = Instant::now();
                flight.running(fingerprint, now.checked_sub(running_for).unwrap_or(now));
                remote::follow(&engine, flight, head.fence);
            }
            let _ = send.send(Led::Wait { running_for, work });
        }
        Lead::Reject { rejection, seen } => {
            match seen {
                Some(seen) => flight.end_with(seen, false),
                None if rejection == Rejection::StoreUnavailable => {
                    flight.end(FlightEnd::Failed(rejection.clone()));
                }
                // A failure of this request only, such as a body that cannot be read again.
                None => flight.end(FlightEnd::Again),
            }
            let _ = send.send(Led::Reply(Err(rejection)));
        }
    }
}

/// Whether an answer was kept under the route's current answer version. An answer of another
/// version might mislead the caller.
pub(crate) fn is_of_version(answer: &Answer, policy: &Policy) -> bool {
    answer.version() == policy.answer_version.as_deref().map(str::as_bytes)
}

/// The rejection for a completed operation without an answer to replay.
pub(crate) fn not_kept(head: &Head) -> Rejection {
    Rejection::AnswerNotKept {
        status: head.answered(),
        at: head.finished_at,
    }
}

fn is_retryable(seen: &Seen) -> bool {
    seen.head()
        .is_some_and(|head| head.state == State::Retryable)
}
