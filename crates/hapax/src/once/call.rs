//! The engine's input and output.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::answer::Answer;
use hapax_core::decide::Ask;
use hapax_core::fingerprint::{Fingerprint, FingerprintPolicy, Fingerprinter, RequestHead};
use hapax_core::key::Key;
use hapax_core::outcome::Outcome;
use hapax_core::policy::{KeyRule, KeySource, Policy};
use hapax_core::record::Head;
use hapax_core::rejection::Rejection;
use hapax_core::request_id::RequestId;
use hapax_core::scope::{RecordId, Scope};
use hapax_core::time::Timestamp;

use super::trace::Trace;
use super::velocity::Counted;
use crate::observe::{Source, Subject};

/// One request, as the engine sees it.
#[derive(Clone)]
pub(crate) struct Call {
    /// The digest of scope and key, computed once.
    pub(crate) id: RecordId,
    pub(crate) scope: Arc<Scope>,
    pub(crate) key: Key,
    pub(crate) policy: Arc<Policy>,
    /// The id of the request in every log; `None` without HTTP.
    pub(crate) request_id: Option<RequestId>,
    /// The trace that the request belongs to.
    pub(crate) trace: Option<Trace>,
    pub(crate) request: Arc<dyn Request>,
    /// The velocity rules for which it counts if its key is new.
    pub(crate) counted: Arc<[Counted]>,
    /// The peer, if the principal is not verified.
    pub(crate) unverified: Option<UnverifiedCall>,
    /// How long to wait for a running attempt.
    pub(crate) wait: Duration,
    /// The time after which the caller wants nothing begun.
    pub(crate) deadline: Option<Timestamp>,
    /// The time after which the key, a token, may begin nothing.
    pub(crate) token_until: Option<Timestamp>,
}

/// The address of a client, as used by limits per client.
pub(crate) type PeerId = [u8; 16];

/// A call whose principal is claimed but not verified.
#[derive(Clone)]
pub(crate) struct UnverifiedCall {
    /// The client that sends it.
    pub(crate) peer: PeerId,
    /// The velocity rules for which it counts while its principal is unknown: those of its peer.
    pub(crate) counted: Arc<[Counted]>,
}

impl Call {
    pub(crate) fn subject(&self, id: RecordId) -> Subject<'_> {
        Subject {
            scope: &self.scope,
            id,
        }
    }

    pub(crate) fn ask<'a>(&self, fingerprint: &'a Fingerprint) -> Ask<'a> {
        Ask {
            fingerprint,
            deadline: self.deadline,
            token_until: self.token_until,
        }
    }

    /// Refuses a new key that is too easy to guess.
    pub(crate) fn check_key(&self) -> Result<(), Rejection> {
        let bits_min = self.policy.key_bits_min;
        if bits_min > 0 && self.is_key_the_callers() && self.key.bits() < bits_min {
            return Err(Rejection::KeyGuessable { bits_min });
        }
        Ok(())
    }

    /// Whether the caller chose the key, and could have chosen a better one.
    pub(super) fn is_key_the_callers(&self) -> bool {
        let Policy {
            key, key_source, ..
        } = &*self.policy;
        *key != KeyRule::Issued && !matches!(key_source, KeySource::Derived(_))
    }

    /// Whether the deadline or the token's time may have passed.
    pub(super) fn is_late(&self, now: Timestamp) -> bool {
        self.deadline.is_some_and(|deadline| deadline < now)
            || self.token_until.is_some_and(|until| until < now)
    }

    /// The fingerprint of the request under the policy that the record was made with, or the
    /// route's policy if there is no record.
    pub(crate) async fn fingerprint_for(
        &self,
        head: Option<&Head>,
    ) -> Result<Fingerprint, Rejection> {
        let made_with = head
            .and_then(|head| head.fingerprint.as_ref())
            .map(|fingerprint| &fingerprint.policy);
        self.fingerprint(made_with.unwrap_or(&self.policy.fingerprint))
            .await
    }

    pub(crate) async fn fingerprint(
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

/// A request whose body is in memory.
pub(crate) struct Plain {
    pub(crate) scope: Arc<Scope>,
    pub(crate) content_type: Option<&'static str>,
    pub(crate) body: Bytes,
}

impl Request for Plain {
    fn fingerprint<'a>(&'a self, policy: &'a Arc<FingerprintPolicy>) -> Fingerprinting<'a> {
        let content_type = self
            .content_type
            .map(|name| ("content-type", name.as_bytes()));
        let head = RequestHead {
            scope: &self.scope,
            target: &self.scope.path,
            headers: content_type.into_iter().collect(),
        };
        let mut fingerprinter = Fingerprinter::new(policy, &head);
        fingerprinter.update(&self.body);
        Box::pin(std::future::ready(Ok(fingerprinter.finish())))
    }
}

/// How the work ended, and the first caller's response.
pub(crate) struct Ended<T> {
    pub(crate) outcome: Outcome,
    pub(crate) live: T,
}

/// The reply to a caller.
pub(crate) enum Reply<T> {
    /// The work ran for this call.
    First {
        /// The record as it was written, also for a released attempt.
        head: Box<Head>,
        live: T,
    },
    /// The work ran for this call, and its record was completed in the transaction of its effect.
    /// The answer stored there counts, whatever the work returned. If no answer was kept, only the
    /// head is known.
    Joined {
        head: Box<Head>,
        answer: Option<Arc<Answer>>,
        live: Option<T>,
    },
    /// The work ran before this call.
    Replay {
        head: Box<Head>,
        answer: Arc<Answer>,
        source: Source,
    },
}
