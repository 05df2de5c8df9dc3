//! What goes into the engine and what comes out.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use hapax_core::answer::Answer;
use hapax_core::decide::Ask;
use hapax_core::fingerprint::{Fingerprint, FingerprintPolicy, Fingerprinter, RequestHead};
use hapax_core::key::Key;
use hapax_core::operation::OperationId;
use hapax_core::outcome::Outcome;
use hapax_core::policy::Policy;
use hapax_core::record::{Fence, Head};
use hapax_core::rejection::Rejection;
use hapax_core::request_id::RequestId;
use hapax_core::scope::{RecordId, Scope};
use hapax_core::time::Timestamp;

use tokio::sync::Notify;

use super::books::Books;
use super::velocity::Counted;
use crate::join::Joined;
use crate::observe::{Source, Subject};

/// One request, as the engine sees it.
#[derive(Clone)]
pub(crate) struct Call {
    /// Of scope and key; a digest, so made once.
    pub(crate) id: RecordId,
    pub(crate) scope: Arc<Scope>,
    pub(crate) key: Key,
    pub(crate) policy: Arc<Policy>,
    /// What the request is called in every log; `None` without HTTP.
    pub(crate) request_id: Option<RequestId>,
    pub(crate) request: Arc<dyn Request>,
    /// What it counts for, should its key be new.
    pub(crate) counted: Arc<[Counted]>,
    /// Where it comes from, if nobody has checked who sends it.
    pub(crate) unverified: Option<UnverifiedCall>,
    /// How long to wait for a running attempt.
    pub(crate) wait: Duration,
    /// The caller wants nothing begun after this.
    pub(crate) deadline: Option<Timestamp>,
    /// The key is a token that may begin nothing after this.
    pub(crate) token_until: Option<Timestamp>,
}

/// The address of a client, as limits per client count it.
pub(crate) type PeerId = [u8; 16];

/// A call whose principal is only what somebody has presented.
#[derive(Clone)]
pub(crate) struct UnverifiedCall {
    /// The client that sends it.
    pub(crate) peer: PeerId,
    /// What it counts for while nothing is known of its principal: for its peer.
    pub(crate) counted: Arc<[Counted]>,
}

impl Call {
    pub(crate) fn subject(&self, id: RecordId) -> Subject<'_> {
        Subject {
            scope: &self.scope,
            id,
        }
    }

    pub(super) fn ask<'a>(&self, fingerprint: &'a Fingerprint) -> Ask<'a> {
        Ask {
            fingerprint,
            deadline: self.deadline,
            token_until: self.token_until,
        }
    }

    /// Whether the caller may have to be told that it is too late to begin.
    pub(super) fn is_late(&self, now: Timestamp) -> bool {
        self.deadline.is_some_and(|deadline| deadline < now)
            || self.token_until.is_some_and(|until| until < now)
    }

    /// The request's fingerprint as a record would have it: under the policy the record was made
    /// with.
    pub(super) async fn fingerprint_for(
        &self,
        head: Option<&Head>,
    ) -> Result<Fingerprint, Rejection> {
        let made_with = head
            .and_then(|head| head.fingerprint.as_ref())
            .map(|fingerprint| &fingerprint.policy);
        self.fingerprint(made_with.unwrap_or(&self.policy.fingerprint))
            .await
    }

    pub(super) async fn fingerprint(
        &self,
        policy: &Arc<FingerprintPolicy>,
    ) -> Result<Fingerprint, Rejection> {
        self.request
            .fingerprint(policy)
            .await
            .map_err(|_| Rejection::BodyUnreadable)
    }
}

pub(crate) type Fingerprinting<'a> =
    Pin<Box<dyn Future<Output = std::io::Result<Fingerprint>> + Send + 'a>>;

/// A request that can be fingerprinted again, under the policy a record was made with.
pub(crate) trait Request: Send + Sync + 'static {
    fn fingerprint<'a>(&'a self, policy: &'a Arc<FingerprintPolicy>) -> Fingerprinting<'a>;
}

/// A request of bytes in memory.
pub(crate) struct Plain {
    pub(crate) scope: Arc<Scope>,
    pub(crate) body: Bytes,
}

impl Request for Plain {
    fn fingerprint<'a>(&'a self, policy: &'a Arc<FingerprintPolicy>) -> Fingerprinting<'a> {
        let head = RequestHead {
            scope: &self.scope,
            target: &self.scope.path,
            headers: Vec::new(),
        };
        let mut fingerprinter = Fingerprinter::new(policy, &head);
        fingerprinter.update(&self.body);
        Box::pin(std::future::ready(Ok(fingerprinter.finish())))
    }
}

/// How the work ended, and what only the first caller gets of it.
pub(crate) struct Ended<T> {
    pub(crate) outcome: Outcome,
    pub(crate) live: T,
}

/// What a caller gets.
pub(crate) enum Reply<T> {
    /// The work ran for this caller.
    First {
        /// The record as it was written. Of a released attempt too.
        head: Box<Head>,
        live: T,
    },
    /// The work ran for this caller, and its record was completed in the transaction of its effect.
    /// What was stored there counts, whatever the work returned; where no answer was kept, that is
    /// all there is.
    Joined {
        head: Box<Head>,
        answer: Option<Arc<Answer>>,
        live: Option<T>,
    },
    /// The work ran before.
    Replay {
        head: Box<Head>,
        answer: Arc<Answer>,
        source: Source,
    },
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
    store: Arc<Books>,
    joined: OnceLock<Joined>,
    acted_outside: AtomicBool,
    cause: OnceLock<String>,
    lost_lease: AtomicBool,
    lease_lost: Notify,
}

/// What an attempt leans on.
pub(super) struct Ties {
    pub(super) policy: Arc<Policy>,
    pub(super) store: Arc<Books>,
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

    pub(crate) fn store(&self) -> &Books {
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
