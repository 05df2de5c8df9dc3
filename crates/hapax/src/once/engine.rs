//! The path of a call: memory, then whoever is at it already, then the store.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use hapax_core::decide::{Ask, Decision, decide};
use hapax_core::fingerprint::Fingerprint;
use hapax_core::operation::{OperationId, Secret};
use hapax_core::planted::{self, Bug};
use hapax_core::policy::Policy;
use hapax_core::record::{AttemptToken, Head, Record, State};
use hapax_core::rejection::Rejection;
use hapax_core::scope::RecordId;
use hapax_core::store::{Change, Claim, Condition, Lifetime, Put, Seen, Store, StoreError, StoreErrorKind, Written};
use hapax_core::time::Timestamp;
use tokio::sync::{Mutex, OnceCell, OwnedSemaphorePermit, Semaphore, TryAcquireError, oneshot};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::attempt::{self, Attempt};
use super::cache::Cache;
use super::call::{Call, Ended, Reply};
use super::flights::{Entry, Flight, Flights, Landing, Phase, Seat};
use super::remote::{self, Remote};
use super::renew::Renewals;
use crate::Sweep;
use crate::observe::{Event, Observer, Source};

/// How often one call may find that the record has changed under it before it is told to come back.
const ROUNDS_MAX: usize = 16;

/// Every limit of a node that is not a route's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Attempts that may be running; further ones are refused with `too-many-keys`.
    pub attempts_in_flight_max: usize,
    /// Claims whose reply was lost that are followed up until they are released; further ones are left to lapse.
    pub lost_claims_max: usize,
    /// Requests that may wait for one key; further ones are told to come back.
    pub waiters_per_key_max: usize,
    /// Requests that may wait on this node.
    pub waiters_max: usize,
    /// Memory for answers that can be replayed without asking the store.
    pub cache_bytes_max: u64,
    /// Memory for answers whose record could not be written yet. Over it, only the mark that the effect is done is written.
    pub unwritten_bytes_max: usize,
    /// How long a poll for attempts of other nodes may take.
    pub poll_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            attempts_in_flight_max: 10_000,
            lost_claims_max: 1_024,
            waiters_per_key_max: 8_192,
            waiters_max: 65_536,
            cache_bytes_max: 64 << 20,
            unwritten_bytes_max: 64 << 20,
            poll_timeout: Duration::from_secs(2),
        }
    }
}

/// What a drain left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Attempts that did not end in time and are now held as unknown. They may still complete late, if the process lives on.
    pub left_unknown: usize,
}

pub(crate) struct Engine {
    pub(crate) store: Arc<dyn Store>,
    observer: Arc<dyn Observer>,
    pub(crate) limits: Limits,
    pub(crate) cache: Cache,
    pub(crate) renewals: Arc<Renewals>,
    pub(crate) remote: Remote,
    pub(crate) flights: Arc<Flights>,
    /// Attempts, and claims whose fate is open: what a drain waits for.
    pub(crate) attempts: TaskTracker,
    /// Room for further attempts; closed while draining.
    room: Arc<Semaphore>,
    /// Room for claims whose reply was lost, until they are released.
    pub(super) limbo: Arc<Semaphore>,
    /// Room for answers whose record could not be written yet, in bytes.
    pub(crate) unwritten: Arc<Semaphore>,
    pub(crate) sweep: Option<Sweep>,
    pub(crate) sweeping: OnceLock<()>,
    secret: OnceCell<Secret>,
    pulsing: Mutex<()>,
}

/// What a leader reports to its caller.
pub(super) enum Led<T, W> {
    Reply(Result<Reply<T>, Rejection>),
    /// An attempt of another node is running; the work was not used.
    Follow {
        seen: Seen,
        work: W,
    },
}

impl Engine {
    pub(crate) fn new(store: Arc<dyn Store>, observer: Arc<dyn Observer>, limits: Limits, sweep: Option<Sweep>) -> Arc<Self> {
        let permits = |count: usize| Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS)));
        Arc::new(Engine {
            store,
            observer,
            limits,
            cache: Cache::new(limits.cache_bytes_max),
            renewals: Arc::default(),
            remote: Remote::default(),
            flights: Arc::default(),
            attempts: TaskTracker::new(),
            room: permits(limits.attempts_in_flight_max),
            limbo: permits(limits.lost_claims_max),
            unwritten: permits(limits.unwritten_bytes_max),
            sweep,
            sweeping: OnceLock::new(),
            secret: OnceCell::new(),
            pulsing: Mutex::new(()),
        })
    }

    /// Tells the observer. Its panic is its own trouble: an attempt's known outcome must not be lost to it.
    pub(crate) fn observe(&self, event: &Event<'_>) {
        let told = std::panic::catch_unwind(AssertUnwindSafe(|| self.observer.on(event)));
        if told.is_err() {
            tracing::error!(?event, "the observer panicked");
        }
    }

    /// Answers a call, having its work run if nothing is remembered of it.
    ///
    /// Dropping the future changes nothing for the work: it runs on a task of its own.
    pub(crate) async fn drive<T, W, F>(self: &Arc<Self>, call: Call, work: W) -> Result<Reply<T>, Rejection>
    where
        T: Send + 'static,
        W: FnOnce(super::Operation) -> F + Send + 'static,
        F: Future<Output = Ended<T>> + Send + 'static,
    {
        self.start_sweeping();
        let id = call.id();
        let reply = self.find_answer(&call, id, work).await;
        match &reply {
            Err(rejection) => self.observe(&Event::Rejected { subject: Some(call.subject(id)), rejection }),
            Ok(Reply::First { .. }) => self.observe(&Event::Answering(call.subject(id))),
            Ok(Reply::Replay { .. }) => {}
        }
        reply
    }

    async fn find_answer<T, W, F>(self: &Arc<Self>, call: &Call, id: RecordId, work: W) -> Result<Reply<T>, Rejection>
    where
        T: Send + 'static,
        W: FnOnce(super::Operation) -> F + Send + 'static,
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
                    let leader = Leader { engine: self.clone(), call: call.clone(), epoch, known: known.take() };
                    tokio::spawn(leader.lead(seat, work, tell));
                    // A leader that vanishes is our bug; what it did is not known.
                    match told.await.unwrap_or(Led::Reply(Err(lost(&call.policy, false)))) {
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
                        Settled::Wait if patience <= Instant::now() => return Err(in_flight(since(&seen))),
                        Settled::Wait | Settled::Act => known = Some(Seen::clone(&seen)),
                    },
                },
            }
        }
        Err(in_flight(Duration::ZERO))
    }

    /// A replay from memory. The fingerprint is compared here as anywhere.
    async fn recall<T>(&self, call: &Call, id: RecordId, epoch: Option<u64>) -> Option<Result<Reply<T>, Rejection>> {
        let (record, now) = self.cache.get(&id, epoch?)?;
        let answer = record.answer.clone()?;
        let head = Box::new(record.head.clone());
        let decision = match call.fingerprint_for(Some(&record.head)).await {
            Ok(fingerprint) => decide(Some(&record.head), &call.ask(&fingerprint), now, &call.policy),
            Err(rejection) => Decision::Reject(rejection),
        };
        match decision {
            Decision::Replay => {}
            Decision::Reject(Rejection::KeyReused) if planted::is(Bug::CacheSkipsFingerprint) => {}
            Decision::Reject(rejection) => return Some(Err(rejection)),
            _ => return None,
        }
        self.observe(&Event::Replayed { subject: call.subject(id), source: Source::Cache });
        Some(Ok(Reply::Replay { head, answer }))
    }

    /// Joins a flight: the record it landed with, or nothing if the caller should look again.
    async fn join(&self, call: &Call, flight: Arc<Flight>, patience: Instant) -> Result<Option<Arc<Seen>>, Rejection> {
        let counted = flight.wait(&self.flights, self.limits.waiters_per_key_max, self.limits.waiters_max);
        let waiter = counted.ok_or_else(|| in_flight(Duration::ZERO))?;
        // The leader asks the store a bounded number of times; this only guards against one that does not.
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
                self.observe(&Event::Waiting(call.subject(call.id())));
                tokio::time::timeout_at(patience, waiter.flight.landed()).await.map_err(|_| come_back())?
            }
        };
        match landing {
            Landing::Again => Ok(None),
            Landing::Failed(rejection) => Err(rejection),
            // Those who waited do not all rush in where one was turned away.
            Landing::Seen { seen, ran: true } if is_retryable(&seen) && !planted::is(Bug::RetryableStampede) => {
                Err(in_flight(Duration::ZERO))
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

    fn replay<T>(&self, call: &Call, seen: &Seen, source: Source) -> Result<Reply<T>, Rejection> {
        let record = seen.record.as_ref();
        let (Some(head), Some(answer)) = (record.map(|record| &record.head), record.and_then(|record| record.answer.clone()))
        else {
            return Err(Rejection::AnswerCorrupt);
        };
        self.observe(&Event::Replayed { subject: call.subject(head.id), source });
        Ok(Reply::Replay { head: Box::new(head.clone()), answer })
    }

    /// What is there after an attempt lost its fence: discard, re-read, replay.
    pub(super) async fn after_fence_lost<T>(&self, call: &Call, seen: &Seen) -> Result<Reply<T>, Rejection> {
        match self.settled(call, seen, Source::Store).await {
            Settled::Reply(reply) => reply,
            Settled::Wait | Settled::Act => Err(in_flight(since(seen))),
        }
    }

    /// The forget-epoch, asked for at most once a second. Without it memory is neither used nor filled.
    async fn epoch(&self, timeout: Duration) -> Option<u64> {
        if let Some(epoch) = self.cache.epoch() {
            return Some(epoch);
        }
        // One asks for all; the others do without for the moment.
        let _asking = self.pulsing.try_lock().ok()?;
        let asked_at = Instant::now();
        let pulse = tokio::time::timeout(timeout / 4, self.store.pulse()).await.ok()?.ok()?;
        self.cache.learn(&pulse, asked_at);
        let _ = self.secret.set(pulse.secret);
        // Not the pulse's: its reply may have been so slow that it is good for nothing by now.
        self.cache.epoch()
    }

    pub(crate) async fn secret(&self, timeout: Duration) -> Result<Secret, Rejection> {
        // The limit is on waiting for whoever asks first, too: else many would wait one after the other.
        let ask =
            self.secret.get_or_try_init(|| async { self.ask_in(timeout, self.store.pulse()).await.map(|pulse| pulse.secret) });
        tokio::time::timeout(timeout, ask).await.unwrap_or(Err(Rejection::StoreUnavailable)).copied()
    }

    /// Asks the store, but not for ever. What it says of its troubles goes to the observer; the caller gets a rejection.
    pub(super) async fn ask_in<T>(&self, timeout: Duration, reply: hapax_core::store::Reply<'_, T>) -> Result<T, Rejection> {
        let error = match tokio::time::timeout(timeout, reply).await {
            Ok(Ok(reply)) => return Ok(reply),
            Ok(Err(error)) => error,
            Err(_) => StoreError::unavailable("the store did not answer in time"),
        };
        self.observe(&Event::StoreFailed(&error));
        tracing::warn!(error = %error, source = ?std::error::Error::source(&error), "the store failed");
        Err(match error.kind() {
            StoreErrorKind::Corrupt => Rejection::AnswerCorrupt,
            _ => Rejection::StoreUnavailable,
        })
    }

    /// Stops beginning attempts, waits for those under way, and marks as unknown those that do not end within `patience`.
    pub(crate) async fn drain(self: &Arc<Self>, patience: Duration) -> Drained {
        self.room.close();
        self.attempts.close();
        if tokio::time::timeout(patience, self.attempts.wait()).await.is_ok() {
            return Drained { left_unknown: 0 };
        }
        Drained { left_unknown: self.give_up_all().await }
    }
}

enum Settled<T> {
    Reply(Result<Reply<T>, Rejection>),
    Wait,
    Act,
}

/// Decides on behalf of all requests of one key that this node has, and makes the claim.
struct Leader {
    engine: Arc<Engine>,
    call: Call,
    epoch: Option<u64>,
    known: Option<Seen>,
}

impl Leader {
    async fn lead<T, W, F>(mut self, seat: Seat, work: W, tell: oneshot::Sender<Led<T, W>>)
    where
        T: Send + 'static,
        W: FnOnce(super::Operation) -> F + Send + 'static,
        F: Future<Output = Ended<T>> + Send + 'static,
    {
        match self.decide(seat.id()).await {
            Ok(Course::Run(claimed)) => {
                let attempt = Attempt { engine: self.engine, call: self.call, claimed, epoch: self.epoch };
                attempt::run(attempt, seat, work, |reply| drop(tell.send(Led::Reply(reply)))).await;
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
                    let began = Instant::now().checked_sub(since(&seen)).unwrap_or_else(Instant::now);
                    seat.running(fingerprint, began);
                    remote::follow(&self.engine, seat, head.fence);
                }
                let _ = tell.send(Led::Follow { seen, work });
            }
            Err(Refusal { rejection, seen }) => {
                match seen {
                    Some(seen) => seat.land_seen(seen, false),
                    None if rejection == Rejection::StoreUnavailable => seat.land(Landing::Failed(rejection.clone())),
                    // The leader's own trouble, such as a body that cannot be read again.
                    None => seat.land(Landing::Again),
                }
                let _ = tell.send(Led::Reply(Err(rejection)));
            }
        }
    }

    /// Asks `decide` and the store in turn until both agree.
    async fn decide(&mut self, id: RecordId) -> Result<Course, Refusal> {
        let policy = self.call.policy.clone();
        let mut seen = self.known.take();
        // A fresh key costs one round trip: its absence is assumed, and the claim's condition finds out. Only a caller who may begin
        // nothing any more looks first.
        let now = Timestamp::from_system_time(SystemTime::now());
        if seen.is_none() && (self.call.is_late(now) || planted::is(Bug::CheckThenAct)) {
            seen = Some(self.read(id).await?);
        }
        for _ in 0..ROUNDS_MAX {
            let head = seen.as_ref().and_then(|seen| seen.record.as_ref()).map(|record| &record.head);
            let now = seen.as_ref().map_or(now, |seen| if planted::is(Bug::LapseByNodeClock) { now } else { seen.now });
            let fingerprint = self.call.fingerprint_for(head).await?;
            match decide(head, &self.call.ask(&fingerprint), now, &policy) {
                Decision::Attempt(condition) => match self.room() {
                    Ok(room) => match self.claim(id, condition, fingerprint, room).await? {
                        Claimed::Mine(mine) => return Ok(Course::Run(mine)),
                        Claimed::Theirs(theirs) => seen = Some(theirs),
                    },
                    // What is done can be replayed even where nothing more can be begun: look before refusing.
                    Err(_) if seen.is_none() => seen = Some(self.read(id).await?),
                    Err(rejection) => return Err(Refusal { rejection, seen }),
                },
                Decision::Replay => return Ok(Course::Replay(seen.take().expect("a replay has a record"))),
                Decision::Wait => {
                    let head = head.expect("who waits has seen a record").clone();
                    return Ok(Course::Follow(seen.take().expect("who waits has seen a record"), Box::new(head)));
                }
                Decision::Hold(condition) => seen = Some(self.hold(id, condition).await?),
                Decision::Reject(rejection) => return Err(Refusal { rejection, seen }),
            }
        }
        Err(in_flight(Duration::ZERO).into())
    }

    async fn read(&self, id: RecordId) -> Result<Seen, Rejection> {
        let mut reading = self.engine.ask_in(self.call.policy.store_timeout, self.engine.store.get(vec![id])).await?;
        Ok(Seen { record: reading.records.pop().flatten(), now: reading.now })
    }

    /// Writes down that the attempt was lost, unless it has ended after all.
    async fn hold(&self, id: RecordId, condition: Condition) -> Result<Seen, Rejection> {
        let put = Put { id, condition, change: Change::Lose(lifetime(&self.call.policy)) };
        match self.engine.ask_in(self.call.policy.store_timeout, self.engine.store.put_if(put)).await? {
            Written::Won(won) => Ok(Seen { record: Some(Record { head: won.head, answer: None }), now: won.now }),
            Written::Lost(seen) => Ok(seen),
        }
    }

    /// Room for one more attempt on this node.
    fn room(&self) -> Result<Room, Rejection> {
        self.engine.room.clone().try_acquire_owned().map_err(|error| match error {
            TryAcquireError::Closed => Rejection::Draining,
            TryAcquireError::NoPermits => Rejection::TooManyKeys,
        })
    }

    async fn claim(&self, id: RecordId, condition: Condition, fingerprint: Fingerprint, room: Room) -> Result<Claimed, Refusal> {
        let Call { policy, scope, key, .. } = &self.call;
        let secret = self.engine.secret(policy.store_timeout).await?;
        let lease = if planted::is(Bug::RetentionAsLease) { policy.retention } else { policy.lease };
        let token = AttemptToken::from_bytes(uuid::Uuid::new_v4().into_bytes());
        let claim = Claim { scope: scope.clone(), key: key.clone(), fingerprint, token, lease };
        let put = Put { id, condition, change: Change::Claim(claim) };

        self.engine.observe(&Event::Claiming(self.call.subject(id)));
        let (written, room) = self.engine.claim(put, token, policy, room).await?;
        match written {
            Written::Won(won) => {
                let (fence, attempt) = (won.head.fence, won.head.attempts);
                self.engine.observe(&Event::Claimed { subject: self.call.subject(id), fence, attempt });
                let operation = super::Operation::new(OperationId::of(&id, &secret), &won.head);
                Ok(Claimed::Mine(Box::new(attempt::Claimed {
                    head: won.head,
                    operation,
                    _room: room,
                    _counted: self.engine.attempts.token(),
                })))
            }
            Written::Lost(seen) => Ok(Claimed::Theirs(seen)),
        }
    }
}

/// What a leader is going to do.
enum Course {
    Run(Box<attempt::Claimed>),
    Replay(Seen),
    Follow(Seen, Box<Head>),
}

enum Claimed {
    Mine(Box<attempt::Claimed>),
    Theirs(Seen),
}

/// What a leader tells its caller, and the record its joiners may judge for themselves.
struct Refusal {
    rejection: Rejection,
    seen: Option<Seen>,
}

impl From<Rejection> for Refusal {
    fn from(rejection: Rejection) -> Self {
        Refusal { rejection, seen: None }
    }
}

impl Call {
    fn ask<'a>(&self, fingerprint: &'a Fingerprint) -> Ask<'a> {
        Ask { fingerprint, deadline: self.deadline, token_until: self.token_until }
    }

    /// Whether the caller may have to be told that it is too late to begin.
    fn is_late(&self, now: Timestamp) -> bool {
        self.deadline.is_some_and(|deadline| deadline < now) || self.token_until.is_some_and(|until| until < now)
    }

    /// The request's fingerprint as a record would have it: under the policy the record was made with.
    async fn fingerprint_for(&self, head: Option<&Head>) -> Result<Fingerprint, Rejection> {
        let made_with = head.and_then(|head| head.fingerprint.as_ref()).map(|fingerprint| &fingerprint.policy);
        self.fingerprint(made_with.unwrap_or(&self.policy.fingerprint)).await
    }

    async fn fingerprint(&self, policy: &Arc<hapax_core::FingerprintPolicy>) -> Result<Fingerprint, Rejection> {
        self.request.fingerprint(policy).await.map_err(|_| Rejection::BodyUnreadable)
    }
}

pub(super) fn lifetime(policy: &Policy) -> Lifetime {
    Lifetime { retention: policy.retention, tombstone: policy.tombstone }
}

/// What the first caller hears of an attempt that was lost.
pub(crate) fn lost(policy: &Policy, timed_out: bool) -> Rejection {
    Rejection::Lost { timed_out, repeat: policy.mode == hapax_core::Mode::Rerun }
}

/// Come back, the later the longer it has been running already.
fn in_flight(running_for: Duration) -> Rejection {
    Rejection::InFlight { retry_after: running_for.clamp(Duration::from_millis(100), Duration::from_secs(5)) }
}

/// How long the attempt in this record has been running.
fn since(seen: &Seen) -> Duration {
    seen.record.as_ref().map_or(Duration::ZERO, |record| seen.now.since(record.head.claimed_at))
}

fn is_retryable(seen: &Seen) -> bool {
    seen.record.as_ref().is_some_and(|record| record.head.state == State::Retryable)
}

/// Room on this node for one attempt.
pub(super) type Room = OwnedSemaphorePermit;
