//! The operation: the work's view of its attempt.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use hapax_core::key::Key;
use hapax_core::operation::{OperationId, OperationIds};
use hapax_core::policy::Policy;
use hapax_core::record::{Fence, Head};
use hapax_core::request_id::RequestId;
use hapax_core::scope::{RecordId, Scope};
use hapax_core::store::Finish;
use hapax_core::time::Timestamp;
use tokio::sync::Notify;

use super::quota_store::QuotaStore;
use super::trace::Trace;

/// How and when an attempt finished in a transaction of its work.
#[derive(Clone, Debug)]
pub(crate) struct Joined {
    pub(crate) finish: Finish,
    pub(crate) now: Timestamp,
}

/// The operation that the running code is an attempt of. It is passed to the work; with axum, it is
/// an extractor.
#[derive(Clone)]
pub struct Operation(Arc<Inside>);

struct Inside {
    record: RecordId,
    id: OperationId,
    of_this_life: OperationId,
    fence: Fence,
    attempt: u32,
    request_id: Option<RequestId>,
    trace: Option<Trace>,
    key: Key,
    scope: Arc<Scope>,
    follows_lost: bool,
    is_in_transaction: bool,
    policy: Arc<Policy>,
    store: Arc<QuotaStore>,
    joined: OnceLock<Joined>,
    acted_outside: AtomicBool,
    steps: AtomicU32,
    messages: AtomicU32,
    cause: OnceLock<String>,
    lost_lease: AtomicBool,
    lease_lost: Notify,
}

/// What an operation refers to.
pub(super) struct OperationContext {
    pub(super) policy: Arc<Policy>,
    pub(super) store: Arc<QuotaStore>,
    /// Whether the previous attempt was lost, and may have had its effect.
    pub(super) follows_lost: bool,
    /// The trace that the request of this attempt belongs to.
    pub(super) trace: Option<Trace>,
}

impl Operation {
    pub(super) fn new(id: OperationId, head: &Head, ties: OperationContext) -> Self {
        Operation::make(id.clone(), id, head, ties, false)
    }

    /// Of a key that was claimed in the transaction of the work, which also completes it.
    pub(crate) fn in_transaction(
        ids: &OperationIds,
        head: &Head,
        policy: Arc<Policy>,
        store: Arc<QuotaStore>,
        trace: Option<Trace>,
    ) -> Self {
        let ties = OperationContext {
            policy,
            store,
            follows_lost: false,
            trace,
        };
        let of_this_life = ids.make(&head.id, head.created_at);
        Operation::make(ids.of_every_life(&head.id), of_this_life, head, ties, true)
    }

    fn make(
        id: OperationId,
        of_this_life: OperationId,
        head: &Head,
        ties: OperationContext,
        is_in_transaction: bool,
    ) -> Self {
        let OperationContext {
            policy,
            store,
            follows_lost,
            trace,
        } = ties;
        Operation(Arc::new(Inside {
            record: head.id,
            id,
            of_this_life,
            fence: head.fence,
            attempt: head.attempts,
            request_id: head.request_id.clone(),
            trace,
            key: head.key.clone(),
            scope: head.scope.clone(),
            follows_lost,
            is_in_transaction,
            policy,
            store,
            joined: OnceLock::new(),
            acted_outside: AtomicBool::new(false),
            steps: AtomicU32::new(0),
            messages: AtomicU32::new(0),
            cause: OnceLock::new(),
            lost_lease: AtomicBool::new(false),
            lease_lost: Notify::new(),
        }))
    }

    /// The record of this scope and key, for [`Hapax::look`](crate::Hapax::look).
    pub fn record(&self) -> RecordId {
        self.0.record
    }

    /// Opaque and unguessable, and the same for every attempt. A key that is used again after its
    /// tombstone is over makes a new operation.
    pub fn id(&self) -> &OperationId {
        &self.0.id
    }

    /// The id of this life of the key, also where [`id`](Operation::id) is the same in every life:
    /// messages of another life are others.
    pub(crate) fn of_this_life(&self) -> &OperationId {
        &self.0.of_this_life
    }

    /// The number of the next message of this attempt, from one.
    pub(crate) fn next_message(&self) -> u32 {
        self.0.messages.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The fence of this attempt: higher than that of every earlier attempt.
    pub fn fence(&self) -> Fence {
        self.0.fence
    }

    /// The number of this attempt of the key, from one.
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// The id of the request that made this attempt, to be passed on in further calls and logs.
    /// `None` without HTTP.
    pub fn request_id(&self) -> Option<&RequestId> {
        self.0.request_id.as_ref()
    }

    /// The trace that the request of this attempt belongs to.
    pub(crate) fn trace(&self) -> Option<&Trace> {
        self.0.trace.as_ref()
    }

    /// Whether the previous attempt was lost, and may have had its effect.
    pub fn follows_lost(&self) -> bool {
        self.0.follows_lost
    }

    /// Whether the key was claimed in the transaction of the work, and is completed at its end.
    pub(crate) fn is_in_transaction(&self) -> bool {
        self.0.is_in_transaction
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.0.policy
    }

    pub(crate) fn store(&self) -> &QuotaStore {
        &self.0.store
    }

    /// How this attempt finished in a transaction of its work, if that transaction is known to have
    /// committed.
    pub(crate) fn joined(&self) -> Option<&Joined> {
        self.0.joined.get()
    }

    /// Whether the work tried to join without an open transaction, so that everything it did has
    /// committed by itself.
    pub(crate) fn has_acted_outside(&self) -> bool {
        self.0.acted_outside.load(Ordering::Relaxed)
    }

    pub(crate) fn note_outside(&self) {
        self.0.acted_outside.store(true, Ordering::Relaxed);
    }

    /// Records why this attempt ended without an answer, for the log. The first cause counts.
    pub fn note_cause(&self, cause: impl Into<String>) {
        let _ = self.0.cause.set(cause.into());
    }

    /// The recorded cause of ending without an answer.
    pub(crate) fn cause(&self) -> &str {
        self.0.cause.get().map_or("nobody said why", String::as_str)
    }

    /// Counts a step that may have an effect.
    pub(crate) fn begin_step(&self) {
        self.0.steps.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn steps(&self) -> u32 {
        self.0.steps.load(Ordering::Relaxed)
    }

    pub(crate) fn set_joined(&self, joined: Joined) {
        // Set once: the record would have refused a second finish.
        let _ = self.0.joined.set(joined);
    }

    /// The caller's key.
    pub fn key(&self) -> &Key {
        &self.0.key
    }

    /// The namespace, principal and operation.
    pub fn scope(&self) -> &Scope {
        &self.0.scope
    }

    /// The key under which to call the next service in this step. It is the same for every attempt.
    pub fn derive(&self, step: &str) -> Key {
        self.begin_step();
        self.0.id.derive(step)
    }

    /// Whether this attempt is known to have lost its lease. Its outcome may be discarded; long
    /// work may stop early.
    pub fn has_lost_lease(&self) -> bool {
        self.0.lost_lease.load(Ordering::Relaxed)
    }

    pub(crate) fn lose_lease(&self) {
        self.0.lost_lease.store(true, Ordering::Relaxed);
        self.0.lease_lost.notify_one();
    }

    /// Waits until the lease is lost.
    pub(crate) async fn lease_lost(&self) {
        self.0.lease_lost.notified().await;
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("id", &self.0.id)
            .field("fence", &self.0.fence)
            .field("attempt", &self.0.attempt)
            .finish()
    }
}
