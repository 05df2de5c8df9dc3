//! The service: the path of one request, from top to bottom.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hapax_core::key::Key;
#[cfg(feature = "axum")]
use hapax_core::policy::Policy;
use hapax_core::policy::{KeyRule, KeySource, Part};
use hapax_core::rejection::Rejection;
use hapax_core::request_id::RequestId;
use hapax_core::scope::{Principal, RecordId, Scope};
use hapax_core::time::Timestamp;
use hapax_core::token;
use http::header::ACCEPT_ENCODING;
use http::request::Parts;
use http::{Extensions, HeaderName, HeaderValue, Request, Response};
use tower_service::Service;
use tracing::Instrument;

use super::body::Body;
use super::buffered::{Buffered, Stopped};
use super::fields::IDEMPOTENCY_STATUS;
use super::guard::{PrincipalSource, Shared};
use super::peer::{Peer, Unverified};
use super::request::Ask;
use super::request_id::{REQUEST_ID, request_id, value};
use super::source::RequestData;
use super::webhooks::{self, Verifying};
use super::{BoxError, answer, request, work};
use crate::observe::{Event, Subject};
use crate::once::{Call, Counted, Operation, Reply, Trace, UnverifiedCall};

/// A service whose guarded requests have one effect per key. Made by
/// [`Guard`](super::Guard).
#[derive(Clone)]
pub struct Idempotency<S> {
    inner: S,
    shared: Arc<Shared>,
}

/// The error of an inner service that knows that nothing happened: the request was never sent. The
/// key is released and the caller is told to try again. Any other error is held as unknown, even
/// one that has this error as its cause.
#[derive(Debug)]
pub struct NeverDispatched(pub BoxError);

impl fmt::Display for NeverDispatched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the request was never dispatched: {}", self.0)
    }
}

impl std::error::Error for NeverDispatched {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0)
    }
}

/// The error of an inner service that got no answer in time: the request may still be in progress.
/// The key is held as unknown, and the first caller gets a 504. Only the error itself counts, not
/// one that has it as its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the service did not answer within {after:?} ({limit})")]
pub struct TimedOut {
    /// The time limit.
    pub after: Duration,
    /// The name of the setting with the limit, for the log.
    pub limit: &'static str,
}

/// In the extensions of the response to a request that was let through unguarded because the store
/// was unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedOpen;

/// Left in the extensions of a request that a layer with this policy lets pass unguarded, so that a
/// handler that needs an operation can be told why it has none.
#[cfg(feature = "axum")]
#[derive(Clone)]
pub(crate) struct Passed(pub(crate) Arc<Policy>);

impl<S> Idempotency<S> {
    pub(super) fn new(inner: S, shared: Arc<Shared>) -> Self {
        Idempotency { inner, shared }
    }

    /// Whether this layer may act on a request, judging by its head: its method is guarded, and it
    /// carries a key, must carry one, or belongs to a route that takes keys from somewhere other
    /// than their field. Reads only the head and asks neither the store nor the principal source,
    /// so that an outer service can decide whether authenticating the caller is worthwhile.
    pub fn may_guard(&self, parts: &Parts) -> bool {
        let Shared {
            policy, key_field, ..
        } = &*self.shared;
        let has_key = || parts.headers.contains_key(key_field);
        policy.guards(parts.method.as_str())
            && (policy.key_source != KeySource::Field
                || policy.key != KeyRule::Optional
                || has_key())
    }
}

impl<S, B, RB> Service<Request<B>> for Idempotency<S>
where
    S: Service<Request<Body>, Response = Response<RB>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError> + Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError> + Send,
    RB: http_body::Body<Data = Bytes> + Send + 'static,
    RB::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // `self.inner` is the instance that is ready, so it takes the call and the clone stays.
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        let (mut parts, body) = request.into_parts();
        let id = request_id(&mut parts);
        if self.shared.policy.shadow {
            return Box::pin(under(id, self.shared.clone().watch(inner, parts, body)));
        }
        // Decided before the future is made: a future for each case is smaller than one that covers
        // all of them.
        let refused = |rejection: Rejection| {
            self.shared.hapax.observe(&Event::Rejected {
                subject: None,
                rejection: &rejection,
            });
            std::future::ready(Ok(self.shared.refuse(&rejection)))
        };
        let signature = match self.shared.begin_to_verify(&parts) {
            Ok(signature) => signature,
            Err(rejection) => return Box::pin(under(id, refused(rejection))),
        };
        let ask = match self.shared.read_key(&parts) {
            // It could only be verified on its way to the service.
            Ok(Ask::No) if signature.is_some() => {
                return Box::pin(under(id, refused(webhooks::INVALID)));
            }
            Ok(Ask::No) => {
                let is_key_unheeded = self.shared.is_key_unheeded(&parts);
                answer::strip_ours(&mut parts.headers);
                self.shared.mark_passed(&mut parts);
                if is_key_unheeded {
                    return Box::pin(under(
                        id,
                        pass_not_guarded(inner, parts, Body::streamed(body)),
                    ));
                }
                return Box::pin(under(id, pass(inner, parts, Body::streamed(body))));
            }
            Ok(ask) => ask,
            Err(rejection) => return Box::pin(under(id, refused(rejection))),
        };
        match &self.shared.principal {
            PrincipalSource::Head(source) => {
                match self.shared.ask_as(source(&parts), &parts, ask) {
                    Ok(asked) => Box::pin(under(
                        id,
                        self.shared.clone().guard(inner, parts, body, asked, None),
                    )),
                    Err(rejection) => Box::pin(under(id, refused(rejection))),
                }
            }
            PrincipalSource::Signed(webhooks) => {
                match self.shared.ask_as(Ok(webhooks.principal()), &parts, ask) {
                    Ok(asked) => {
                        let asked = Asked { signature, ..asked };
                        let shared = self.shared.clone();
                        Box::pin(under(id, shared.guard(inner, parts, body, asked, None)))
                    }
                    Err(rejection) => Box::pin(under(id, refused(rejection))),
                }
            }
            #[cfg(feature = "axum")]
            PrincipalSource::Extractor(_) => Box::pin(under(
                id,
                self.shared
                    .clone()
                    .extract_and_guard(inner, parts, body, ask),
            )),
        }
    }
}

/// Answers a request under its id: every line logged meanwhile carries the id, and so does the
/// response, which overrides an id set by the inner service or by the first answer.
async fn under<E>(
    id: RequestId,
    answer: impl Future<Output = Result<Response<Body>, E>>,
) -> Result<Response<Body>, E> {
    // A span of the highest level, so that no filter removes the id from a line that it lets
    // through.
    let span = tracing::error_span!("hapax.request", request_id = id.as_str());
    let mut response = answer.instrument(span).await?;
    response.headers_mut().insert(REQUEST_ID, value(&id));
    Ok(response)
}

/// Passes an unguarded request through, streaming both bodies.
pub(super) async fn pass<S, RB>(
    inner: S,
    parts: Parts,
    body: Body,
) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<RB>>,
    RB: http_body::Body<Data = Bytes> + Send + 'static,
    RB::Error: Into<BoxError>,
{
    let mut response = forward_request(inner, parts, body).await?;
    answer::strip_ours(response.headers_mut());
    Ok(response)
}

/// Passes an unguarded request that carries a key, and tells its caller that the key has no effect.
async fn pass_not_guarded<S, RB>(
    inner: S,
    parts: Parts,
    body: Body,
) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<RB>>,
    RB: http_body::Body<Data = Bytes> + Send + 'static,
    RB::Error: Into<BoxError>,
{
    let mut response = pass(inner, parts, body).await?;
    response
        .headers_mut()
        .insert(IDEMPOTENCY_STATUS, HeaderValue::from_static("not-guarded"));
    Ok(response)
}

/// Passes a request for which another layer is responsible. The response keeps the fields by which
/// the inner service instructs that layer.
pub(super) async fn forward_request<S, RB>(
    mut inner: S,
    parts: Parts,
    body: Body,
) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<RB>>,
    RB: http_body::Body<Data = Bytes> + Send + 'static,
    RB::Error: Into<BoxError>,
{
    Ok(inner
        .call(Request::from_parts(parts, body))
        .await?
        .map(Body::streamed))
}

/// The result of reading the head of a guarded request.
pub(super) struct Asked {
    /// The key from its field. `None` if the body has to be read first.
    pub(super) key: Option<Key>,
    pub(super) scope: Arc<Scope>,
    pub(super) target: String,
    /// Why the principal is not known. The request is refused if it has a key, which may not be
    /// known yet.
    principal_error: Option<Rejection>,
    /// The principal is known once this is verified.
    signature: Option<Verifying>,
}

impl Asked {
    fn id(&self) -> Option<RecordId> {
        self.key.as_ref().map(|key| RecordId::of(&self.scope, key))
    }
}

/// The caller is not known, and nothing more can be said about it.
#[cfg(feature = "axum")]
pub(super) const MISSING: Rejection = Rejection::PrincipalMissing {
    flaw: None,
    unread: None,
};

/// Why it is not known who is asking.
pub(super) enum Unfound {
    Rejection(Rejection),
    /// An extractor refused the request with this response.
    #[cfg(feature = "axum")]
    Refusal(Box<Response<Body>>),
}

/// Fields in which clients send keys to other services. A key in one of them has no effect here.
const LOOKALIKES: [HeaderName; 4] = [
    HeaderName::from_static("idempotency-key"),
    HeaderName::from_static("x-idempotency-key"),
    HeaderName::from_static("idempotent-key"),
    HeaderName::from_static("x-idempotent-key"),
];

impl Shared {
    /// Whether an unguarded request carries a key that has no effect: its method is not guarded, or
    /// the key is in a field that is not read. Logs a warning, once, where a repeat could do harm.
    fn is_key_unheeded(&self, parts: &Parts) -> bool {
        let Shared {
            policy, key_field, ..
        } = self;
        // A layer outside this one guards the request.
        let is_guarded_outside = parts.extensions.get::<Operation>().is_some();
        if policy.key == KeyRule::Off || policy.key_source != KeySource::Field || is_guarded_outside
        {
            return false;
        }
        if parts.headers.contains_key(key_field) {
            if !parts.method.is_safe() {
                self.warn_not_guarded(&parts.method);
            }
            return true;
        }
        let lookalike = LOOKALIKES
            .into_iter()
            .find(|name| !parts.method.is_safe() && parts.headers.contains_key(name));
        if let Some(name) = &lookalike {
            self.warn_other_field(name);
        }
        lookalike.is_some()
    }

    /// Notes in a request that it passes this layer unguarded.
    #[cfg(feature = "axum")]
    pub(super) fn mark_passed(&self, parts: &mut Parts) {
        parts.extensions.insert(Passed(self.policy.clone()));
    }

    /// Only the extractor reads the note.
    #[cfg(not(feature = "axum"))]
    pub(super) fn mark_passed(&self, _: &mut Parts) {}

    /// The key of the request, as far as its head tells. [`Ask::No`] if the request is not guarded.
    pub(super) fn read_key(&self, parts: &Parts) -> Result<Ask, Rejection> {
        if !self.policy.guards(parts.method.as_str()) {
            return Ok(Ask::No);
        }
        if request::is_grpc(parts) {
            return request::grpc(parts, &self.key_field, &self.policy).map(|()| Ask::No);
        }
        request::key(parts, &self.key_field, &self.policy)
    }

    /// What a guarded request asks for, once it is known who asks, or why not.
    pub(super) fn ask_as(
        &self,
        principal: Result<Principal, Rejection>,
        parts: &Parts,
        ask: Ask,
    ) -> Result<Asked, Rejection> {
        let key = match ask {
            Ask::Key(key) => Some(key),
            Ask::Body | Ask::No => None,
        };
        let (principal, principal_error) = match principal {
            Ok(principal) => (principal, None),
            Err(rejection) if key.is_some() || self.policy.key != KeyRule::Optional => {
                return Err(rejection);
            }
            Err(rejection) => (Principal::Anonymous, Some(rejection)),
        };
        let uri = original_uri(parts);
        let scope = Scope {
            namespace: self.namespace.clone(),
            principal,
            method: parts.method.as_str().into(),
            path: uri.path().into(),
        };
        let target = uri
            .path_and_query()
            .map_or_else(|| uri.path().to_owned(), ToString::to_string);
        Ok(Asked {
            key,
            scope: Arc::new(scope),
            target,
            principal_error,
            signature: None,
        })
    }

    /// Begins to verify a signature, if this guard takes only what is signed.
    fn begin_to_verify(&self, parts: &Parts) -> Result<Option<Verifying>, Rejection> {
        match &self.principal {
            PrincipalSource::Signed(webhooks) if !parts.method.is_safe() => {
                webhooks.begin(&parts.headers, SystemTime::now()).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Asks the extractor who is asking, then guards the request.
    #[cfg(feature = "axum")]
    async fn extract_and_guard<S, B, RB>(
        self: Arc<Self>,
        inner: S,
        mut parts: Parts,
        body: B,
        ask: Ask,
    ) -> Result<Response<Body>, S::Error>
    where
        S: Service<Request<Body>, Response = Response<RB>> + Clone + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError> + Send + 'static,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError> + Send,
        RB: http_body::Body<Data = Bytes> + Send + 'static,
        RB::Error: Into<BoxError>,
    {
        // A request without a key may pass; whether it has one may be in its body.
        let may_pass = matches!(ask, Ask::Body) && self.policy.key == KeyRule::Optional;
        let (principal, refusal) = match self.find_principal(&mut parts).await {
            Ok(principal) => (Ok(principal), None),
            Err(Unfound::Rejection(rejection)) => (Err(rejection), None),
            Err(Unfound::Refusal(response)) if may_pass => (Err(MISSING), Some(response)),
            Err(Unfound::Refusal(response)) => return Ok(*response),
        };
        match self.ask_as(principal, &parts, ask) {
            Ok(asked) => self.guard(inner, parts, body, asked, refusal).await,
            Err(rejection) => Ok(self.refuse(&rejection)),
        }
    }

    /// Who is asking, from whichever source the guard has.
    pub(super) async fn find_principal(&self, parts: &mut Parts) -> Result<Principal, Unfound> {
        match &self.principal {
            PrincipalSource::Head(source) => source(parts).map_err(Unfound::Rejection),
            PrincipalSource::Signed(webhooks) => Ok(webhooks.principal()),
            #[cfg(feature = "axum")]
            PrincipalSource::Extractor(extract) => extract(parts).await.map_err(Unfound::Refusal),
        }
    }

    async fn guard<S, B, RB>(
        self: Arc<Self>,
        inner: S,
        mut parts: Parts,
        body: B,
        mut asked: Asked,
        // The response to a request that has a key after all.
        refusal: Option<Box<Response<Body>>>,
    ) -> Result<Response<Body>, S::Error>
    where
        S: Service<Request<Body>, Response = Response<RB>> + Clone + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError> + Send + 'static,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError> + Send,
        RB: http_body::Body<Data = Bytes> + Send + 'static,
        RB::Error: Into<BoxError>,
    {
        let refuse = |rejection: Rejection| {
            self.hapax.observe(&Event::Rejected {
                subject: None,
                rejection: &rejection,
            });
            Ok(self.refuse(&rejection))
        };
        let token_until = match self.check_head(&parts, &asked).await {
            Ok(token_until) => token_until,
            Err(rejection) => return refuse(rejection),
        };
        if asked.id().is_some_and(|id| is_in_hand(&parts, id)) {
            return forward_request(inner, parts, Body::streamed(body)).await;
        }
        let read = {
            let mut body = std::pin::pin!(body);
            self.read_body(&parts, &asked, &mut body).await
        };
        let buffered = match read {
            Ok(buffered) => buffered,
            Err(stopped) => return refuse(stopped.rejection),
        };
        if let Some(signature) = asked.signature.take()
            && let Err(rejection) = signature.finish(buffered.guarded_body()).await
        {
            return refuse(rejection);
        }
        let call = match self.call(&parts, asked, &buffered, token_until) {
            Ok(Some(call)) if is_in_hand(&parts, call.id) => {
                return forward_request(inner, parts, buffered.body()).await;
            }
            Ok(Some(call)) => call,
            Ok(None) => {
                answer::strip_ours(&mut parts.headers);
                self.mark_passed(&mut parts);
                return pass(inner, parts, buffered.body()).await;
            }
            Err(rejection) => match refusal {
                Some(response) => return Ok(*response),
                None => return refuse(rejection),
            },
        };
        // A caller must not be able to send Hapax's own fields to the inner service.
        answer::strip_ours(&mut parts.headers);
        self.rewrite(&mut parts, &call.key);

        // The instance that is ready moves into the work. A spare one, for failing open, would have
        // to become ready first.
        let (scope, id) = (call.scope.clone(), call.id);
        let peer = parts.extensions.get::<Peer>().copied();
        let subject = Subject { scope: &scope, id };
        let spare = self
            .policy
            .fail_open
            .then(|| (inner.clone(), parts.clone(), buffered.clone()));
        let dispatched = Arc::new(AtomicBool::new(false));
        let work = {
            let (shared, dispatched) = (self.clone(), dispatched.clone());
            move |operation: Operation, more: Extensions| {
                dispatched.store(true, Ordering::SeqCst);
                parts.extensions.extend(more);
                work::run_probed(shared, inner, parts, buffered.guarded_body(), operation)
            }
        };
        let engine = self.hapax.engine();
        let driven = match &self.in_transaction {
            Some(pool) => {
                let work = Box::new(move |operation, more| Box::pin(work(operation, more)) as _);
                pool.drive(engine.clone(), call, work).await
            }
            None => {
                let work = move |operation| work(operation, Extensions::new());
                engine.drive(call, work).await
            }
        };
        match driven {
            Ok(Reply::First { head, live }) => Ok(match live {
                Ok(mut response) => {
                    answer::mark_first(response.headers_mut(), &head);
                    response
                }
                Err(rejection) => {
                    self.hapax.observe(&Event::Rejected {
                        subject: Some(subject),
                        rejection: &rejection,
                    });
                    self.refuse(&rejection)
                }
            }),
            Ok(Reply::Joined {
                head,
                answer: Some(answer),
                live,
            }) => Ok(answer::first(&head, &answer, live.and_then(Result::ok))),
            Ok(Reply::Joined {
                head,
                answer: None,
                live,
            }) => Ok(match live {
                Some(Ok(mut response)) if Some(response.status().as_u16()) == head.status => {
                    answer::mark_first(response.headers_mut(), &head);
                    response
                }
                _ => self.refuse(&Rejection::AnswerNotKept {
                    status: head.answered(),
                    at: head.finished_at,
                }),
            }),
            Ok(Reply::Replay {
                head,
                answer,
                source,
            }) => match self.hapax.body_budget().room_for(peer, &answer.body) {
                Ok(body) => {
                    let original_request_id = head.request_id.as_ref().map(RequestId::as_str);
                    tracing::debug!(record = %id, original_request_id, "a stored answer is sent again");
                    Ok(answer::replay(&head, &answer, body, source))
                }
                Err(full) => {
                    tracing::debug!(%full, "a replay was refused");
                    let rejection = Rejection::BufferFull;
                    self.hapax.observe(&Event::Rejected {
                        subject: Some(subject),
                        rejection: &rejection,
                    });
                    Ok(self.refuse(&rejection))
                }
            },
            Err(rejection) => match spare
                .filter(|_| is_store_away(&rejection) && !dispatched.load(Ordering::SeqCst))
            {
                Some((mut spare, mut parts, buffered)) => {
                    self.mark_passed(&mut parts);
                    self.hapax.observe(&Event::FailedOpen(subject));
                    std::future::poll_fn(|cx| spare.poll_ready(cx)).await?;
                    let mut response = pass(spare, parts, buffered.body()).await?;
                    response.extensions_mut().insert(FailedOpen);
                    Ok(response)
                }
                None => Ok(self.refuse(&rejection)),
            },
        }
    }

    /// Checks what can be refused before the body is read. Returns until when a token may begin an
    /// operation, or `None` if keys are not tokens.
    pub(super) async fn check_head(
        &self,
        parts: &Parts,
        asked: &Asked,
    ) -> Result<Option<Timestamp>, Rejection> {
        let Some(key) = &asked.key else {
            return Ok(None);
        };
        let mut token_until = None;
        if self.policy.key == KeyRule::Issued {
            let secret = self
                .hapax
                .engine()
                .secret(self.policy.store_timeout)
                .await?;
            // Tokens are issued in the layer's own namespace, even for a shadow.
            let until = token::verify(&secret, &self.hapax.namespace, &asked.scope.principal, key);
            token_until = Some(until.ok_or(Rejection::TokenInvalid)?);
        }
        request::deadline(&parts.headers)?;
        Ok(token_until)
    }

    pub(super) async fn read_body<B>(
        &self,
        parts: &Parts,
        asked: &Asked,
        body: &mut B,
    ) -> Result<Arc<Buffered>, Box<Stopped>>
    where
        B: http_body::Body<Data = Bytes> + Unpin,
        B::Error: Into<BoxError>,
    {
        let Asked { scope, target, .. } = asked;
        Buffered::read(
            parts,
            scope.clone(),
            target,
            body,
            &self.policy,
            &self.pointers,
            &self.hapax.bodies,
        )
        .await
        .map(Arc::new)
    }

    /// Makes the call for the engine; `None` if the request turned out to have no key and may pass
    /// without one.
    pub(super) fn call(
        &self,
        parts: &Parts,
        asked: Asked,
        buffered: &Arc<Buffered>,
        token_until: Option<Timestamp>,
    ) -> Result<Option<Call>, Rejection> {
        let Asked {
            key,
            scope,
            principal_error,
            ..
        } = asked;
        let told = RequestData {
            principal: &scope.principal,
            headers: &parts.headers,
            found: buffered.found(),
        };
        let key = match key {
            Some(key) => key,
            None => match (told.key(&self.policy)?, principal_error) {
                (Some(_), Some(rejection)) => return Err(rejection),
                (Some(key), None) => key,
                (None, _) => return Ok(None),
            },
        };
        let within: &[&str] = &[&scope.namespace, &self.name];
        let counted = told.counted(&self.policy, within, || {
            Part::digest_of_principal(&scope.principal)
        });
        let unverified = parts.extensions.get::<Unverified>().map(|_| {
            let peer = parts
                .extensions
                .get::<Peer>()
                .map_or([0; 16], |peer| peer.to_bytes());
            let counted = told.counted(&self.policy, within, || {
                Part::digest_of([&b"peer"[..], &peer])
            });
            UnverifiedCall {
                peer,
                counted: counted.into_iter().map(Counted::of_stranger).collect(),
            }
        });
        Ok(Some(Call {
            id: RecordId::of(&scope, &key),
            key,
            policy: self.policy.clone(),
            request_id: parts.extensions.get::<RequestId>().cloned(),
            trace: Trace::of(&parts.headers),
            request: buffered.clone(),
            counted: counted.into(),
            unverified,
            wait: request::wait(&parts.headers, &self.policy),
            deadline: request::deadline(&parts.headers)?,
            token_until,
            scope,
        }))
    }

    /// Rewrites a guarded request for the inner service: the key without quotes, and no content
    /// coding that a later caller might not accept.
    fn rewrite(&self, parts: &mut Parts, key: &Key) {
        let bare = key.to_field();
        // Most callers already send it this way.
        if parts
            .headers
            .get(&self.key_field)
            .is_none_or(|sent| sent.as_bytes() != bare.as_bytes())
        {
            let bare = HeaderValue::try_from(&*bare).expect("a key is a header value");
            parts.headers.insert(&self.key_field, bare);
        }
        parts
            .headers
            .insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
}

/// Whether a layer outside this one is already running this operation: a second claim would only
/// wait for the first.
pub(super) fn is_in_hand(parts: &Parts, id: RecordId) -> bool {
    parts
        .extensions
        .get::<Operation>()
        .is_some_and(|operation| operation.record() == id)
}

fn is_store_away(rejection: &Rejection) -> bool {
    *rejection == Rejection::StoreUnavailable
}

/// The path as the client sent it. Inside a nested axum router the request's own path has lost its
/// prefix, so two nested routers would share keys.
fn original_uri(parts: &Parts) -> &http::Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return &original.0;
    }
    &parts.uri
}
