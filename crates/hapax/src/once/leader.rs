//! The leader: decides on behalf of all requests of one key that this node has, and makes the
//! claim.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use hapax_core::decide::{Decision, decide};
use hapax_core::outcome::Loss;
use hapax_core::planted::{self, Bug};
use hapax_core::policy::{KeyRule, KeySource, Mode, Policy};
use hapax_core::record::{AttemptToken, Head, Record, State};
use hapax_core::rejection::Rejection;
use hapax_core::scope::RecordId;
use hapax_core::store::{Change, Claim, Condition, Put, Seen, Terms, Written};
use hapax_core::time::Timestamp;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Operation;
use super::attempt::{self, Attempt};
use super::call::{Call, Ended, Reply, Ties};
use super::claim::Unused;
use super::engine::{Engine, Room};
use super::flights::{Landing, Seat};
use super::path::{ROUNDS_MAX, in_flight, since};
use super::remote;
use super::usage::Reserved;
use super::velocity::Taken;
use crate::observe::{Event, Source};

/// What a leader reports to its caller.
pub(super) enum Led<T, W> {
    Reply(Result<Reply<T>, Rejection>),
    /// An attempt of another node is running; the work was not used.
    Follow {
        seen: Seen,
        work: W,
    },
}

/// Decides on behalf of all requests of one key that this node has, and makes the claim.
pub(super) struct Leader {
    pub(super) engine: Arc<Engine>,
    pub(super) call: Call,
    /// The forget-epoch, known since before any record was read.
    pub(super) epoch: Option<u64>,
    /// What was learnt by joining, if anything.
    pub(super) known: Option<Seen>,
}

impl Leader {
    pub(super) async fn lead<T, W, F>(
        mut self,
        seat: Seat,
        work: W,
        tell: oneshot::Sender<Led<T, W>>,
    ) where
        T: Send + 'static,
        W: FnOnce(Operation) -> F + Send + 'static,
        F: Future<Output = Ended<T>> + Send + 'static,
    {
        match self.decide(seat.id()).await {
            Ok(Course::Run(claimed)) => {
                let attempt = Attempt {
                    engine: self.engine,
                    call: self.call,
                    claimed,
                    epoch: self.epoch,
                };
                attempt::run(attempt, seat, work, |reply| {
                    drop(tell.send(Led::Reply(reply)));
                })
                .await;
            }
            Ok(Course::Replay(seen)) => {
                if let Some(epoch) = self.epoch {
                    self.engine.cache.keep(&seen, epoch);
                }
                let reply = self.engine.replay(&self.call, &seen, Source::Store);
                seat.land_seen(seen, false);
                let _ = tell.send(Led::Reply(reply));
            }
            Ok(Course::Follow(seen, head)) => {
                if self.call.wait.is_zero() {
                    seat.land_seen(seen.clone(), false);
                } else if let Some(fingerprint) = head.fingerprint {
                    let began = Instant::now()
                        .checked_sub(since(&seen))
                        .unwrap_or_else(Instant::now);
                    seat.running(fingerprint, began);
                    remote::follow(&self.engine, seat, head.fence);
                }
                let _ = tell.send(Led::Follow { seen, work });
            }
            Err(Refusal { rejection, seen }) => {
                match seen {
                    Some(seen) => seat.land_seen(seen, false),
                    None if rejection == Rejection::StoreUnavailable => {
                        seat.land(Landing::Failed(rejection.clone()));
                    }
                    // The leader's own trouble, such as a body that cannot be read again.
                    None => seat.land(Landing::Again),
                }
                let _ = tell.send(Led::Reply(Err(rejection)));
            }
        }
    }

    /// Asks `decide` and the store in turn until both agree.
    pub(super) async fn decide(&mut self, id: RecordId) -> Result<Course, Refusal> {
        let policy = self.call.policy.clone();
        let mut seen = self.known.take();
        // A fresh key costs one round trip: its absence is assumed, and the claim's condition finds
        // out. Only a caller who may begin nothing any more looks first, and one whose new keys are
        // counted: a repeat must not take, not even for a moment, what a new key needs.
        let now = Timestamp::from_system_time(SystemTime::now());
        let is_counted = !self.call.counted.is_empty() || self.engine.store.is_counting();
        if seen.is_none()
            && (is_counted || self.call.is_late(now) || planted::is(Bug::CheckThenAct))
        {
            seen = Some(self.read(id).await?);
        }
        for _ in 0..ROUNDS_MAX {
            let head = seen
                .as_ref()
                .and_then(|seen| seen.record.as_ref())
                .map(|record| &record.head);
            let now = seen.as_ref().map_or(now, |seen| {
                if planted::is(Bug::LapseByNodeClock) {
                    now
                } else {
                    seen.now
                }
            });
            let fingerprint = self.call.fingerprint_for(head).await?;
            match decide(head, &self.call.ask(&fingerprint), now, &policy) {
                Decision::Attempt(condition) => match self.admit(condition).await {
                    Ok(admitted) => match self
                        .claim(
                            id,
                            condition,
                            head.and_then(|head| loss(head, now)),
                            admitted,
                        )
                        .await?
                    {
                        Claimed::Mine(mine) => return Ok(Course::Run(mine)),
                        Claimed::Theirs(theirs) => seen = Some(*theirs),
                    },
                    // What is done can be replayed even where nothing more can be begun: look
                    // before refusing.
                    Err(rejection) if seen.is_none() => {
                        seen = Some(self.read(id).await.map_err(|_| rejection)?);
                    }
                    Err(rejection) => return Err(Refusal { rejection, seen }),
                },
                Decision::Replay => {
                    return Ok(Course::Replay(seen.take().expect("a replay has a record")));
                }
                Decision::Wait => {
                    let head = head.expect("who waits has seen a record").clone();
                    return Ok(Course::Follow(
                        seen.take().expect("who waits has seen a record"),
                        Box::new(head),
                    ));
                }
                Decision::Hold(condition) => seen = Some(self.hold(id, condition).await?),
                Decision::Reject(rejection) => return Err(Refusal { rejection, seen }),
            }
        }
        Err(in_flight(Duration::ZERO).into())
    }

    /// Whether one more attempt may begin. Only a new key is held to more than the node's own
    /// limit: what it is made of, how many records there are, and how many its principal, and
    /// whatever else new keys are counted by, have had.
    async fn admit(&self, condition: Condition) -> Result<Admitted, Rejection> {
        let Call {
            policy,
            scope,
            counted,
            unverified,
            ..
        } = &self.call;
        let room = self.engine.room(policy)?;
        if condition != Condition::Absent {
            return Ok(Admitted {
                room,
                reserved: None,
                taken: None,
            });
        }
        if policy.key_bits_min > 0
            && self.is_key_the_callers()
            && self.call.key.bits() < policy.key_bits_min
        {
            return Err(Rejection::KeyGuessable {
                bits_min: policy.key_bits_min,
            });
        }
        let is_stranger = self.engine.find_room(&self.call).await?;
        let counted = unverified
            .as_ref()
            .filter(|_| is_stranger)
            .map_or(counted, |unverified| &unverified.counted);
        let reserved = self
            .engine
            .store
            .reserve_record(scope)
            .map_err(|_| Rejection::QuotaReached)?;
        let velocities = if policy.shadow {
            &self.engine.shadow_velocities
        } else {
            &self.engine.velocities
        };
        let taken = velocities.take(counted, Instant::now());
        let taken = taken.map_err(|retry_after| Rejection::KeysTooFast { retry_after })?;
        Ok(Admitted {
            room,
            reserved,
            taken: Some(taken),
        })
    }

    /// Whether the caller made the key, and could have made it better.
    fn is_key_the_callers(&self) -> bool {
        let Policy {
            key, key_source, ..
        } = &*self.call.policy;
        *key != KeyRule::Issued && !matches!(key_source, KeySource::Derived(_))
    }

    async fn read(&self, id: RecordId) -> Result<Seen, Rejection> {
        let mut reading = self
            .engine
            .ask_in(
                self.call.policy.store_timeout,
                self.engine.store.get(vec![id]),
            )
            .await?;
        Ok(Seen {
            record: reading.records.pop().flatten(),
            now: reading.now,
        })
    }

    /// Writes down that the attempt was lost, unless it has ended after all.
    async fn hold(&self, id: RecordId, condition: Condition) -> Result<Seen, Rejection> {
        let put = Put {
            id,
            condition,
            change: Change::Lose((&*self.call.policy).into()),
        };
        match self
            .engine
            .ask_in(
                self.call.policy.store_timeout,
                self.engine.store.put_if(put),
            )
            .await?
        {
            Written::Won(won) => Ok(Seen {
                record: Some(Record {
                    head: won.head,
                    answer: None,
                }),
                now: won.now,
            }),
            Written::Lost(seen) => Ok(seen),
        }
    }

    /// `lost` is why the attempt before this one is unknown, if it is.
    async fn claim(
        &self,
        id: RecordId,
        condition: Condition,
        lost: Option<Loss>,
        admitted: Admitted,
    ) -> Result<Claimed, Refusal> {
        // Whatever is not spent below is given back: a claim that finds a record is no new key.
        let Admitted {
            room,
            reserved,
            taken,
        } = admitted;
        let Call {
            policy,
            scope,
            key,
            request_id,
            ..
        } = &self.call;
        // Under the route's own policy; a further attempt keeps the fingerprint of the first.
        let fingerprint = self.call.fingerprint(&policy.fingerprint).await?;
        let operation_ids = self.engine.operation_ids(policy.store_timeout).await?;
        let lease = if planted::is(Bug::RetentionAsLease) {
            policy.retention
        } else {
            policy.lease
        };
        let token = new_token();
        let terms = (policy.mode == Mode::Transaction).then(|| Arc::new(Terms::from(&**policy)));
        let request_id = request_id.clone();
        let claim = Claim {
            scope: scope.stored(),
            key: key.clone(),
            fingerprint,
            token,
            lease,
            terms,
            request_id,
        };
        let put = Put {
            id,
            condition,
            change: Change::Claim(claim),
        };

        let unused = lost.map_or(Unused::Retryable, Unused::Unknown);
        self.engine.observe(&Event::Claiming(self.call.subject(id)));
        let (written, room) = self.engine.claim(put, token, policy, unused, room).await?;
        match written {
            Written::Won(won) => {
                let (fence, attempt) = (won.head.fence, won.head.attempts);
                let subject = self.call.subject(id);
                self.engine.observe(&Event::Claimed {
                    subject,
                    fence,
                    attempt,
                });
                drop(reserved);
                if let Some(taken) = taken {
                    self.engine.capacity.add_record();
                    taken.spend();
                    if let Some(kind) = key.looks_like().filter(|_| self.is_key_the_callers()) {
                        self.engine.observe(&Event::GuessableKey { subject, kind });
                    }
                }
                let ties = Ties {
                    policy: policy.clone(),
                    store: self.engine.store.clone(),
                    follows_lost: lost.is_some(),
                };
                let operation = Operation::new(
                    operation_ids.make(&id, won.head.created_at),
                    &won.head,
                    ties,
                );
                Ok(Claimed::Mine(Box::new(attempt::Claimed {
                    head: won.head,
                    operation,
                    _room: room,
                })))
            }
            Written::Lost(seen) => Ok(Claimed::Theirs(Box::new(seen))),
        }
    }
}

/// What one more attempt takes up before it has begun.
struct Admitted {
    room: Room,
    reserved: Option<Reserved>,
    taken: Option<Taken>,
}

/// What a leader is going to do.
pub(super) enum Course {
    Run(Box<attempt::Claimed>),
    Replay(Seen),
    Follow(Seen, Box<Head>),
}

enum Claimed {
    Mine(Box<attempt::Claimed>),
    Theirs(Box<Seen>),
}

/// What a leader tells its caller, and the record its joiners may judge for themselves.
pub(super) struct Refusal {
    pub(super) rejection: Rejection,
    seen: Option<Seen>,
}

impl From<Rejection> for Refusal {
    fn from(rejection: Rejection) -> Self {
        Refusal {
            rejection,
            seen: None,
        }
    }
}

/// Why the attempt in this record was lost, if it was: it may have had its effect.
fn loss(head: &Head, now: Timestamp) -> Option<Loss> {
    Some(head.state_at(now))
        .filter(|state| *state == State::Unknown)
        .and_then(|state| head.loss(state))
}

/// A token that no other claim has: random bytes of this process, and a count. It is no secret, so
/// that the system need not be asked for new ones each time.
fn new_token() -> AttemptToken {
    static PROCESS: LazyLock<[u8; 8]> = LazyLock::new(|| {
        uuid::Uuid::new_v4().into_bytes()[..8]
            .try_into()
            .expect("eight of sixteen")
    });
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&*PROCESS);
    bytes[8..].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    AttemptToken::from_bytes(bytes)
}
