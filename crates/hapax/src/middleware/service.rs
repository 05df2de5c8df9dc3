//! The service: the path of one request, from top to bottom.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hapax_core::key::Key;
use hapax_core::policy::{KeyRule, KeySource, Part};
use hapax_core::rejection::Rejection;
use hapax_core::request_id::RequestId;
use hapax_core::scope::{Principal, RecordId, Scope};
use hapax_core::time::Timestamp;
use hapax_core::token;
use http::header::ACCEPT_ENCODING;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, Response};
use tower_service::Service;
use tracing::Instrument;

use super::body::Body;
use super::buffered::{Buffered, Stopped};
use super::fields::IDEMPOTENCY_STATUS;
use super::layer::Shared;
use super::peer::{Peer, Unverified};
use super::request::Ask;
use super::request_id::{REQUEST_ID, request_id, value};
use super::source::Told;
use super::{BoxError, answer, problem, request, work};
use crate::observe::{Event, Subject};
use crate::once::{Call, Counted, Operation, Reply, UnverifiedCall};

/// A service whose guarded requests have one effect per key. Made by
/// [`IdempotencyLayer`](super::IdempotencyLayer).
#[derive(Clone)]
pub struct Idempotency<S> {
    inner: S,
    shared: Arc<Shared>,
}

/// What an inner service returns when it knows that nothing happened: the request never left. The
/// key is released and the caller told to try again. Any other error is held as unknown, also one
/// that was caused by this one.
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

/// What an inner service returns when it got no answer in time: the request may still be worked on.
/// The key is held as unknown, and the first caller told so with 504. Only the error itself counts,
/// not one that was caused by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the service did not answer within {after:?} ({limit})")]
pub struct TimedOut {
    /// How long it had.
    pub after: Duration,
    /// What the limit is called, for the log: the name of a setting.
    pub limit: &'static str,
}

/// Left in the extensions of a response to a request that was let through unguarded because the
/// store was unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedOpen;

impl<S> Idempotency<S> {
    pub(super) fn new(inner: S, shared: Arc<Shared>) -> Self {
        Idempotency { inner, shared }
    }

    /// Whether this layer may have something to say about a request, as far as its head tells: its
    /// method is guarded, and it carries a key, must carry one, or belongs to a route that takes
    /// keys from somewhere else than their field. Reads nothing but the head and asks nobody, so
    /// that whoever stands outside can tell whether it is worth finding out who is asking.
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
        // The clone that is ready is the one to use.
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        let (mut parts, body) = request.into_parts();
        let id = request_id(&mut parts);
        if self.shared.policy.shadow {
            return Box::pin(under(id, self.shared.clone().watch(inner, parts, body)));
        }
        // Before the future is made: each of these is a smaller one than one that might become any
        // of them.
        match self.shared.read_head(&parts) {
            Ok(None) => {
                let is_key_unheeded = self.shared.is_key_unheeded(&parts);
                answer::strip_ours(&mut parts.headers);
                if is_key_unheeded {
                    return Box::pin(under(
                        id,
                        pass_not_guarded(inner, parts, Body::streamed(body)),
                    ));
                }
                Box::pin(under(id, pass(inner, parts, Body::streamed(body))))
            }
            Ok(Some(asked)) => Box::pin(under(
                id,
                self.shared.clone().guard(inner, parts, body, asked),
            )),
            Err(rejection) => {
                self.shared.hapax.observe(&Event::Rejected {
                    subject: None,
                    rejection: &rejection,
                });
                let refused = problem::response(&rejection, &self.shared.policy.key_field);
                Box::pin(under(id, std::future::ready(Ok(refused))))
            }
        }
    }
}

/// Answers a request under its id: every line that is logged meanwhile carries it, and so does the
/// answer, whatever the inner service or the first answer said.
async fn under<E>(
    id: RequestId,
    answer: impl Future<Output = Result<Response<Body>, E>>,
) -> Result<Response<Body>, E> {
    // Of the highest level, so that no filter takes the id from a line that it lets through.
    let span = tracing::error_span!("hapax.request", request_id = id.as_str());
    let mut response = answer.instrument(span).await?;
    response.headers_mut().insert(REQUEST_ID, value(&id));
    Ok(response)
}

/// An unguarded request: streamed through, both ways.
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
    let mut response = hand_on(inner, parts, body).await?;
    answer::strip_ours(response.headers_mut());
    Ok(response)
}

/// The same for a request that carries a key: its caller is told that the key does nothing.
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

/// A request that another layer answers for, with every word it says to that layer.
pub(super) async fn hand_on<S, RB>(
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

/// What the head of a guarded request says.
pub(super) struct Asked {
    /// The key, where the field holds it. Else the body has to be read first.
    pub(super) key: Option<Key>,
    pub(super) scope: Arc<Scope>,
    pub(super) target: String,
    /// Why it is not known who is asking. The request is refused if it has a key, which may not be
    /// known yet.
    nobody: Option<Rejection>,
}

impl Asked {
    fn id(&self) -> Option<RecordId> {
        self.key.as_ref().map(|key| RecordId::of(&self.scope, key))
    }
}

/// Fields in which clients send keys to other services: one that is sent here by mistake does
/// nothing.
const LOOKALIKES: [HeaderName; 4] = [
    HeaderName::from_static("idempotency-key"),
    HeaderName::from_static("x-idempotency-key"),
    HeaderName::from_static("idempotent-key"),
    HeaderName::from_static("x-idempotent-key"),
];

impl Shared {
    /// Whether an unguarded request carries a key that does nothing: its method is not guarded, or
    /// the key is in another field than the one that is read. Said once where a repeat could do
    /// harm.
    fn is_key_unheeded(&self, parts: &Parts) -> bool {
        let Shared {
            policy, key_field, ..
        } = self;
        // A layer outside this one guards it.
        let is_guarded_outside = parts.extensions.get::<Operation>().is_some();
        if policy.key == KeyRule::Off || policy.key_source != KeySource::Field || is_guarded_outside
        {
            return false;
        }
        if parts.headers.contains_key(key_field) {
            if !parts.method.is_safe() {
                self.say_not_guarded(&parts.method);
            }
            return true;
        }
        let lookalike = LOOKALIKES
            .into_iter()
            .find(|name| !parts.method.is_safe() && parts.headers.contains_key(name));
        if let Some(name) = &lookalike {
            self.say_other_field(name);
        }
        lookalike.is_some()
    }

    /// Whether the request is guarded, and by which key, as far as its head tells.
    pub(super) fn read_head(&self, parts: &Parts) -> Result<Option<Asked>, Rejection> {
        if !self.policy.guards(parts.method.as_str()) {
            return Ok(None);
        }
        if request::is_grpc(parts) {
            return request::grpc(parts, &self.key_field, &self.policy).map(|()| None);
        }
        let key = match request::key(parts, &self.key_field, &self.policy)? {
            Ask::No => return Ok(None),
            Ask::Key(key) => Some(key),
            Ask::Body => None,
        };
        let (principal, nobody) = match (self.principal)(parts) {
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
        Ok(Some(Asked {
            key,
            scope: Arc::new(scope),
            target,
            nobody,
        }))
    }

    async fn guard<S, B, RB>(
        self: Arc<Self>,
        inner: S,
        mut parts: Parts,
        body: B,
        asked: Asked,
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
            Ok(problem::response(&rejection, &self.policy.key_field))
        };
        let token_until = match self.check_head(&parts, &asked).await {
            Ok(token_until) => token_until,
            Err(rejection) => return refuse(rejection),
        };
        if asked.id().is_some_and(|id| is_in_hand(&parts, id)) {
            return hand_on(inner, parts, Body::streamed(body)).await;
        }
        let read = {
            let mut body = std::pin::pin!(body);
            self.read_body(&parts, &asked, &mut body).await
        };
        let buffered = match read {
            Ok(buffered) => buffered,
            Err(stopped) => return refuse(stopped.rejection),
        };
        let call = match self.call(&parts, asked, &buffered, token_until) {
            Ok(Some(call)) if is_in_hand(&parts, call.id) => {
                return hand_on(inner, parts, buffered.body()).await;
            }
            Ok(Some(call)) => call,
            Ok(None) => {
                answer::strip_ours(&mut parts.headers);
                return pass(inner, parts, buffered.body()).await;
            }
            Err(rejection) => return refuse(rejection),
        };
        // Whoever calls us cannot speak as us to what stands behind.
        answer::strip_ours(&mut parts.headers);
        self.rewrite(&mut parts, &call.key);

        // The instance that is ready goes with the work; a spare one, for failing open, would have
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
            move |operation: Operation| {
                dispatched.store(true, Ordering::SeqCst);
                work::run_probed(shared, inner, parts, buffered.guarded_body(), operation)
            }
        };
        match self.hapax.engine().drive(call, work).await {
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
                    problem::response(&rejection, &self.policy.key_field)
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
                _ => problem::response(
                    &Rejection::AnswerNotKept {
                        status: head.answered(),
                        at: head.finished_at,
                    },
                    &self.policy.key_field,
                ),
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
                    Ok(problem::response(&rejection, &self.policy.key_field))
                }
            },
            Err(rejection) => match spare
                .filter(|_| is_store_away(&rejection) && !dispatched.load(Ordering::SeqCst))
            {
                Some((mut spare, parts, buffered)) => {
                    self.hapax.observe(&Event::FailedOpen(subject));
                    std::future::poll_fn(|cx| spare.poll_ready(cx)).await?;
                    let mut response = pass(spare, parts, buffered.body()).await?;
                    response.extensions_mut().insert(FailedOpen);
                    Ok(response)
                }
                None => Ok(problem::response(&rejection, &self.policy.key_field)),
            },
        }
    }

    /// What can be refused before the body is read. Until when a token may begin something; `None`
    /// where keys are not tokens.
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
            // Of the namespace that tokens are issued in, in a shadow too.
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

    /// What the engine is asked; `None` if the request turned out to have no key and may pass
    /// without one.
    pub(super) fn call(
        &self,
        parts: &Parts,
        asked: Asked,
        buffered: &Arc<Buffered>,
        token_until: Option<Timestamp>,
    ) -> Result<Option<Call>, Rejection> {
        let Asked {
            key, scope, nobody, ..
        } = asked;
        let told = Told {
            principal: &scope.principal,
            headers: &parts.headers,
            found: buffered.found(),
        };
        let key = match key {
            Some(key) => key,
            None => match (told.key(&self.policy)?, nobody) {
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
            request: buffered.clone(),
            counted: counted.into(),
            unverified,
            wait: request::wait(&parts.headers, &self.policy),
            deadline: request::deadline(&parts.headers)?,
            token_until,
            scope,
        }))
    }

    /// What the inner service sees of a guarded request: the key bare, and no wish for a coding
    /// that a later caller may not share.
    fn rewrite(&self, parts: &mut Parts, key: &Key) {
        let bare = key.to_field();
        // Most callers send it so.
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

/// Whether a layer outside this one has this very operation in hand: a second claim would only wait
/// for the first.
pub(super) fn is_in_hand(parts: &Parts, id: RecordId) -> bool {
    parts
        .extensions
        .get::<Operation>()
        .is_some_and(|operation| operation.record() == id)
}

fn is_store_away(rejection: &Rejection) -> bool {
    *rejection == Rejection::StoreUnavailable
}

/// The path as the client sent it: inside a nested axum router the request's own has lost its
/// prefix, and two nests would share keys.
fn original_uri(parts: &Parts) -> &http::Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return &original.0;
    }
    &parts.uri
}
