//! The operation: what the work knows of the attempt that it is.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use hapax_core::key::Key;
use hapax_core::operation::OperationId;
use hapax_core::policy::Policy;
use hapax_core::record::{Fence, Head};
use hapax_core::request_id::RequestId;
use hapax_core::scope::{RecordId, Scope};
use hapax_core::store::Finish;
use hapax_core::time::Timestamp;
use tokio::sync::Notify;

use super::quota_store::QuotaStore;

/// How an attempt finished in a transaction of the work's own, and when.
#[derive(Clone, Debug)]
pub(crate) struct Joined {
    pub(crate) finish: Finish,
    pub(crate) now: Timestamp,
}

/// The operation that the current code is an attempt of. Handed to the work; with axum, an
/// extractor.
#[derive(Clone)]
pub struct Operation(Arc<Inside>);

struct Inside {
    record: RecordId,
    id: OperationId,
    fence: Fence,
    attempt: u32,
    request_id: Option<RequestId>,
    key: Key,
    scope: Arc<Scope>,
    follows_lost: bool,
    policy: Arc<Policy>,
    store: Arc<QuotaStore>,
    joined: OnceLock<Joined>,
    acted_outside: AtomicBool,
    cause: OnceLock<String>,
    lost_lease: AtomicBool,
    lease_lost: Notify,
}

/// What an attempt leans on.
pub(super) struct Ties {
    pub(super) policy: Arc<Policy>,
    pub(super) store: Arc<QuotaStore>,
    /// The attempt before it was lost, and may have had its effect.
    pub(super) follows_lost: bool,
}

impl Operation {
    pub(super) fn new(id: OperationId, head: &Head, ties: Ties) -> Self {
        let Ties {
            policy,
            store,
            follows_lost,
        } = ties;
        Operation(Arc::new(Inside {
            record: head.id,
            id,
            fence: head.fence,
            attempt: head.attempts,
            request_id: head.request_id.clone(),
            key: head.key.clone(),
            scope: head.scope.clone(),
            follows_lost,
            policy,
            store,
            joined: OnceLock::new(),
            acted_outside: AtomicBool::new(false),
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
    /// tombstone is over is another operation.
    pub fn id(&self) -> &OperationId {
        &self.0.id
    }

    /// The number of this attempt: higher than that of every attempt before it.
    pub fn fence(&self) -> Fence {
        self.0.fence
    }

    /// Which attempt of this key this is, from one.
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// The id of the request that made this attempt, to be passed on to whatever is called or
    /// logged because of it. `None` without HTTP.
    pub fn request_id(&self) -> Option<&RequestId> {
        self.0.request_id.as_ref()
    }

    /// Whether the attempt before this one was lost, and may have had its effect.
    pub fn follows_lost(&self) -> bool {
        self.0.follows_lost
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.0.policy
    }

    pub(crate) fn store(&self) -> &QuotaStore {
        &self.0.store
    }

    /// How this attempt finished in a transaction of the work's own, if that is known to have
    /// committed.
    pub(crate) fn joined(&self) -> Option<&Joined> {
        self.0.joined.get()
    }

    /// Whether the work wanted to join where there was no transaction, so that whatever it did
    /// there has committed by itself.
    pub(crate) fn has_acted_outside(&self) -> bool {
        self.0.acted_outside.load(Ordering::Relaxed)
    }

    pub(crate) fn note_outside(&self) {
        self.0.acted_outside.store(true, Ordering::Relaxed);
    }

    /// Says why this attempt ended without an answer, for the log. The first to say it counts.
    pub fn note_cause(&self, cause: impl Into<String>) {
        let _ = self.0.cause.set(cause.into());
    }

    /// Why it ended without an answer, as far as anybody said.
    pub(crate) fn cause(&self) -> &str {
        self.0.cause.get().map_or("nobody said why", String::as_str)
    }

    pub(crate) fn set_joined(&self, joined: Joined) {
        // The first time counts; there is no second, as the record would have refused it.
        let _ = self.0.joined.set(joined);
    }

    /// The caller's key.
    pub fn key(&self) -> &Key {
        &self.0.key
    }

    /// Whose operation, and which.
    pub fn scope(&self) -> &Scope {
        &self.0.scope
    }

    /// The key under which to call the next service in this step: the same one on every attempt.
    pub fn derive(&self, step: &str) -> Key {
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

    /// Returns when the lease is lost.
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
