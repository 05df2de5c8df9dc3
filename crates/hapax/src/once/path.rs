//! The path of a call: memory, then whoever is at it already, then the store.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::answer::Answer;
use hapax_core::decide::{Decision, decide};
use hapax_core::planted::{self, Bug};
use hapax_core::policy::Policy;
use hapax_core::record::{Head, State};
use hapax_core::rejection::Rejection;
use hapax_core::scope::RecordId;
use hapax_core::store::Seen;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::Instrument;

use super::Operation;
use super::call::{Call, Ended, Reply};
use super::engine::Engine;
use super::flights::{Entry, Flight, Landing, Phase};
use super::leader::{Leader, Led};
use crate::observe::{Event, Source};

/// How often one call may find that the record has changed under it before it is told to come back.
pub(super) const ROUNDS_MAX: usize = 16;

impl Engine {
    /// Answers a call, having its work run if nothing is remembered of it.
    ///
    /// Dropping the future changes nothing for the work: it runs on a task of its own.
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
        // Known before any record is read: what is read later may be kept under it.
        let epoch = self.epoch(call.policy.store_timeout).await;
        if let Some(reply) = self.recall(call, id, epoch).await {
            return reply;
        }
        let patience = Instant::now() + call.wait.min(call.policy.wait_max);
        let (mut work, mut known) = (work, None);
        for _ in 0..ROUNDS_MAX {
            match self.flights.enter(id) {
                Entry::Lead(seat) => {
                    let (tell, told) = oneshot::channel();
                    let leader = Leader {
                        engine: self.clone(),
                        call: call.clone(),
                        epoch,
                        known: known.take(),
                    };
                    // Boxed, because starting a task moves its future several times, and this one
                    // holds the whole request.
                    let lead = Box::pin(leader.lead(seat, work, tell));
                    tokio::spawn(lead.in_current_span());
                    // A leader that vanishes is our bug; what it did is not known.
                    match told
                        .await
                        .unwrap_or(Led::Reply(Err(lost(&call.policy, false))))
                    {
                        Led::Reply(reply) => return reply,
                        Led::Follow { seen, work: unused } => {
                            if patience <= Instant::now() {
                                return Err(in_flight(since(&seen)));
                            }
                            work = unused;
                        }
                    }
                }
                Entry::Join(flight) => match self.join(call, flight, patience).await? {
                    None => {}
                    Some(seen) => match self.settled(call, &seen, Source::Wait).await {
                        Settled::Reply(reply) => return reply,
                        Settled::Wait if patience <= Instant::now() => {
                            return Err(in_flight(since(&seen)));
                        }
                        Settled::Wait | Settled::Act => known = Some(Seen::clone(&seen)),
                    },
                },
            }
        }
        Err(in_flight(Duration::ZERO))
    }

    /// A replay from memory. The fingerprint is compared here as anywhere.
    async fn recall<T>(
        &self,
        call: &Call,
        id: RecordId,
        epoch: Option<u64>,
    ) -> Option<Result<Reply<T>, Rejection>> {
        let (record, now) = self.cache.get(&id, epoch?)?;
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
            Decision::Reject(Rejection::KeyReused) if planted::is(Bug::CacheSkipsFingerprint) => {}
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

    /// Joins a flight: the record it landed with, or nothing if the caller should look again.
    async fn join(
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
        let waiter = counted.ok_or_else(|| in_flight(Duration::ZERO))?;
        // The leader asks the store a bounded number of times; this only guards against one that
        // does not.
        let claiming = tokio::time::timeout(call.policy.store_timeout * 4, waiter.flight.decided());
        let landing = match claiming.await.map_err(|_| Rejection::StoreUnavailable)? {
            Phase::Claiming => return Ok(None),
            Phase::Landed(landing) => landing,
            Phase::Running(running) => {
                if call.fingerprint(&running.fingerprint.policy).await? != running.fingerprint {
                    return Err(Rejection::KeyReused);
                }
                let come_back = || in_flight(running.since.elapsed());
                if patience <= Instant::now() {
                    return Err(come_back());
                }
                self.observe(&Event::Waiting(call.subject(call.id)));
                tokio::time::timeout_at(patience, waiter.flight.landed())
                    .await
                    .map_err(|_| come_back())?
            }
        };
        match landing {
            Landing::Again => Ok(None),
            Landing::Failed(rejection) => Err(rejection),
            // Those who waited do not all rush in where one was turned away.
            Landing::Seen { seen, ran: true }
                if is_retryable(&seen) && !planted::is(Bug::RetryableStampede) =>
            {
                let head = seen.record.as_ref().map(|record| &record.head);
                let is_same = Some(call.fingerprint_for(head).await?)
                    == head.and_then(|head| head.fingerprint.clone());
                Err(if is_same {
                    in_flight(Duration::ZERO)
                } else {
                    Rejection::KeyReused
                })
            }
            Landing::Seen { seen, .. } => Ok(Some(seen)),
        }
    }

    /// What a record means for a caller who has no claim of its own to make.
    async fn settled<T>(&self, call: &Call, seen: &Seen, source: Source) -> Settled<T> {
        let head = seen.record.as_ref().map(|record| &record.head);
        let fingerprint = match call.fingerprint_for(head).await {
            Ok(fingerprint) => fingerprint,
            Err(rejection) => return Settled::Reply(Err(rejection)),
        };
        match decide(head, &call.ask(&fingerprint), seen.now, &call.policy) {
            Decision::Replay => Settled::Reply(self.replay(call, seen, source)),
            Decision::Reject(rejection) => Settled::Reply(Err(rejection)),
            Decision::Wait => Settled::Wait,
            Decision::Attempt(_) | Decision::Hold(_) => Settled::Act,
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

    /// What is there after an attempt lost its fence: discard, re-read, replay.
    pub(super) async fn after_fence_lost<T>(
        &self,
        call: &Call,
        seen: &Seen,
    ) -> Result<Reply<T>, Rejection> {
        match self.settled(call, seen, Source::Store).await {
            Settled::Reply(reply) => reply,
            Settled::Wait | Settled::Act => Err(in_flight(since(seen))),
        }
    }
}

/// What a record means for a caller who only looks at it.
enum Settled<T> {
    Reply(Result<Reply<T>, Rejection>),
    Wait,
    Act,
}

/// Whether an answer was kept under the version that the route has now: in another it might mislead
/// its reader.
fn is_of_version(answer: &Answer, policy: &Policy) -> bool {
    answer.version() == policy.answer_version.as_deref().map(str::as_bytes)
}

/// What is said of an answer that is not sent again: the effect is done, and there is no answer to
/// show for it.
fn not_kept(head: &Head) -> Rejection {
    Rejection::AnswerNotKept {
        status: head.answered(),
        at: head.finished_at,
    }
}

/// What the first caller hears of an attempt that was lost.
pub(crate) fn lost(policy: &Policy, timed_out: bool) -> Rejection {
    Rejection::Lost {
        timed_out,
        repeat: policy.mode.repeats_lost(),
    }
}

/// Come back, the later the longer it has been running already.
pub(super) fn in_flight(running_for: Duration) -> Rejection {
    Rejection::InFlight {
        retry_after: running_for.clamp(Duration::from_millis(100), Duration::from_secs(5)),
    }
}

/// How long the attempt in this record has been running.
pub(super) fn since(seen: &Seen) -> Duration {
    seen.record.as_ref().map_or(Duration::ZERO, |record| {
        seen.now.since(record.head.claimed_at)
    })
}

fn is_retryable(seen: &Seen) -> bool {
    seen.record
        .as_ref()
        .is_some_and(|record| record.head.state == State::Retryable)
}
