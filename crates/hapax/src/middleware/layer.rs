//! The layer, and how it is put together.

use hapax_core::store::Store;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hapax_core::fingerprint::Pointer;
use hapax_core::policy::{Mode, Policy, PolicyError};
use hapax_core::rejection::Rejection;
use hapax_core::scope::Principal;
use http::HeaderName;
use http::request::Parts;
use tower_layer::Layer;

use super::probe::Probe;
use super::service::Idempotency;
use crate::Hapax;

/// A layer that does not know yet who is asking. Keys mean something only for somebody, so this
/// must be said, even if it is "nobody".
pub struct LayerBuilder {
    hapax: Hapax,
    policy: Arc<Policy>,
    name: Arc<str>,
    probe: Option<Arc<dyn Probe>>,
}

impl LayerBuilder {
    pub(crate) fn new(hapax: Hapax) -> Self {
        LayerBuilder {
            hapax,
            policy: Arc::default(),
            name: "".into(),
            probe: None,
        }
    }

    /// Who asks the service what became of a lost attempt, for a policy of [`Mode::Probe`]. To be
    /// said before the policy.
    #[must_use]
    pub fn probe(mut self, probe: impl Probe) -> Self {
        self.probe = Some(Arc::new(probe));
        self
    }

    /// Sets what the guarded routes promise. A policy that contradicts itself is refused here, and
    /// one whose promise this store cannot keep.
    pub fn policy(mut self, policy: Policy) -> Result<Self, PolicyError> {
        policy.validate()?;
        match policy.mode {
            Mode::Transaction if self.hapax.engine().store.joins().is_none() => {
                return Err(PolicyError::NoTransactions);
            }
            Mode::Probe if self.probe.is_none() => return Err(PolicyError::NoProbe),
            _ => {}
        }
        self.policy = Arc::new(policy);
        Ok(self)
    }

    /// Counts new keys ([`Policy::velocity`]) under this name: layers of one name and namespace
    /// count together whatever their rules have in common, and a layer that is made anew under its
    /// old name goes on where the old one was. Without a name, that of all without one.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    /// Who is asking, from the request. `None` is answered with `principal-missing`.
    ///
    /// Whatever the closure reads must have been checked before this layer: an unchecked header
    /// lets anybody ask as anybody.
    pub fn principal(
        self,
        source: impl Fn(&Parts) -> Option<Principal> + Send + Sync + 'static,
    ) -> IdempotencyLayer {
        self.try_principal(move |parts| {
            source(parts).ok_or(Rejection::PrincipalMissing {
                flaw: None,
                unread: None,
            })
        })
    }

    /// Who is asking, from the request, or the rejection that a guarded request gets if that is not
    /// known.
    ///
    /// As for [`principal`](LayerBuilder::principal), whatever the closure reads must have been
    /// checked before.
    pub fn try_principal(
        self,
        source: impl Fn(&Parts) -> Result<Principal, Rejection> + Send + Sync + 'static,
    ) -> IdempotencyLayer {
        let key_field =
            HeaderName::try_from(&*self.policy.key_field).expect("the policy was validated");
        let namespace = match self.policy.shadow {
            true => format!("{}{}", crate::SHADOW, self.hapax.namespace).into(),
            false => self.hapax.namespace.clone(),
        };
        let pointers = self.policy.pointers();
        let principal = Box::new(source);
        let LayerBuilder {
            hapax,
            mut policy,
            name,
            probe,
        } = self;
        if policy.shadow {
            // So that all that is asked for one request is answered, or given up, within what the
            // route allows.
            let policy = Arc::make_mut(&mut policy);
            policy.store_timeout = policy.store_timeout * 3 / 4;
        }
        let (said_close_delimited, said_not_guarded) =
            (AtomicBool::new(false), AtomicBool::new(false));
        IdempotencyLayer(Arc::new(Shared {
            hapax,
            namespace,
            policy,
            name,
            key_field,
            pointers,
            principal,
            probe,
            said_close_delimited,
            said_not_guarded,
        }))
    }

    /// Who is asking, from what an authentication layer outside this one left in the request's
    /// extensions. A request without it, because that layer is missing or stands inside, is
    /// answered with `principal-missing`.
    pub fn principal_from<T>(
        self,
        name: impl Fn(&T) -> Principal + Send + Sync + 'static,
    ) -> IdempotencyLayer
    where
        T: Clone + Send + Sync + 'static,
    {
        self.principal(move |parts| parts.extensions.get::<T>().map(&name))
    }

    /// All callers are one: whoever knows a key gets its answer. For services without users. The
    /// host does not set callers apart.
    pub fn anonymous(self) -> IdempotencyLayer {
        self.principal(|_| Some(Principal::Anonymous))
    }
}

/// Makes [`Idempotency`] out of a service.
#[derive(Clone)]
pub struct IdempotencyLayer(Arc<Shared>);

pub(super) struct Shared {
    pub(super) hapax: Hapax,
    /// Where records are made: apart from all others in a shadow.
    pub(super) namespace: Arc<str>,
    pub(super) policy: Arc<Policy>,
    /// What new keys are counted under.
    pub(super) name: Arc<str>,
    /// The policy's, read once.
    pub(super) key_field: HeaderName,
    /// The policy's, listed once.
    pub(super) pointers: Vec<Pointer>,
    pub(super) principal: Box<PrincipalSource>,
    pub(super) probe: Option<Arc<dyn Probe>>,
    said_close_delimited: AtomicBool,
    said_not_guarded: AtomicBool,
}

impl Shared {
    /// Says, once, that requests with a key pass this layer unguarded because of their method.
    pub(super) fn say_not_guarded(&self, method: &http::Method) {
        if !self.said_not_guarded.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                route = &*self.name,
                %method,
                "a request with a key was passed on unguarded, because this route does not guard its method: a repeat has a second effect. To guard it, \
                 name the method in `method` of a route, or in `Policy::methods` of a layer"
            );
        }
    }

    /// Says, once, that requests carry a key in a field that is not read.
    pub(super) fn say_other_field(&self, sent: &http::HeaderName) {
        if !self.said_not_guarded.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                route = &*self.name,
                field = %sent,
                key_field = &*self.policy.key_field,
                "a request was passed on unguarded though it seems to carry a key: keys are read from another field. A repeat has a second effect. \
                 Set `key_field`, or have clients send the field that is read"
            );
        }
    }

    /// Says, once, that answers of this layer are not kept because nobody can tell whether they are
    /// whole.
    pub(super) fn say_close_delimited(&self) {
        if !self.said_close_delimited.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                route = &*self.name,
                "an answer had neither Content-Length nor chunks, so that it cannot be told from one that broke off: such answers are not kept, and a \
                 repeat gets `answer-not-kept`. Let the service send a Content-Length, or set keep_close_delimited = true to accept the risk"
            );
        }
    }
}

type PrincipalSource = dyn Fn(&Parts) -> Result<Principal, Rejection> + Send + Sync;

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotency<S>;

    fn layer(&self, inner: S) -> Idempotency<S> {
        Idempotency::new(inner, self.0.clone())
    }
}
