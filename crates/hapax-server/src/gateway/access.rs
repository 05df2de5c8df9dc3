//! The access log line of one request.
//!
//! It is written when the last byte of the answer was handed to the client's connection, or when
//! the client has disconnected.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use hapax::core::Secret;
use hapax::middleware::{FailedOpen, FromTransaction, OriginalRequestId};
use hapax::observe::Source;
use hapax::{Body, Principal, Rejection, RequestId, Would};
use http::request::Parts;
use http::{Method, Response, StatusCode, Uri};
use http_body::{Body as _, Frame, SizeHint};

use super::BoxError;
use super::upstream::{Dispatched, Exchange};
use crate::config::{Config, Lines, PrincipalSources, Route};
use crate::telemetry::{Entry, StderrWriter};

/// Hexadecimal digits of a principal's digest: enough to distinguish callers, too few to recover
/// it.
const DIGEST_DIGITS: usize = 8;

/// Writes the access log.
pub(super) struct Access {
    log: &'static StderrWriter,
    lines: Lines,
    secret: Secret,
}

/// What Hapax did with a request. Set in the extensions of a response that the gateway itself
/// gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// An attempt ran, and this is its answer.
    Ran,
    Replayed,
    /// The request waited for a running attempt, and got its answer.
    Waited,
    /// Forwarded without a guard.
    Passed,
    /// Forwarded without a guard, because the store was unavailable.
    FailedOpen,
    /// Forwarded by a shadow route.
    Shadowed(Would),
    /// Became a tunnel (WebSocket).
    Tunnelled,
    /// `/.well-known/idempotency`.
    Published,
    /// The client's bytes were not a valid request.
    Refused(&'static str),
    /// Answered by Hapax itself, with this problem.
    Rejected(&'static str),
}

/// The names of a route in log lines.
pub(super) struct Named {
    pattern: String,
    name: Arc<str>,
    /// The sources that identify its callers.
    principal: String,
}

impl Named {
    pub(super) fn new(route: &Route, principal: &PrincipalSources) -> Arc<Named> {
        Arc::new(Named {
            pattern: route.pattern.to_string(),
            name: route.name.clone(),
            principal: principal.to_string(),
        })
    }
}

/// The line of one request, written when it is dropped.
pub(super) struct Line {
    access: Arc<Access>,
    started: Instant,
    id: RequestId,
    /// `None` if the request could not be read.
    target: Option<(Method, Uri)>,
    route: Option<Arc<Named>>,
    principal: Option<Principal>,
    may_be_guarded: bool,
    exchange: Arc<Exchange>,
    answered: Option<Answered>,
    end: End,
}

struct Answered {
    status: StatusCode,
    action: Action,
    original: Option<RequestId>,
    cause: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The client did not receive all of the answer.
    ClientGone,
    /// The upstream did not send all of the answer.
    BrokeOff,
    Whole,
}

impl Access {
    /// `None` if the access log is off.
    pub(super) fn new(config: &Config, secret: Secret) -> Option<Arc<Access>> {
        let log = StderrWriter::get().filter(|_| config.access_log != Lines::Off)?;
        Some(Arc::new(Access {
            log,
            lines: config.access_log,
            secret,
        }))
    }

    /// Begins the line of a request. `is_read` is false if the parts stand for bytes that were not
    /// a request.
    pub(super) fn begin(
        self: &Arc<Access>,
        parts: &mut Parts,
        id: &RequestId,
        started: Instant,
        is_read: bool,
    ) -> Line {
        let exchange = Arc::<Exchange>::default();
        parts.extensions.insert(exchange.clone());
        Line {
            access: self.clone(),
            started,
            id: id.clone(),
            target: is_read.then(|| (parts.method.clone(), parts.uri.clone())),
            route: None,
            principal: None,
            may_be_guarded: false,
            exchange,
            answered: None,
            end: End::ClientGone,
        }
    }

    fn digest(&self, principal: &Principal) -> String {
        let Principal::Named(name) = principal else {
            return "anonymous".to_owned();
        };
        let digest = |name: &str| {
            name.strip_prefix("digest:")
                .map(|digits| digits.chars().take(DIGEST_DIGITS).collect())
        };
        // A principal that is a digest already keeps the digits that `hapax keys` shows.
        let digested = || digest(&Principal::digest(&self.secret, "", name.as_bytes()).to_string());
        digest(name).or_else(digested).unwrap_or_default()
    }
}

impl Line {
    /// Sets the route of the request, and whether the request may be guarded.
    pub(super) fn on(&mut self, route: &Arc<Named>, may_be_guarded: bool) {
        self.route = Some(route.clone());
        self.may_be_guarded = may_be_guarded;
    }

    pub(super) fn asked_by(&mut self, principal: Option<Principal>) {
        self.principal = principal;
    }

    /// The details of a rejection, besides its type.
    fn cause(&self, rejection: &Rejection) -> Option<String> {
        match rejection {
            Rejection::PrincipalMissing {
                unread: Some(unread),
                ..
            } => Some(format!(
                "looked at {}, and found only {}",
                unread.looked_at, unread.name
            )),
            Rejection::PrincipalMissing {
                flaw: Some(flaw), ..
            } => Some(flaw.to_string()),
            Rejection::PrincipalMissing { .. } => {
                Some(format!("looked for {}", self.route.as_ref()?.principal))
            }
            _ => None,
        }
    }

    /// Records the answer: the line is written when the answer has been handed over.
    pub(super) fn answered(mut self, response: Response<Body>) -> Response<Body> {
        let action = Action::from_response(&response);
        // A replay's extensions say which request its answer was made for.
        let original = response
            .extensions()
            .get::<OriginalRequestId>()
            .map(|original| original.0.clone());
        let cause = response
            .extensions()
            .get::<Rejection>()
            .and_then(|rejection| self.cause(rejection));
        self.answered = Some(Answered {
            status: response.status(),
            original,
            action,
            cause,
        });
        // The body is complete, so nothing can go wrong any more.
        if response.body().is_in_memory() || response.body().is_end_stream() {
            self.end = End::Whole;
            return response;
        }
        response.map(|body| {
            Body::streamed(Logged {
                left: body.size_hint().exact(),
                body,
                line: self,
            })
        })
    }

    /// Whether the request needs no line in the log: it was forwarded without a guard, and the
    /// upstream answered with a status below 500.
    fn is_clean_pass(&self) -> bool {
        match &self.answered {
            None => !self.may_be_guarded,
            Some(answered) => {
                let is_plain = matches!(
                    answered.action,
                    Action::Passed | Action::Tunnelled | Action::Published
                );
                is_plain && !answered.status.is_server_error() && self.end != End::BrokeOff
            }
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.access.lines == Lines::Notable && self.is_clean_pass() {
            return;
        }
        let action = self
            .answered
            .as_ref()
            .map_or("hung-up".into(), |answered| answered.action.name());
        let error = match (&self.answered, self.end) {
            (_, End::Whole) | (None, _) => None,
            (_, End::BrokeOff) => Some("upstream-broke-off"),
            (_, End::ClientGone) => Some("client-gone"),
        };
        self.access.log.add(&Entry {
            request_id: self.id.as_str(),
            method: self.target.as_ref().map(|(method, _)| method.as_str()),
            path: self.target.as_ref().map(|(_, uri)| uri.path()),
            status: self
                .answered
                .as_ref()
                .map(|answered| answered.status.as_u16()),
            action: &action,
            route: self
                .route
                .as_ref()
                .map(|route| (&*route.pattern, &*route.name)),
            principal: self
                .principal
                .as_ref()
                .map(|principal| self.access.digest(principal))
                .as_deref(),
            upstream_status: self.exchange.status(),
            upstream_took: self.exchange.took(),
            took: self.started.elapsed(),
            original: self
                .answered
                .as_ref()
                .and_then(|answered| answered.original.as_ref())
                .map(RequestId::as_str),
            cause: self
                .answered
                .as_ref()
                .and_then(|answered| answered.cause.as_deref()),
            error,
        });
    }
}

impl Action {
    fn from_response(response: &Response<Body>) -> Action {
        let extensions = response.extensions();
        if let Some(action) = extensions.get::<Action>() {
            return action.clone();
        }
        if let Some(rejection) = extensions.get::<Rejection>() {
            return Action::Rejected(rejection.row().slug);
        }
        if let Some(would) = extensions.get::<Would>() {
            return Action::Shadowed(would.clone());
        }
        if extensions.get::<FailedOpen>().is_some() {
            return Action::FailedOpen;
        }
        match (extensions.get::<Source>(), extensions.get::<Dispatched>()) {
            (Some(Source::Wait), _) => Action::Waited,
            (Some(_), _) => Action::Replayed,
            (None, Some(Dispatched::Guarded)) => Action::Ran,
            (None, _) if extensions.get::<FromTransaction>().is_some() => Action::Ran,
            (None, _) if response.status() == StatusCode::SWITCHING_PROTOCOLS => Action::Tunnelled,
            (None, _) => Action::Passed,
        }
    }

    fn name(&self) -> Cow<'static, str> {
        let word = match self {
            Action::Ran => "ran",
            Action::Replayed => "replayed",
            Action::Waited => "waited",
            Action::Passed => "passed",
            Action::FailedOpen => "failed-open",
            Action::Tunnelled => "tunnel",
            Action::Published => "published",
            Action::Shadowed(Would::Run) => "shadow:run",
            Action::Shadowed(Would::Replay) => "shadow:replay",
            Action::Shadowed(Would::Reject(rejection)) => {
                return format!("shadow:reject-{}", rejection.row().slug).into();
            }
            Action::Refused(word) => return format!("refused:{word}").into(),
            Action::Rejected(slug) => return format!("rejected:{slug}").into(),
        };
        word.into()
    }
}

/// The body of an answer that is being sent.
struct Logged {
    body: Body,
    /// Bytes still to come, if known: the library stops reading once it has them.
    left: Option<u64>,
    line: Line,
}

impl http_body::Body for Logged {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let frame = Pin::new(&mut this.body).poll_frame(cx);
        match &frame {
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                this.left = this.left.map(|left| left.saturating_sub(bytes));
                if this.left == Some(0) || this.body.is_end_stream() {
                    this.line.end = End::Whole;
                }
            }
            Poll::Ready(Some(Err(_))) => this.line.end = End::BrokeOff,
            Poll::Ready(None) => this.line.end = End::Whole,
            Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
