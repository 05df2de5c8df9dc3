//! The engine: what all calls of a node share, and the limits it keeps.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hapax_core::operation::{OperationIds, Secret};
use hapax_core::policy::Policy;
use hapax_core::rejection::Rejection;
use hapax_core::store::{Store, StoreError, StoreErrorKind};
use tokio::sync::{Mutex, OnceCell, OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tokio::time::Instant;
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
use crate::observe::{Event, Observer};
use crate::outage::{Outage, Over};

/// How long the store must not have failed anybody before it is called back.
const STORE_IS_BACK_AFTER: Duration = Duration::from_secs(1);

/// Every limit of a node that is not a route's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Attempts that may be running; further ones are refused with `too-many-keys`.
    pub attempts_in_flight_max: usize,
    /// Claims whose reply was lost that are followed up until they are released; further ones are
    /// left to lapse.
    pub lost_claims_max: usize,
    /// Requests that may wait for one key; further ones are told to come back.
    pub waiters_per_key_max: usize,
    /// Requests that may wait on this node.
    pub waiters_max: usize,
    /// Memory for answers that can be replayed without asking the store.
    pub cache_bytes_max: u64,
    /// Memory for answers whose record could not be written yet. Over it, only the mark that the
    /// effect is done is written.
    pub unwritten_bytes_max: usize,
    /// How long a poll for attempts of other nodes may take.
    pub poll_timeout: Duration,
    /// Counts of new keys that may be held at once: one for each rule and each value that has sent
    /// a new key lately. While so many say something, a new key that would need another is refused
    /// with `too-many-keys`.
    pub velocity_entries_max: usize,
    /// Records that a principal may have in a namespace, until their retention is over. A new key
    /// over it is refused with `quota-reached`. `None` for any number.
    pub records_per_principal_max: Option<u64>,
    /// Bytes of kept answers that a principal may have in a namespace. Over it a new key is refused
    /// with `quota-reached`; an answer that would exceed it is sent and not kept.
    pub bytes_per_principal_max: Option<u64>,
    /// Records in the store, of all nodes and namespaces. The last tenth is kept for principals who
    /// have records; over it every new key is refused with `quota-reached`. Nothing is removed to
    /// make room. `None` for any number.
    pub records_max: Option<u64>,
    /// Of these, records that are kept only because their caller was refused with 401 or 403. Over
    /// it, unverified callers of whom nothing is known are refused with `too-many-keys` if their
    /// peer has made a hundredth of them. `None` for any number.
    pub refused_records_max: Option<u64>,
    /// Bytes of request bodies that may be buffered in memory. A guarded request whose body finds
    /// no room in one of these four limits is refused with `buffer-full`, before its body is read
    /// if it declares its length. A body keeps its room until its attempt ends.
    pub buffered_memory_bytes_max: u64,
    /// The same for the requests of one [`Peer`](crate::Peer). A request that has no peer in its
    /// extensions has only the total.
    pub buffered_memory_bytes_per_peer_max: u64,
    /// Bytes of request bodies that may be buffered in files: those of bodies over
    /// `Policy::body_memory_bytes_max`.
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
            // Some 3 GiB of heads in a database, and 400 MB of memory for the index of an embedded
            // store.
            records_max: Some(10_000_000),
            // What one client can make in ten minutes at 160 requests a second; some 30 MB.
            refused_records_max: Some(100_000),
            buffered_memory_bytes_max: 256 << 20,
            // A quarter: three quarters are left for others, and it is still room for 64 bodies of
            // a mebibyte, because a load balancer that nobody named as one looks like a single
            // peer.
            buffered_memory_bytes_per_peer_max: 64 << 20,
            buffered_disk_bytes_max: 4 << 30,
            buffered_disk_bytes_per_peer_max: 1 << 30,
        }
    }
}

/// What a drain left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Attempts that did not end in time and are held as unknown, and claims whose reply was lost
    /// and whose fate is still open. They may still end late, if the process lives on.
    pub left_unknown: usize,
}

pub(crate) struct Engine {
    pub(crate) store: Arc<QuotaStore>,
    observer: Arc<dyn Observer>,
    /// The store cannot be reached, or does not do what it is asked.
    store_away: Outage,
    pub(crate) limits: Limits,
    pub(crate) cache: Cache,
    pub(crate) capacity: Capacity,
    pub(crate) renewals: Arc<Renewals>,
    pub(crate) remote: Remote,
    /// How many new keys there have been lately. Outlives the layers, so that a new one with the
    /// same rule goes on counting.
    pub(super) velocities: Arc<Velocities>,
    /// The same of shadows, which must not take anything away from those who are guarded.
    pub(super) shadow_velocities: Arc<Velocities>,
    pub(crate) flights: Arc<Flights>,
    /// Attempts, and claims whose fate is open: what a drain waits for.
    pub(crate) attempts: TaskTracker,
    /// Room for further attempts; closed while draining.
    room: Arc<Semaphore>,
    /// The same for shadows.
    shadow_room: Arc<Semaphore>,
    /// Room for claims whose reply was lost, until they are released.
    pub(super) orphans: Arc<Semaphore>,
    /// Room for answers whose record could not be written yet, in bytes.
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

    /// Tells the observer. Its panic is its own trouble: an attempt's known outcome must not be
    /// lost to it.
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

    /// Starts whatever goes on beside the calls, unless it does already.
    pub(super) fn start_background(self: &Arc<Self>) {
        self.start_sweeping();
        self.start_counting();
    }

    /// The forget-epoch, asked for at most once a second. Without it memory is neither used nor
    /// filled.
    pub(super) async fn epoch(&self, timeout: Duration) -> Option<u64> {
        if let Some(epoch) = self.cache.epoch() {
            return Some(epoch);
        }
        // One asks for all; the others do without for the moment.
        let _asking = self.asking_info.try_lock().ok()?;
        let asked_at = Instant::now();
        let info = tokio::time::timeout(timeout / 4, self.store.info())
            .await
            .ok()?
            .ok()?;
        self.cache.learn(&info, asked_at);
        self.store.learn(info.now);
        self.capacity.learn(&info);
        let _ = self.operation_ids.set(info.operation_ids());
        // Not the store info's: its reply may have been so slow that it is good for nothing by now.
        self.cache.epoch()
    }

    pub(crate) async fn secret(&self, timeout: Duration) -> Result<Secret, Rejection> {
        self.operation_ids(timeout).await.map(|ids| *ids.secret())
    }

    /// What makes the store's operation ids.
    pub(crate) async fn operation_ids(&self, timeout: Duration) -> Result<OperationIds, Rejection> {
        // The limit is on waiting for whoever asks first, too: else many would wait one after the
        // other.
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

    /// Asks the store, but not for ever. What it says of its troubles goes to the observer; the
    /// caller gets a rejection.
    pub(super) async fn ask_in<T>(
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
        self.store_failed(&error);
        Err(match error.kind() {
            StoreErrorKind::Corrupt => Rejection::AnswerCorrupt,
            // Somebody is just about to commit it, or to give it up.
            StoreErrorKind::Locked => Rejection::in_flight(Duration::ZERO),
            _ => Rejection::StoreUnavailable,
        })
    }

    /// The store could not do something. That it is away is logged once, until it is back.
    pub(crate) fn store_failed(&self, error: &StoreError) {
        self.observe(&Event::StoreFailed(error));
        match error.kind() {
            // A transaction of somebody else has the record: nothing is wrong with the store.
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

    /// The store has done what it was asked.
    pub(crate) fn store_answers(&self) {
        if let Some(Over { lasted, refused }) = self.store_away.pass(STORE_IS_BACK_AFTER) {
            tracing::info!(seconds = lasted.as_secs_f64(), refused, "the store is back");
        }
    }

    /// Room for one more attempt under this policy.
    pub(super) fn room(&self, policy: &Policy) -> Result<Room, Rejection> {
        // Counted first: a drain that closes the room after this waits for what goes on here.
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

/// Room on this node for one attempt, counted from before its claim until it has ended.
pub(super) struct Room {
    _permit: OwnedSemaphorePermit,
    _counted: TaskTrackerToken,
}
