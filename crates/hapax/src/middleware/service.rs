//! The service: the path of one request, from top to bottom.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use hapax_core::key::Key;
use hapax_core::outcome::{Class, Outcome, classify};
use hapax_core::policy::{KeyRule, Policy};
use hapax_core::rejection::Rejection;
use hapax_core::scope::{RecordId, Scope};
use hapax_core::time::Timestamp;
use hapax_core::token;
use http::header::ACCEPT_ENCODING;
use http::request::Parts;
use http::{HeaderValue, Request, Response};
use tower_service::Service;

use super::answer::{self, Collected};
use super::body::{Body, Buffered};
use super::layer::Shared;
use super::{BoxError, headers, problem, request};
use crate::observe::{Event, Subject};
use crate::once::{Call, Ended, Operation, Reply, lost};

/// A service whose guarded requests have one effect per key. Made by [`IdempotencyLayer`](super::IdempotencyLayer).
#[derive(Clone)]
pub struct Idempotency<S> {
    inner: S,
    shared: Arc<Shared>,
}

/// What an inner service returns when it knows that nothing happened: the request never left. The key is released and the caller
/// told to try again. Any other error is held as unknown, also one that was caused by this one.
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

impl<S> Idempotency<S> {
    pub(super) fn new(inner: S, shared: Arc<Shared>) -> Self {
        Idempotency { inner, shared }
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
        // The clone that is ready is the one to use.
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        let (mut parts, body) = request.into_parts();
        // Before the future is made: each of these is a smaller one than one that might become any of them.
        match self.shared.read_head(&parts) {
            Ok(None) => {
                answer::strip_ours(&mut parts.headers);
                Box::pin(pass(inner, parts, Body::streamed(body)))
            }
            Ok(Some(asked)) => Box::pin(self.shared.clone().guard(inner, parts, body, asked)),
            Err(rejection) => {
                self.shared.hapax.observe(&Event::Rejected { subject: None, rejection: &rejection });
                Box::pin(std::future::ready(Ok(problem::response(&rejection))))
            }
        }
    }
}

/// An unguarded request: streamed through, both ways.
async fn pass<S, RB>(inner: S, parts: Parts, body: Body) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<RB>>,
    RB: http_body::Body<Data = Bytes> + Send + 'static,
    RB::Error: Into<BoxError>,
{
    let mut response = hand_on(inner, parts, body).await?;
    answer::strip_ours(response.headers_mut());
    Ok(response)
}

/// A request that another layer answers for, with every word it says to that layer.
async fn hand_on<S, RB>(mut inner: S, parts: Parts, body: Body) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<RB>>,
    RB: http_body::Body<Data = Bytes> + Send + 'static,
    RB::Error: Into<BoxError>,
{
    Ok(inner.call(Request::from_parts(parts, body)).await?.map(Body::streamed))
}

/// What the head of a guarded request says.
struct Asked {
    key: Key,
    scope: Arc<Scope>,
    target: String,
}

impl Asked {
    fn id(&self) -> RecordId {
        RecordId::of(&self.scope, &self.key)
    }
}

impl Shared {
    /// Whether the request is guarded, and by which key.
    fn read_head(&self, parts: &Parts) -> Result<Option<Asked>, Rejection> {
        if !self.policy.guards(parts.method.as_str()) {
            return Ok(None);
        }
        let Some(key) = request::key(parts, &self.key_field, &self.policy)? else { return Ok(None) };
        let principal = (self.principal)(parts).ok_or(Rejection::PrincipalMissing)?;
        let uri = original_uri(parts);
        let scope = Scope {
            namespace: self.hapax.namespace.clone(),
            principal,
            method: parts.method.as_str().into(),
            path: uri.path().into(),
        };
        let target = uri.path_and_query().map_or_else(|| uri.path().to_owned(), ToString::to_string);
        Ok(Some(Asked { key, scope: Arc::new(scope), target }))
    }

    async fn guard<S, B, RB>(self: Arc<Self>, inner: S, mut parts: Parts, body: B, asked: Asked) -> Result<Response<Body>, S::Error>
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
            self.hapax.observe(&Event::Rejected { subject: None, rejection: &rejection });
            Ok(problem::response(&rejection))
        };
        let token_until = match self.check_token(&asked).await {
            Ok(token_until) => token_until,
            Err(rejection) => return refuse(rejection),
        };
        // A layer outside this one has this very operation in hand: a second claim would only wait for the first.
        if parts.extensions.get::<Operation>().is_some_and(|operation| operation.record() == asked.id()) {
            return hand_on(inner, parts, Body::streamed(body)).await;
        }
        let (call, buffered) = match self.prepare(&parts, body, asked, token_until).await {
            Ok(prepared) => prepared,
            Err(rejection) => return refuse(rejection),
        };
        // Whoever calls us cannot speak as us to what stands behind.
        answer::strip_ours(&mut parts.headers);
        self.rewrite(&mut parts, &call.key);

        // The instance that is ready goes with the work; a spare one, for failing open, would have to become ready first.
        let (scope, id) = (call.scope.clone(), call.id);
        let subject = Subject { scope: &scope, id };
        let spare = self.policy.fail_open.then(|| (inner.clone(), parts.clone(), buffered.clone()));
        let dispatched = Arc::new(AtomicBool::new(false));
        let work = {
            let (policy, dispatched) = (self.policy.clone(), dispatched.clone());
            move |operation: Operation| {
                dispatched.store(true, Ordering::SeqCst);
                run(inner, parts, buffered.body(), operation, policy)
            }
        };
        match self.hapax.engine().drive(call, work).await {
            Ok(Reply::First { head, live }) => Ok(match live {
                Ok(mut response) => {
                    answer::mark_first(response.headers_mut(), &head);
                    response
                }
                Err(rejection) => {
                    self.hapax.observe(&Event::Rejected { subject: Some(subject), rejection: &rejection });
                    problem::response(&rejection)
                }
            }),
            Ok(Reply::Replay { head, answer }) => Ok(answer::replay(&head, &answer)),
            Err(rejection) => match spare.filter(|_| is_store_away(&rejection) && !dispatched.load(Ordering::SeqCst)) {
                Some((mut spare, parts, buffered)) => {
                    self.hapax.observe(&Event::FailedOpen(subject));
                    std::future::poll_fn(|cx| spare.poll_ready(cx)).await?;
                    pass(spare, parts, buffered.body()).await
                }
                None => Ok(problem::response(&rejection)),
            },
        }
    }

    /// Until when the key may begin something, where the route takes only keys that this server issued.
    async fn check_token(&self, asked: &Asked) -> Result<Option<Timestamp>, Rejection> {
        if self.policy.key != KeyRule::Issued {
            return Ok(None);
        }
        let secret = self.hapax.engine().secret(self.policy.store_timeout).await?;
        let until = token::verify(&secret, &asked.scope.namespace, &asked.scope.principal, &asked.key);
        until.map(Some).ok_or(Rejection::TokenInvalid)
    }

    /// Everything else that can be refused before anything is asked of the store's records.
    async fn prepare<B>(
        &self,
        parts: &Parts,
        body: B,
        asked: Asked,
        token_until: Option<Timestamp>,
    ) -> Result<(Call, Arc<Buffered>), Rejection>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Send,
    {
        let id = asked.id();
        let Asked { key, scope, target } = asked;
        let deadline = request::deadline(&parts.headers)?;
        let buffered = Arc::new(Buffered::read(parts, scope.clone(), &target, body, &self.policy).await?);
        let wait = request::wait(&parts.headers, &self.policy);
        let call = Call { id, scope, key, policy: self.policy.clone(), request: buffered.clone(), wait, deadline, token_until };
        Ok((call, buffered))
    }

    /// What the inner service sees of a guarded request: the key bare, and no wish for a coding that a later caller may not share.
    fn rewrite(&self, parts: &mut Parts, key: &Key) {
        let bare = key.to_field();
        // Most callers send it so.
        if parts.headers.get(&self.key_field).is_none_or(|sent| sent.as_bytes() != bare.as_bytes()) {
            let bare = HeaderValue::try_from(&*bare).expect("a key is a header value");
            parts.headers.insert(&self.key_field, bare);
        }
        parts.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
}

fn is_store_away(rejection: &Rejection) -> bool {
    *rejection == Rejection::StoreUnavailable
}

/// The work of an operation: calls the inner service and reads its answer as an outcome.
async fn run<S, RB>(
    mut inner: S,
    mut parts: Parts,
    body: Body,
    operation: Operation,
    policy: Arc<Policy>,
) -> Ended<Result<Response<Body>, Rejection>>
where
    S: Service<Request<Body>, Response = Response<RB>>,
    S::Error: Into<BoxError>,
    RB: http_body::Body<Data = Bytes> + Send + 'static,
    RB::Error: Into<BoxError>,
{
    parts.headers.insert(headers::FENCE, HeaderValue::from(operation.fence().as_u64()));
    parts
        .headers
        .insert(headers::OPERATION, HeaderValue::try_from(operation.id().as_str()).expect("an operation id is a header value"));
    parts.extensions.insert(operation);

    let response = match inner.call(Request::from_parts(parts, body)).await {
        Ok(response) => response,
        Err(error) => return failed(&error.into(), &policy),
    };
    let class = response.extensions().get::<Class>().copied().unwrap_or_else(|| classify(response.status().as_u16(), &policy));
    let status = response.status().as_u16();
    match class {
        Class::Keep => kept(response, &policy).await,
        Class::Release => Ended { outcome: Outcome::Released { status: Some(status) }, live: Ok(response.map(Body::streamed)) },
        Class::Unknown => Ended { outcome: Outcome::Lost, live: Err(lost(&policy, status == 504)) },
    }
}

/// The service returned no response at all.
fn failed(error: &BoxError, policy: &Policy) -> Ended<Result<Response<Body>, Rejection>> {
    // Only if it is the error itself: one that caused it may come from a second step, after a first one had its effect.
    if error.is::<NeverDispatched>() {
        return Ended { outcome: Outcome::Released { status: None }, live: Err(Rejection::UpstreamUnreachable) };
    }
    tracing::error!(%error, "the service failed on a guarded request; its outcome is unknown");
    Ended { outcome: Outcome::Lost, live: Err(lost(policy, false)) }
}

/// A definitive response: read whole and kept, or passed on with a mark that it was not.
async fn kept<RB>(response: Response<RB>, policy: &Policy) -> Ended<Result<Response<Body>, Rejection>>
where
    RB: http_body::Body<Data = Bytes> + Send + 'static,
    RB::Error: Into<BoxError>,
{
    let (mut parts, body) = response.into_parts();
    let status = parts.status.as_u16();
    let ended =
        |parts, answer, body| Ended { outcome: Outcome::Kept { status, answer }, live: Ok(Response::from_parts(parts, body)) };
    if !policy.keep_answers || !answer::wants_keeping(&parts.headers) {
        return ended(parts, None, Body::streamed(body));
    }
    match answer::collect(Box::pin(body), policy.answer_bytes_max).await {
        Ok(Collected::Whole { body, trailers }) => {
            answer::mend_length(&mut parts.headers, &body);
            let answer = answer::keep(parts.status, &parts.headers, &body, trailers.as_ref(), policy);
            ended(parts, Some(answer), Body::whole(body, trailers))
        }
        Ok(Collected::Over(body)) => ended(parts, None, body),
        Err(error) => {
            tracing::error!(%error, "an answer broke off; its outcome is unknown");
            Ended { outcome: Outcome::Lost, live: Err(lost(policy, false)) }
        }
    }
}

/// The path as the client sent it: inside a nested axum router the request's own has lost its prefix, and two nests would share keys.
fn original_uri(parts: &Parts) -> &http::Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return &original.0;
    }
    &parts.uri
}
