//! The engine: the state that all calls of a node share, and the node's limits.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hapax_core::operation::{OperationIds, Secret};
use hapax_core::policy::Policy;
use hapax_core::rejection::Rejection;
use hapax_core::store::{Store, StoreError, StoreErrorKind};
use tokio::sync::{Mutex, OnceCell, OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::because;
use super::cache::Cache;
use super::capacity::Capacity;
use super::flights::Flights;
use super::quota_store::{QuotaStore, Quotas};
use super::remote::Remote;
use super::renew::Renewals;
use super::sweep::Sweep;
use super::velocity::Velocities;
use crate::clock::NodeClock;
use crate::observe::{Event, Observer};
use crate::outage::{Outage, Over};

/// How long the store must not have failed before it counts as available again.
const STORE_IS_BACK_AFTER: Duration = Duration::from_secs(1);

/// The limits of a node, as opposed to those of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Attempts that may run at once; further ones are refused with `too-many-keys`.
    pub attempts_in_flight_max: usize,
    /// Claims with a lost reply that are followed up until they are released; further ones are left
    /// to lapse.
    pub lost_claims_max: usize,
    /// Requests that may wait for one key; further ones are refused and told to retry.
    pub waiters_per_key_max: usize,
    /// Requests that may wait on this node, for all keys.
    pub waiters_max: usize,
    /// Memory for answers that can be replayed without asking the store.
    pub cache_bytes_max: u64,
    /// Memory for answers whose record could not be written yet. Beyond it, the record only says
    /// that the effect is done.
    pub unwritten_bytes_max: usize,
    /// How long one poll for attempts of other nodes may take.
    pub poll_timeout: Duration,
    /// Velocity counts that may be held at once: one for each rule and each value that has sent a
    /// new key lately. While this many are in use, a new key that needs another is refused with
    /// `too-many-keys`.
    pub velocity_entries_max: usize,
    /// Records that a principal may have in a namespace, until their retention is over. Further new
    /// keys are refused with `quota-reached`. `None` for no limit.
    pub records_per_principal_max: Option<u64>,
    /// Bytes of kept answers that a principal may have in a namespace. At this limit a new key is
    /// refused with `quota-reached`; an answer that would exceed it is sent but not kept.
    pub bytes_per_principal_max: Option<u64>,
    /// Records in the store, of all nodes and namespaces. The last tenth is reserved for principals
    /// that have records. At the limit every new key is refused with `quota-reached`. Nothing is
    /// removed to make room. `None` for no limit.
    pub records_max: Option<u64>,
    /// The part of `records_max` that may be records kept only because their caller was refused
    /// with 401 or 403. Beyond it, unverified callers without a known principal are refused with
    /// `too-many-keys` if their peer has made a hundredth of this number. `None` for no limit.
    pub refused_records_max: Option<u64>,
    /// Bytes of request bodies that may be buffered in memory. A guarded request whose body exceeds
    /// one of the four buffer limits is refused with `buffer-full`, before its body is read if it
    /// declares its length. A body keeps its room until its attempt ends.
    pub buffered_memory_bytes_max: u64,
    /// The same for the requests of one [`Peer`](crate::Peer). For a request without a peer in its
    /// extensions only the total applies.
    pub buffered_memory_bytes_per_peer_max: u64,
    /// Bytes of request bodies that may be buffered in files. Bodies larger than
    /// `Policy::body_memory_bytes_max` are.
    pub buffered_disk_bytes_max: u64,
    /// The same for the requests of one peer.
    pub buffered_disk_bytes_per_peer_max: u64,
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
            velocity_entries_max: 100_000,
            records_per_principal_max: None,
            bytes_per_principal_max: None,
            // About 3 GiB of heads in a database, and 400 MB of memory for the index of an embedded
            // store.
            records_max: Some(10_000_000),
            // What one client can make in ten minutes at 160 requests a second; about 30 MB.
            refused_records_max: Some(100_000),
            buffered_memory_bytes_max: 256 << 20,
            // A quarter, so that three quarters are left for other peers. It still holds 64 bodies
            // of a mebibyte, because a load balancer that is not configured as one looks like a
            // single peer.
            buffered_memory_bytes_per_peer_max: 64 << 20,
            buffered_disk_bytes_max: 4 << 30,
            buffered_disk_bytes_per_peer_max: 1 << 30,
        }
    }
}

/// The result of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Attempts that did not end in time and are held as unknown, and claims with a lost reply that
    /// may still be written. They may still end late, if the process lives on.
    pub left_unknown: usize,
}

pub(crate) struct Engine {
    pub(crate) store: Arc<QuotaStore>,
    observer: Arc<dyn Observer>,
    /// Judges what is kept in memory.
    pub(crate) clock: NodeClock,
    /// Whether the store is unreachable or failing.
    store_away: Outage,
    pub(crate) limits: Limits,
    pub(crate) cache: Cache,
    pub(crate) capacity: Capacity,
    pub(crate) renewals: Arc<Renewals>,
    pub(crate) remote: Remote,
    /// Recent counts of new keys. They outlive the layers, so that a new layer with the same rule
    /// continues the count.
    pub(super) velocities: Arc<Velocities>,
    /// The counts of shadows, kept apart so that a shadow takes no tokens from guarded routes.
    pub(super) shadow_velocities: Arc<Velocities>,
    pub(crate) flights: Arc<Flights>,
    /// Attempts, and claims that may still be written: a drain waits for them.
    pub(crate) attempts: TaskTracker,
    /// Permits for further attempts; closed while draining.
    room: Arc<Semaphore>,
    /// The same for shadows.
    shadow_room: Arc<Semaphore>,
    /// Permits for claims whose reply was lost, until they are released.
    pub(super) orphans: Arc<Semaphore>,
    /// Permits for bytes of answers whose record could not be written yet.
    pub(crate) unwritten: Arc<Semaphore>,
    pub(crate) sweep: Option<Sweep>,
    pub(crate) sweeping: AtomicBool,
    operation_ids: OnceCell<OperationIds>,
    asking_info: Mutex<()>,
}

impl Engine {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        observer: Arc<dyn Observer>,
        limits: Limits,
        sweep: Option<Sweep>,
    ) -> Arc<Self> {
        let permits = |count: usize| Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS)));
        Arc::new(Engine {
            store: Arc::new(QuotaStore::new(store, Quotas::from(&limits))),
            observer,
            clock: NodeClock::default(),
            store_away: Outage::default(),
            limits,
            velocities: Arc::new(Velocities::new(limits.velocity_entries_max)),
            shadow_velocities: Arc::new(Velocities::new(limits.velocity_entries_max)),
            cache: Cache::new(limits.cache_bytes_max),
            capacity: Capacity::new(Quotas::from(&limits)),
            renewals: Arc::default(),
            remote: Remote::default(),
            flights: Arc::default(),
            attempts: TaskTracker::new(),
            room: permits(limits.attempts_in_flight_max),
            shadow_room: permits(limits.attempts_in_flight_max),
            orphans: permits(limits.lost_claims_max),
            unwritten: permits(limits.unwritten_bytes_max),
            sweep,
            sweeping: AtomicBool::new(false),
            operation_ids: OnceCell::new(),
            asking_info: Mutex::new(()),
        })
    }

    /// Calls the observer. A panic of the observer is caught, so that an attempt's known outcome is
    /// not lost.
    pub(crate) fn observe(&self, event: &Event<'_>) {
        if let Event::Rejected {
            rejection: Rejection::StoreUnavailable,
            ..
        } = event
        {
            self.store_away.refuse();
        }
        let told = std::panic::catch_unwind(AssertUnwindSafe(|| self.observer.on(event)));
        if told.is_err() {
            tracing::error!(?event, "the observer panicked");
        }
    }

    /// Starts the background tasks, unless they are running.
    pub(crate) fn start_background(self: &Arc<Self>) {
        self.start_sweeping();
        self.start_counting();
    }

    /// The forget-epoch, which is asked for at most once a second. Without it the cache is neither
    /// read nor filled.
    pub(super) async fn epoch(&self, timeout: Duration) -> Option<u64> {
        if let Some(epoch) = self.cache.epoch(self.clock.now()) {
            return Some(epoch);
        }
        // One call asks for all; the others proceed without the cache meanwhile.
        let _asking = self.asking_info.try_lock().ok()?;
        self.learn_info(timeout / 4).await?;
        // Read from the cache, because the reply may have been too slow to be valid still.
        self.cache.epoch(self.clock.now())
    }

    /// Asks the store for its info and distributes it. `None` if the store did not answer.
    pub(super) async fn learn_info(&self, timeout: Duration) -> Option<()> {
        let asked_at = self.clock.now();
        let info = tokio::time::timeout(timeout, self.store.info())
            .await
            .ok()?
            .ok()?;
        self.cache.learn(&info, asked_at);
        self.store.learn(info.now);
        self.capacity.learn(&info);
        let _ = self.operation_ids.set(info.operation_ids());
        Some(())
    }

    pub(crate) async fn secret(&self, timeout: Duration) -> Result<Secret, Rejection> {
        self.operation_ids(timeout).await.map(|ids| *ids.secret())
    }

    /// The generator of the store's operation ids.
    pub(crate) async fn operation_ids(&self, timeout: Duration) -> Result<OperationIds, Rejection> {
        // The timeout includes waiting for another call that asks first. Otherwise many calls would
        // wait one after the other.
        let ask = self.operation_ids.get_or_try_init(|| async {
            self.ask_in(timeout, self.store.info())
                .await
                .map(|info| info.operation_ids())
        });
        tokio::time::timeout(timeout, ask)
            .await
            .unwrap_or(Err(Rejection::StoreUnavailable))
            .copied()
    }

    /// Calls the store, with a timeout. Its error goes to the observer; the caller gets a
    /// rejection.
    pub(crate) async fn ask_in<T>(
        &self,
        timeout: Duration,
        reply: hapax_core::store::Reply<'_, T>,
    ) -> Result<T, Rejection> {
        let error = match tokio::time::timeout(timeout, reply).await {
            Ok(Ok(reply)) => {
                self.store_answers();
                return Ok(reply);
            }
            Ok(Err(error)) => error,
            Err(_) => StoreError::unavailable("the store did not answer in time"),
        };
        Err(self.reject_for(&error))
    }

    /// Reports a failed store call, and says what its caller gets.
    pub(crate) fn reject_for(&self, error: &StoreError) -> Rejection {
        self.store_failed(error);
        match error.kind() {
            StoreErrorKind::Corrupt => Rejection::AnswerCorrupt,
            // Another transaction is about to commit or give up the record.
            StoreErrorKind::Locked => Rejection::in_flight(Duration::ZERO),
            _ => Rejection::StoreUnavailable,
        }
    }

    /// Reports a failed store call. An unavailable store is logged once, until it is available
    /// again.
    pub(crate) fn store_failed(&self, error: &StoreError) {
        self.observe(&Event::StoreFailed(error));
        match error.kind() {
            // Another transaction has locked the record: the store itself works.
            StoreErrorKind::Locked => tracing::debug!(%error, "a record is locked"),
            StoreErrorKind::Corrupt => tracing::error!(
                error = because(error),
                "the store holds something that cannot be read"
            ),
            _ if self.store_away.meet() => {
                tracing::warn!(
                    error = because(error),
                    "the store is away: requests that need it are refused until it is back"
                );
            }
            _ => tracing::debug!(error = because(error), "the store is still away"),
        }
    }

    pub(super) fn is_store_away(&self) -> bool {
        self.store_away.is_on()
    }

    /// Reports a successful store call.
    pub(crate) fn store_answers(&self) {
        if let Some(Over { lasted, refused }) = self.store_away.pass(STORE_IS_BACK_AFTER) {
            tracing::info!(seconds = lasted.as_secs_f64(), refused, "the store is back");
        }
    }

    /// Takes room for one more attempt under this policy.
    pub(crate) fn room(&self, policy: &Policy) -> Result<Room, Rejection> {
        // Take the token first: a drain that closes the room after this waits for this attempt.
        let counted = self.attempts.token();
        let room = if policy.shadow {
            &self.shadow_room
        } else {
            &self.room
        };
        match room.clone().try_acquire_owned() {
            Ok(permit) => Ok(Room {
                _permit: permit,
                _counted: counted,
            }),
            Err(TryAcquireError::Closed) => Err(Rejection::Draining),
            Err(TryAcquireError::NoPermits) => Err(Rejection::TooManyKeys),
        }
    }

    pub(super) fn is_draining(&self) -> bool {
        self.room.is_closed()
    }

    /// Stops beginning attempts, waits for those under way, and marks as unknown those that do not
    /// end within `patience`.
    pub(crate) async fn drain(self: &Arc<Self>, patience: Duration) -> Drained {
        self.room.close();
        self.shadow_room.close();
        self.attempts.close();
        if tokio::time::timeout(patience, self.attempts.wait())
            .await
            .is_ok()
        {
            return Drained { left_unknown: 0 };
        }
        let left_unknown = self.attempts.len();
        self.give_up_all().await;
        Drained { left_unknown }
    }
}

/// Room on this node for one attempt, held from before its claim until it has ended.
pub(crate) struct Room {
    _permit: OwnedSemaphorePermit,
    _counted: TaskTrackerToken,
}
