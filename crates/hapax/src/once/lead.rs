//! The leader: takes the steps of a call up to its claim, for all requests of its key on this node.
//!
//! [`Step::next`] decides which step comes next. This file adds the time limits, the pauses, and
//! the resources that an attempt takes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use hapax_core::fingerprint::Fingerprint;
use hapax_core::operation::OperationIds;
use hapax_core::policy::{Mode, Policy};
use hapax_core::record::{AttemptToken, Head};
use hapax_core::rejection::Rejection;
use hapax_core::step::{self, Caller, Claiming, Running, Step};
use hapax_core::store::{Change, Claim, Condition, Put, Seen, Store, Terms};
use tokio::time::Instant;
use tracing::Instrument;

use super::Operation;
use super::call::Call;
use super::engine::{Engine, Room};
use super::operation::OperationContext;
use super::usage::Reserved;
use super::velocity::Taken;
use crate::backoff::Backoff;
use crate::observe::Event;

/// How often one call may find that the record has changed meanwhile before its caller is told to
/// retry.
pub(super) const ROUNDS_MAX: usize = 16;
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// After this many tries an orphaned claim is left to lapse, and its key is held as unknown.
const ORPHAN_TRIES_MAX: usize = 1_000;

/// The result of leading.
pub(super) enum Lead {
    /// The claim is won: run the work.
    Run(Box<Claimed>),
    /// Send the stored answer.
    Replay(Seen),
    /// An attempt of another node is running.
    Wait(Seen),
    /// Answer with this rejection. Joiners may judge the record themselves.
    Reject {
        rejection: Rejection,
        seen: Option<Seen>,
    },
}

impl From<Rejection> for Lead {
    fn from(rejection: Rejection) -> Self {
        Lead::Reject {
            rejection,
            seen: None,
        }
    }
}

/// A claim that was won.
pub(super) struct Claimed {
    pub(super) running: Running,
    pub(super) operation: Operation,
    /// Held until the attempt has ended.
    pub(super) _room: Room,
}

/// A call whose steps are being taken.
pub(super) struct Leader<'a> {
    engine: &'a Arc<Engine>,
    call: &'a Call,
    /// The claim that was sent last.
    sent: Option<Sent>,
}

/// A claim that was sent, and the resources it has taken.
struct Sent {
    put: Put,
    token: AttemptToken,
    operation_ids: OperationIds,
    admitted: Admitted,
    deadline: Instant,
    backoff: Backoff,
}

impl<'a> Leader<'a> {
    pub(super) fn new(engine: &'a Arc<Engine>, call: &'a Call) -> Self {
        Leader {
            engine,
            call,
            sent: None,
        }
    }

    /// Takes one step after the other. `known` is the record learned by joining a flight, if any.
    pub(super) async fn lead(mut self, known: Option<Seen>) -> Lead {
        let head = known.as_ref().and_then(Seen::head);
        let mut fingerprint = match self.call.fingerprint_for(head).await {
            Ok(fingerprint) => fingerprint,
            Err(rejection) => return rejection.into(),
        };
        let mut step = match known {
            None => Step::first(self.looks_first()),
            Some(seen) => self.caller(&fingerprint).decide(seen),
        };
        let mut rounds = 0;
        loop {
            if step.may_be_left() {
                if rounds == ROUNDS_MAX {
                    return Rejection::in_flight(Duration::ZERO).into();
                }
                rounds += 1;
            }
            let event = match &step {
                Step::Read { .. } => self.read().await,
                Step::Claim { claiming, .. } => match self.claim(*claiming).await {
                    Ok(event) => event,
                    Err(rejection) => return rejection.into(),
                },
                Step::Release { claiming, fence } => {
                    let sent = &self.sent.as_ref().expect("what is released was sent").put;
                    let lifetime = (&*self.call.policy).into();
                    self.put(claiming.release(sent, *fence, lifetime)).await
                }
                Step::WriteLost(condition) => self.write_lost(*condition).await,
                _ => return self.conclude(step),
            };
            // Compute the fingerprint only where it is compared: between a won claim and its work
            // nothing may take long, or fail.
            if let Some(head) = step.judged(&event, self.token()) {
                fingerprint = match self.call.fingerprint_for(Some(head)).await {
                    Ok(fingerprint) => fingerprint,
                    Err(rejection) => return rejection.into(),
                };
            }
            step = step.next(event, &self.caller(&fingerprint));
        }
    }

    fn conclude(mut self, step: Step) -> Lead {
        match step {
            Step::Replay(seen) => Lead::Replay(seen),
            Step::Wait(seen) => Lead::Wait(seen),
            Step::Run(running) => Lead::Run(Box::new(self.claimed(*running))),
            Step::Abandon {
                claiming,
                rejection,
            } => {
                self.see_to_orphan(claiming);
                rejection.into()
            }
            Step::Reject { rejection, seen } => Lead::Reject { rejection, seen },
            other => unreachable!("{other:?} is taken elsewhere"),
        }
    }

    /// Whether to read the record before claiming. That is so if the caller may be too late to
    /// begin, or if new keys are counted: a repeat must not take, even for a moment, the room that
    /// a new key needs.
    fn looks_first(&self) -> bool {
        let now = self.engine.clock.wall();
        !self.call.counted.is_empty() || self.engine.store.is_counting() || self.call.is_late(now)
    }

    fn caller<'f>(&'f self, fingerprint: &'f Fingerprint) -> Caller<'f> {
        Caller {
            ask: self.call.ask(fingerprint),
            policy: &self.call.policy,
            token: self.token(),
        }
    }

    fn token(&self) -> AttemptToken {
        self.sent
            .as_ref()
            .map_or_else(AttemptToken::default, |sent| sent.token)
    }

    async fn read(&mut self) -> step::Event {
        self.sent = None;
        let reading = self.engine.store.get(vec![self.call.id]);
        match self
            .engine
            .ask_in(self.call.policy.store_timeout, reading)
            .await
        {
            Ok(mut reading) => step::Event::Seen(Seen {
                record: reading.records.pop().flatten(),
                now: reading.now,
            }),
            Err(rejection) => failed(rejection, false),
        }
    }

    async fn write_lost(&mut self, condition: Condition) -> step::Event {
        // The claim has lost: give back what it has taken.
        self.sent = None;
        let change = Change::Lose((&*self.call.policy).into());
        self.put(Put {
            id: self.call.id,
            condition,
            change,
        })
        .await
    }

    async fn put(&self, put: Put) -> step::Event {
        let written = self.engine.store.put_if(put);
        match self
            .engine
            .ask_in(self.call.policy.store_timeout, written)
            .await
        {
            Ok(written) => written.into(),
            Err(rejection) => failed(rejection, false),
        }
    }

    /// Sends a claim, or sends it again.
    async fn claim(&mut self, claiming: Claiming) -> Result<step::Event, Rejection> {
        if !claiming.may_be_written {
            // First give back what the previous claim has taken.
            self.sent = None;
            match self.admit(claiming.condition).await {
                Ok(admitted) => self.sent = Some(self.prepare(claiming.condition, admitted).await?),
                Err(rejection) => return Ok(step::Event::NotAdmitted(rejection)),
            }
            self.engine
                .observe(&Event::Claiming(self.call.subject(self.call.id)));
        }
        let sent = self
            .sent
            .as_mut()
            .expect("it was just made, or sent before");
        let left = sent.deadline.saturating_duration_since(Instant::now());
        let written = self.engine.store.put_if(sent.put.clone());
        Ok(match self.engine.ask_in(left, written).await {
            Ok(written) => written.into(),
            Err(rejection) => {
                let pause = sent.backoff.next_pause();
                let is_time_left = Instant::now() + pause < sent.deadline;
                if is_time_left && rejection == Rejection::StoreUnavailable {
                    tokio::time::sleep(pause).await;
                }
                failed(rejection, is_time_left)
            }
        })
    }

    async fn prepare(&self, condition: Condition, admitted: Admitted) -> Result<Sent, Rejection> {
        let Call {
            id,
            policy,
            scope,
            key,
            request_id,
            ..
        } = self.call;
        // Under the route's own policy. A later attempt keeps the fingerprint of the first.
        let fingerprint = self.call.fingerprint(&policy.fingerprint).await?;
        let operation_ids = self.engine.operation_ids(policy.store_timeout).await?;
        let token = new_token();
        let terms = (policy.mode == Mode::Transaction).then(|| Arc::new(Terms::from(&**policy)));
        let claim = Claim {
            scope: scope.stored(),
            key: key.clone(),
            fingerprint,
            token,
            lease: policy.lease,
            terms,
            request_id: request_id.clone(),
        };
        let put = Put {
            id: *id,
            condition,
            change: Change::Claim(claim),
        };
        Ok(Sent {
            put,
            token,
            operation_ids,
            admitted,
            deadline: Instant::now() + policy.store_timeout,
            backoff: Backoff::new(PAUSE_MIN, PAUSE_MAX),
        })
    }

    /// Checks whether one more attempt may begin. Every attempt needs room on this node. A new key
    /// must also be hard enough to guess, and within the limits on records, on its principal's
    /// quota, and on velocity.
    async fn admit(&self, condition: Condition) -> Result<Admitted, Rejection> {
        let Call {
            policy,
            scope,
            counted,
            unverified,
            ..
        } = self.call;
        let room = self.engine.room(policy)?;
        if condition != Condition::Absent {
            return Ok(Admitted {
                room,
                reserved: None,
                taken: None,
            });
        }
        self.call.check_key()?;
        let is_stranger = self.engine.find_room(self.call).await?;
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
        let taken = velocities.take(counted, self.engine.clock.now());
        let taken = taken.map_err(|retry_after| Rejection::KeysTooFast { retry_after })?;
        Ok(Admitted {
            room,
            reserved,
            taken: Some(taken),
        })
    }

    /// Makes the attempt of a won claim: the resources it has taken are now spent.
    fn claimed(&mut self, running: Running) -> Claimed {
        let Sent {
            admitted,
            operation_ids,
            ..
        } = self.sent.take().expect("what is won was sent");
        let Admitted {
            room,
            reserved,
            taken,
        } = admitted;
        let Head {
            fence, attempts, ..
        } = running.head;
        let subject = self.call.subject(self.call.id);
        self.engine.observe(&Event::Claimed {
            subject,
            fence,
            attempt: attempts,
        });
        drop(reserved);
        if let Some(taken) = taken {
            self.engine.capacity.add_record();
            taken.spend();
            let guessable = self.call.key.looks_like();
            if let Some(kind) = guessable.filter(|_| self.call.is_key_the_callers()) {
                self.engine.observe(&Event::GuessableKey { subject, kind });
            }
        }
        let ties = OperationContext {
            policy: self.call.policy.clone(),
            store: self.engine.store.clone(),
            follows_lost: running.follows.is_some(),
            trace: self.call.trace.clone(),
        };
        let id = operation_ids.make(&self.call.id, running.head.created_at);
        Claimed {
            operation: Operation::new(id, &running.head, ties),
            running,
            _room: room,
        }
    }

    /// Makes sure, in the background, that a claim whose caller has gone does not hold its key.
    fn see_to_orphan(&mut self, claiming: Claiming) {
        let sent = self.sent.take().expect("what is abandoned was sent");
        let Ok(permit) = self.engine.orphans.clone().try_acquire_owned() else {
            let record = sent.put.id;
            // While the store is away every claim is lost, and the log has been told that it is.
            return if self.engine.is_store_away() {
                tracing::debug!(%record, "too many lost claims: this one is left to lapse");
            } else {
                tracing::warn!(%record, "too many lost claims: this one is left to lapse");
            };
        };
        let (engine, policy, counted) = (
            self.engine.clone(),
            self.call.policy.clone(),
            self.engine.attempts.token(),
        );
        let Sent { put, token, .. } = sent;
        let releasing = async move {
            if !engine.release_orphan(claiming, &put, token, &policy).await {
                tracing::warn!(record = %put.id, "a claim whose reply was lost could not be released");
            }
            drop((permit, counted));
        };
        tokio::spawn(releasing.in_current_span());
    }
}

impl Engine {
    /// Repeats until it is certain that the claim does not hold the key. Returns whether that was
    /// reached.
    async fn release_orphan(
        &self,
        claiming: Claiming,
        claim: &Put,
        token: AttemptToken,
        policy: &Policy,
    ) -> bool {
        let Change::Claim(Claim { fingerprint, .. }) = &claim.change else {
            unreachable!("an orphan is a claim")
        };
        let caller = Caller {
            ask: hapax_core::Ask {
                fingerprint,
                deadline: None,
                token_until: None,
            },
            policy,
            token,
        };
        let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        let mut step = Step::Claim {
            claiming,
            seen: None,
        };
        let mut tries = 0;
        loop {
            let put = match &step {
                Step::Release { claiming, fence } => claiming.release(claim, *fence, policy.into()),
                Step::Claim { .. } if tries < ORPHAN_TRIES_MAX => {
                    tries += 1;
                    backoff.pause().await;
                    claim.clone()
                }
                other => return *other == Step::Over,
            };
            let written = self
                .ask_in(policy.store_timeout, self.store.put_if(put))
                .await;
            let event = written.map_or_else(|rejection| failed(rejection, true), Into::into);
            step = step.next(event, &caller);
        }
    }
}

fn failed(rejection: Rejection, is_time_left: bool) -> step::Event {
    step::Event::Failed {
        rejection,
        is_time_left,
    }
}

/// The resources that an attempt takes before its claim.
struct Admitted {
    room: Room,
    reserved: Option<Reserved>,
    taken: Option<Taken>,
}

/// A token that no other claim has: random bytes of this process, and a counter. It is not a
/// secret, so fresh random bytes are not needed each time.
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
