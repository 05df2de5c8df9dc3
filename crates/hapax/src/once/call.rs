//! What goes into the engine and what comes out.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::answer::Answer;
use hapax_core::decide::Ask;
use hapax_core::fingerprint::{Fingerprint, FingerprintPolicy, Fingerprinter, RequestHead};
use hapax_core::key::Key;
use hapax_core::outcome::Outcome;
use hapax_core::policy::Policy;
use hapax_core::record::Head;
use hapax_core::rejection::Rejection;
use hapax_core::request_id::RequestId;
use hapax_core::scope::{RecordId, Scope};
use hapax_core::time::Timestamp;

use super::velocity::Counted;
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
