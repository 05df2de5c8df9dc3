//! The guard: the tower layer, and how it is built.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hapax_core::fingerprint::Pointer;
use hapax_core::policy::{KeyRule, Mode, Policy, PolicyError};
use hapax_core::rejection::Rejection;
use hapax_core::scope::Principal;
use hapax_core::store::Store;
use http::request::Parts;
use http::{HeaderName, Response};
use tower_layer::Layer;

use super::body::Body;
use super::in_transaction::InTransaction;
use super::probe::Probe;
use super::problem;
use super::service::Idempotency;
use super::webhooks::{self, StandardWebhooks};
use crate::Hapax;

/// Builds a [`Guard`]. Made by [`Hapax::guard`].
///
/// `P` says whether the guard knows who is asking. Keys belong to callers, so that a guard cannot be
/// built before one of [`principal_from`](GuardBuilder::principal_from),
/// [`principal`](GuardBuilder::principal), [`anonymous`](GuardBuilder::anonymous) and their
/// siblings was called.
///
/// ```
/// # use hapax::{Hapax, Principal};
/// # #[derive(Clone)] struct User { id: String }
/// # fn example(hapax: Hapax) -> Result<(), Box<dyn std::error::Error>> {
/// let guard = hapax
///     .guard()
///     .required()
///     .principal_from(|user: &User| user.id.clone())
///     .build()?;
/// # drop(guard); Ok(()) }
/// ```
///
/// Without a principal there is nothing to build:
///
/// ```compile_fail,E0277
/// # fn example(hapax: hapax::Hapax) -> Result<(), Box<dyn std::error::Error>> {
/// let guard = hapax.guard().required().build()?;
/// # Ok(()) }
/// ```
#[must_use = "a builder guards nothing: call `build`"]
pub struct GuardBuilder<P = PrincipalIsMissing> {
    hapax: Hapax,
    policy: Policy,
    /// A short method has changed the policy.
    is_changed: bool,
    /// Short methods have set two modes.
    has_two_modes: bool,
    /// `policy` was called after that, and has undone it.
    is_undone: bool,
    name: Arc<str>,
    probe: Option<Arc<dyn Probe>>,
    in_transaction: Option<Arc<dyn InTransaction>>,
    reply: Option<Box<RejectionReply>>,
    principal: P,
}

/// A [`GuardBuilder`] with this does not know yet who is asking.
pub struct PrincipalIsMissing;

/// A [`GuardBuilder`] with this knows who is asking.
pub struct PrincipalIsSet(PrincipalSource);

/// What a [`GuardBuilder`] needs before it can [build](GuardBuilder::build).
#[diagnostic::on_unimplemented(
    message = "this guard does not know who is asking",
    label = "keys belong to callers, and nothing says yet who the caller is",
    note = "before `build()`, call `principal_from(|user: &User| …)` for what an authentication layer left in the extensions,",
    note = "`principal_extractor(state, |user: User| …)` for an axum extractor, `principal(|parts| …)` for anything else,",
    note = "or `anonymous()` for a service without users"
)]
pub trait KnowsPrincipal: sealed::Sealed {}

impl KnowsPrincipal for PrincipalIsSet {}

mod sealed {
    use super::{PrincipalIsSet, PrincipalSource};

    pub trait Sealed {
        fn into_source(self) -> PrincipalSource;
    }

    impl Sealed for PrincipalIsSet {
        fn into_source(self) -> PrincipalSource {
            self.0
        }
    }
}

/// How a guard learns who is asking.
pub enum PrincipalSource {
    /// From the head of the request.
    Head(Box<HeadSource>),
    /// From an extractor, which may wait, and which answers the request itself if it fails.
    #[cfg(feature = "axum")]
    Extractor(Box<ExtractorSource>),
    /// A sender of webhooks, known by its signature.
    Signed(StandardWebhooks),
}

type HeadSource = dyn Fn(&Parts) -> Result<Principal, Rejection> + Send + Sync;

#[cfg(feature = "axum")]
type ExtractorSource = dyn for<'a> Fn(&'a mut Parts) -> Extracting<'a> + Send + Sync;

/// An extractor at work. Its error is the response it refuses the request with.
#[cfg(feature = "axum")]
type Extracting<'a> =
    std::pin::Pin<Box<dyn Future<Output = Result<Principal, Box<Response<Body>>>> + Send + 'a>>;

type RejectionReply = dyn Fn(&Rejection, Response<Body>) -> Response<Body> + Send + Sync;

/// Why a guard was not [built](GuardBuilder::build): every mistake that was found, not only the
/// first.
#[derive(Clone, PartialEq, Eq)]
pub struct GuardError {
    mistakes: Vec<PolicyError>,
}

impl GuardError {
    /// The mistakes, at least one.
    pub fn mistakes(&self) -> &[PolicyError] {
        &self.mistakes
    }
}

impl fmt::Display for GuardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [mistake] = &self.mistakes[..] {
            return write!(f, "the guard cannot be built: {mistake}");
        }
        write!(
            f,
            "the guard cannot be built, for {} reasons:",
            self.mistakes.len()
        )?;
        for mistake in &self.mistakes {
            write!(f, "\n- {mistake}")?;
        }
        Ok(())
    }
}

/// As [`Display`](fmt::Display): this is what `unwrap` and a failing `main` print.
impl fmt::Debug for GuardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for GuardError {}

impl GuardBuilder {
    pub(crate) fn new(hapax: Hapax) -> Self {
        GuardBuilder {
            hapax,
            policy: Policy::default(),
            is_changed: false,
            has_two_modes: false,
            is_undone: false,
            name: "".into(),
            probe: None,
            in_transaction: None,
            reply: None,
            principal: PrincipalIsMissing,
        }
    }

    /// Who is asking, from the head of the request. `None` is answered with `principal-missing`.
    ///
    /// Whatever the closure reads must have been checked before this layer: an unchecked header
    /// lets anybody ask as anybody.
    pub fn principal<N: Into<Principal>>(
        self,
        source: impl Fn(&Parts) -> Option<N> + Send + Sync + 'static,
    ) -> GuardBuilder<PrincipalIsSet> {
        self.try_principal(move |parts| {
            source(parts)
                .map(Into::into)
                .ok_or(Rejection::PrincipalMissing {
                    flaw: None,
                    unread: None,
                })
        })
    }

    /// Who is asking, from the head of the request, or the rejection that a guarded request gets if
    /// that is not known.
    ///
    /// As for [`principal`](GuardBuilder::principal), whatever the closure reads must have been
    /// checked before.
    pub fn try_principal(
        self,
        source: impl Fn(&Parts) -> Result<Principal, Rejection> + Send + Sync + 'static,
    ) -> GuardBuilder<PrincipalIsSet> {
        self.with_source(PrincipalSource::Head(Box::new(source)))
    }

    /// Who is asking, from what an authentication layer outside this one left in the request's
    /// extensions.
    ///
    /// A request without a `T` shows a mistake of the service, not of its caller: that layer is
    /// missing, or stands inside this one. Such a request gets 500 `principal-not-set`, and the log
    /// an ERROR that names `T`. If your authentication lets anonymous callers pass without a `T`,
    /// use [`principal`](GuardBuilder::principal).
    pub fn principal_from<T, N>(
        self,
        name: impl Fn(&T) -> N + Send + Sync + 'static,
    ) -> GuardBuilder<PrincipalIsSet>
    where
        T: Clone + Send + Sync + 'static,
        N: Into<Principal>,
    {
        let is_told = AtomicBool::new(false);
        self.try_principal(move |parts| match parts.extensions.get::<T>() {
            Some(found) => Ok(name(found).into()),
            None => {
                tell_principal_not_set(&is_told, std::any::type_name::<T>());
                Err(Rejection::PrincipalNotSet)
            }
        })
    }

    /// Who is asking, from an axum extractor: the same one that handlers use.
    ///
    /// The extractor runs on guarded requests only. If it refuses a request, its own response is
    /// sent, and nothing was begun.
    ///
    /// ```
    /// # use axum::extract::FromRequestParts;
    /// # use axum::http::{StatusCode, request::Parts};
    /// # #[derive(Clone)] struct AppState;
    /// # struct User { id: u64 }
    /// # impl FromRequestParts<AppState> for User {
    /// #     type Rejection = StatusCode;
    /// #     async fn from_request_parts(_: &mut Parts, _: &AppState) -> Result<Self, StatusCode> {
    /// #         Ok(User { id: 7 })
    /// #     }
    /// # }
    /// # fn example(hapax: hapax::Hapax, state: AppState) -> Result<(), hapax::GuardError> {
    /// let guard = hapax.guard().principal_extractor(state.clone(), |user: User| user.id).build()?;
    /// # drop(guard); Ok(()) }
    /// ```
    #[cfg(feature = "axum")]
    pub fn principal_extractor<E, S, N>(
        self,
        state: S,
        name: impl Fn(E) -> N + Send + Sync + 'static,
    ) -> GuardBuilder<PrincipalIsSet>
    where
        E: axum::extract::FromRequestParts<S> + Send + 'static,
        S: Send + Sync + 'static,
        N: Into<Principal>,
    {
        use axum::response::IntoResponse;

        let shared = Arc::new((state, name));
        self.with_source(PrincipalSource::Extractor(Box::new(move |parts| {
            let shared = shared.clone();
            Box::pin(async move {
                let (state, name) = &*shared;
                match E::from_request_parts(parts, state).await {
                    Ok(found) => Ok(name(found).into()),
                    Err(refusal) => Err(Box::new(refusal.into_response().map(Body::streamed))),
                }
            })
        })))
    }

    /// All callers are one: every caller who knows a key gets its answer. For services without
    /// users. The host does not set callers apart.
    pub fn anonymous(self) -> GuardBuilder<PrincipalIsSet> {
        self.try_principal(|_| Ok(Principal::Anonymous))
    }

    /// Takes webhooks of one sender, each of which is verified before anything else. Its key is its
    /// `webhook-id`, and each needs one.
    ///
    /// Other requests with an effect are refused too, such as a `PUT` where only `POST` is guarded.
    /// Of `GET` and other safe methods nothing is verified. A [shadow](Policy::shadow) verifies
    /// nothing.
    pub fn standard_webhooks(self, webhooks: StandardWebhooks) -> GuardBuilder<PrincipalIsSet> {
        self.required()
            .key_field(webhooks::ID)
            .with_source(PrincipalSource::Signed(webhooks))
    }

    fn with_source(self, source: PrincipalSource) -> GuardBuilder<PrincipalIsSet> {
        let GuardBuilder {
            hapax,
            policy,
            is_changed,
            has_two_modes,
            is_undone,
            name,
            probe,
            in_transaction,
            reply,
            principal: PrincipalIsMissing,
        } = self;
        GuardBuilder {
            hapax,
            policy,
            is_changed,
            has_two_modes,
            is_undone,
            name,
            probe,
            in_transaction,
            reply,
            principal: PrincipalIsSet(source),
        }
    }
}

impl<P> GuardBuilder<P> {
    /// Sets every field of the policy. The short methods below change single fields of it: call
    /// them after this.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.is_undone |= self.is_changed;
        self.policy = policy;
        self
    }

    /// Refuses a guarded request without a key.
    pub fn required(self) -> Self {
        self.change(|policy| policy.key = KeyRule::Required)
    }

    /// The handler completes the record in the transaction of its effect: [`Mode::Transaction`].
    /// Needs a store in the database of the effects.
    pub fn transaction(self) -> Self {
        self.set_mode(Mode::Transaction)
    }

    /// Running twice is harmless: a lost attempt is followed by another ([`Mode::Rerun`]).
    pub fn rerun(self) -> Self {
        self.set_mode(Mode::Rerun)
    }

    /// The service keeps the highest fence and refuses lower ones: [`Mode::Fenced`].
    pub fn fenced(self) -> Self {
        self.set_mode(Mode::Fenced)
    }

    /// The service is asked what became of a lost attempt: [`Mode::Probe`].
    pub fn probe(mut self, probe: impl Probe) -> Self {
        self.probe = Some(Arc::new(probe));
        self.set_mode(Mode::Probe)
    }

    /// How long a finished record replays.
    pub fn retention(self, retention: Duration) -> Self {
        self.change(|policy| policy.retention = retention)
    }

    /// How long a repeat waits for a running attempt, unless its caller says otherwise (`Prefer:
    /// wait`).
    pub fn wait(self, wait: Duration) -> Self {
        self.change(|policy| policy.wait = wait)
    }

    /// The header field that carries the key.
    pub fn key_field(self, name: &str) -> Self {
        self.change(|policy| policy.key_field = name.into())
    }

    /// Counts new keys ([`Policy::velocity`]) under this name. Guards with the same name and
    /// namespace share their counts, and a guard that is built again under its old name goes on
    /// with them. Guards without a name share one count.
    pub fn name(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    /// Turns each rejection into a response of the service's own.
    ///
    /// Headers and body are the service's, and so is the status, unless it is below 400: a caller
    /// must not take a refusal for a success, so the rejection's own status is set instead.
    /// `Retry-After` is set as the rejection says, `Cache-Control: no-store` where it is missing,
    /// and the [`Rejection`] is left in the response's extensions.
    ///
    /// ```
    /// # use axum::Json;
    /// # use axum::http::StatusCode;
    /// # fn example(hapax: hapax::Hapax) -> Result<(), hapax::GuardError> {
    /// let guard = hapax
    ///     .guard()
    ///     .on_reject(|rejection| {
    ///         let status = StatusCode::from_u16(rejection.row().status).expect("a valid status");
    ///         (status, Json(rejection.to_string()))
    ///     })
    ///     .anonymous()
    ///     .build()?;
    /// # drop(guard); Ok(()) }
    /// ```
    #[cfg(feature = "axum")]
    pub fn on_reject<R: axum::response::IntoResponse>(
        self,
        reply: impl Fn(Rejection) -> R + Send + Sync + 'static,
    ) -> Self {
        self.map_rejection(move |rejection, _| {
            reply(rejection.clone()).into_response().map(Body::streamed)
        })
    }

    /// As [`on_reject`](GuardBuilder::on_reject), for services without axum. The closure also gets
    /// the response that the guard would send.
    pub fn map_rejection(
        mut self,
        reply: impl Fn(&Rejection, Response<Body>) -> Response<Body> + Send + Sync + 'static,
    ) -> Self {
        self.reply = Some(Box::new(reply));
        self
    }

    pub(crate) fn set_in_transaction(mut self, pool: Arc<dyn InTransaction>) -> Self {
        self.in_transaction = Some(pool);
        self.set_mode(Mode::Transaction)
    }

    fn set_mode(mut self, mode: Mode) -> Self {
        self.has_two_modes |= !matches!(self.policy.mode, m if m == mode || m == Mode::Hold);
        self.change(|policy| policy.mode = mode)
    }

    fn change(mut self, change: impl FnOnce(&mut Policy)) -> Self {
        change(&mut self.policy);
        self.is_changed = true;
        self
    }

    fn mistakes(&self) -> Vec<PolicyError> {
        let mut mistakes = self.policy.mistakes();
        if self.is_undone {
            mistakes.push(PolicyError::Undone);
        }
        if self.has_two_modes {
            mistakes.push(PolicyError::TwoModes);
        }
        match self.policy.mode {
            Mode::Transaction if self.hapax.engine().store.joins().is_none() => {
                mistakes.push(PolicyError::NoTransactions);
            }
            Mode::Probe if self.probe.is_none() => mistakes.push(PolicyError::NoProbe),
            _ => {}
        }
        if self.in_transaction.is_some() {
            mistakes.extend(not_in_transaction(&self.policy));
        }
        mistakes
    }
}

impl<P> GuardBuilder<P> {
    /// The layer. Fails if the policy contradicts itself, or promises something that this store
    /// cannot keep; the error lists every mistake.
    pub fn build(mut self) -> Result<Guard, GuardError>
    where
        P: KnowsPrincipal,
    {
        // Who sets a small limit on bodies means it for memory too.
        let all = usize::try_from(self.policy.body_bytes_max).unwrap_or(usize::MAX);
        self.policy.body_memory_bytes_max = self.policy.body_memory_bytes_max.min(all);
        let mistakes = self.mistakes();
        if !mistakes.is_empty() {
            return Err(GuardError { mistakes });
        }
        let GuardBuilder {
            hapax,
            mut policy,
            name,
            probe,
            in_transaction,
            reply,
            principal,
            ..
        } = self;
        let key_field =
            HeaderName::try_from(&*policy.key_field).expect("the policy has no mistakes");
        let namespace = match policy.shadow {
            true => format!("{}{}", crate::SHADOW, hapax.namespace).into(),
            false => hapax.namespace.clone(),
        };
        if policy.shadow {
            // A shadow asks the store more than once for a request. All of it has to be answered,
            // or given up, within the time that the route allows.
            policy.store_timeout = policy.store_timeout * 3 / 4;
        }
        Ok(Guard(Arc::new(Shared {
            hapax,
            namespace,
            pointers: policy.pointers(),
            policy: Arc::new(policy),
            name,
            key_field,
            principal: principal.into_source(),
            probe,
            in_transaction,
            reply,
            has_warned_close_delimited: AtomicBool::new(false),
            said_stream: AtomicBool::new(false),
            has_warned_not_guarded: AtomicBool::new(false),
            has_warned_other_field: AtomicBool::new(false),
        })))
    }
}

/// The tower layer: makes [`Idempotency`] out of a service. Built by [`Hapax::guard`].
#[derive(Clone)]
pub struct Guard(Arc<Shared>);

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", &self.0.name)
            .field("namespace", &self.0.namespace)
            .field("policy", &self.0.policy)
            .finish_non_exhaustive()
    }
}

impl<S> Layer<S> for Guard {
    type Service = Idempotency<S>;

    fn layer(&self, inner: S) -> Idempotency<S> {
        Idempotency::new(inner, self.0.clone())
    }
}

pub(super) struct Shared {
    pub(super) hapax: Hapax,
    /// The namespace of the records. A shadow has its own.
    pub(super) namespace: Arc<str>,
    pub(super) policy: Arc<Policy>,
    /// The name under which new keys are counted.
    pub(super) name: Arc<str>,
    /// The policy's field, parsed once.
    pub(super) key_field: HeaderName,
    /// The policy's pointers, listed once.
    pub(super) pointers: Vec<Pointer>,
    pub(super) principal: PrincipalSource,
    pub(super) probe: Option<Arc<dyn Probe>>,
    /// Answers each request in one transaction, if the guard does that.
    pub(super) in_transaction: Option<Arc<dyn InTransaction>>,
    reply: Option<Box<RejectionReply>>,
    has_warned_close_delimited: AtomicBool,
    said_stream: AtomicBool,
    has_warned_not_guarded: AtomicBool,
    has_warned_other_field: AtomicBool,
}

impl Shared {
    /// The response to a request that is refused.
    pub(super) fn refuse(&self, rejection: &Rejection) -> Response<Body> {
        let ours = problem::response(rejection, &self.policy);
        match &self.reply {
            None => ours,
            Some(reply) => problem::mend(reply(rejection, ours), rejection, &self.policy),
        }
    }

    /// Warns, once, that requests with a key pass this layer unguarded because of their method.
    pub(super) fn warn_not_guarded(&self, method: &http::Method) {
        if !self.has_warned_not_guarded.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                route = &*self.name,
                %method,
                "a request with a key was passed on unguarded, because this route does not guard its method: a repeat has a second effect. To guard it, \
                 name the method in `method` of a route, or in `Policy::methods` of a layer"
            );
        }
    }

    /// Warns, once, that requests carry a key in a field that is not read.
    pub(super) fn warn_other_field(&self, sent: &http::HeaderName) {
        if !self.has_warned_other_field.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                route = &*self.name,
                field = %sent,
                key_field = &*self.policy.key_field,
                "a request was passed on unguarded though it seems to carry a key: keys are read from another field. A repeat has a second effect. \
                 Set `key_field`, or have clients send the field that is read"
            );
        }
    }

    /// Says, once, that answers of this layer are not kept because they are streams.
    pub(super) fn say_stream(&self, headers: &http::HeaderMap) {
        if !self.said_stream.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                route = &*self.name,
                content_type = ?headers.get(http::header::CONTENT_TYPE),
                "an answer is a stream: it is sent as it comes and not kept, and a repeat gets `answer-not-kept`. Let the service answer with the whole \
                 result, or start the work here and stream its progress by a GET"
            );
        }
    }

    /// Warns, once, that answers of this layer are not kept because it cannot be detected whether
    /// they are complete.
    pub(super) fn warn_close_delimited(&self) {
        if !self
            .has_warned_close_delimited
            .swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                route = &*self.name,
                "an answer had neither Content-Length nor chunks, so that it cannot be told from one that broke off: such answers are not kept, and a \
                 repeat gets `answer-not-kept`. Let the service send a Content-Length, or set keep_close_delimited = true to accept the risk"
            );
        }
    }
}

/// The settings that a guard in one transaction cannot follow.
fn not_in_transaction(policy: &Policy) -> impl Iterator<Item = PolicyError> {
    let set = [
        ("shadow", policy.shadow),
        ("velocity", !policy.velocity.is_empty()),
        ("mode", policy.mode != Mode::Transaction),
    ];
    set.into_iter()
        .filter(|(_, is_set)| *is_set)
        .map(|(name, _)| PolicyError::NotInTransaction(name))
}

/// Reports, once per guard, that the layer order is wrong: every request is refused until it is
/// mended, and one line is enough to find it.
fn tell_principal_not_set(is_told: &AtomicBool, type_name: &str) {
    if !is_told.swap(true, Ordering::Relaxed) {
        tracing::error!(
            principal = type_name,
            "the guard found no {type_name} in the extensions of a request, so it does not know who is asking, and refuses such requests with 500. \
             Add the layer that sets it outside the guard: in axum, call `.layer(authentication)` after `.route_layer(guard)`, since the layer that is \
             added last runs first. If an extractor makes it, use `principal_extractor`"
        );
    }
}
