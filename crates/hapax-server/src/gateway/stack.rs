//! The path of one request, from top to bottom. The library's layer, one for each route, makes the
//! answer.

use std::borrow::Borrow;
use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use hapax::core::field;
use hapax::middleware::request_id::{self, REQUEST_ID, request_id};
use hapax::middleware::{FromTransaction, Origin, PROBLEMS, TimedOut, problem_page, rejected};
use hapax::{
    Body, Hapax, Idempotency, KeyRule, NeverDispatched, Policy, Rejection, Unverified, Would,
};
use http::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER,
};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use tower_layer::Layer;
use tower_service::Service;
use tracing::Instrument;

use super::access::{Access, Action, Line, Named};
use super::body::{BodyUnreadable, Inbound};
use super::forward::{self, Client, Sensitive};
use super::principal::{self, Directory, Principals};
use super::probe::Asking;
use super::runtime::Runtime;
use super::upstream::{Busy, Dispatched, Proxy};
use super::wire::{BodyEnd, Refusal, check_http2};
use super::{BoxError, well_known};
use crate::config::{Config, Network, PrincipalSources, Route, Timeouts, choose};
use crate::gateway::RETRY_DIALECTS;
use crate::telemetry::{Metrics, Outcome, PrincipalChanges, RouteMetrics, Traces};

const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The standard methods.
const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT",
];

/// Everything that a request passes through.
pub(crate) struct Stack {
    routes: Vec<Guarded>,
    sensitive: Arc<Sensitive>,
    well_known: Bytes,
    trusted_proxies: Vec<Network>,
    timeouts: Timeouts,
    rate_min: u64,
    metrics: Metrics,
    traces: Option<Traces>,
    principal_changes: Arc<PrincipalChanges>,
    access: Option<Arc<Access>>,
}

/// A route, and the layer that guards the proxy for it.
struct Guarded {
    route: Route,
    key_field: HeaderName,
    principal: PrincipalSources,
    principals: Principals,
    /// The principal is not verified: a client can make up any number of callers.
    is_unverified: bool,
    service: Idempotency<Proxy>,
    counts: RouteMetrics,
    named: Arc<Named>,
}

impl Borrow<Route> for Guarded {
    fn borrow(&self) -> &Route {
        &self.route
    }
}

impl Guarded {
    /// Why a request was forwarded without being guarded.
    fn why_unguarded(&self, method: &Method) -> String {
        let policy = &self.route.policy;
        let key = field::in_capitals(&policy.key_field);
        if policy.key == KeyRule::Off {
            "Keys are off on its route, so it is not guarded.".to_owned()
        } else if !policy.guards(method.as_str()) {
            format!("{method} is not guarded on its route, with or without {key}.")
        } else {
            format!("It carried no {key}, so it is not guarded.")
        }
    }
}

impl Stack {
    pub(super) fn new(
        config: &Config,
        hapax: &Hapax,
        directory: &Directory,
        proxy: &Proxy,
        runtime: &Runtime,
    ) -> Result<Stack, String> {
        let mut routes = Vec::new();
        for route in config.all_routes() {
            let mut guard = hapax.guard().name(&route.name).policy(Policy {
                retry_dialects: RETRY_DIALECTS,
                ..route.policy.clone()
            });
            if let Some(path) = &route.probe {
                guard = guard.probe(Asking::new(proxy, path, &route.policy));
            }
            let principal = config.principal_of(&route).clone();
            let principals = directory
                .find(&principal)
                .ok_or("the directory has the sources of every route")?
                .clone();
            let guard = match principals.webhooks() {
                Some(webhooks) => guard.standard_webhooks(webhooks.clone()),
                None => guard.try_principal(Principals::established),
            };
            let guard = guard
                .build()
                .map_err(|error| format!("route {}: {error}", route.name))?;
            let service = guard.layer(proxy.clone());
            let key_field = HeaderName::try_from(&*route.policy.key_field)
                .map_err(|error| error.to_string())?;
            let counts = runtime.metrics.route(&route.name);
            let is_unverified = principal.is_unverified();
            let named = Named::new(&route, &principal);
            routes.push(Guarded {
                route,
                key_field,
                principal,
                principals,
                is_unverified,
                service,
                counts,
                named,
            });
        }
        Ok(Stack {
            sensitive: Arc::new(Sensitive::new(config)),
            well_known: well_known::document(config, routes.iter().map(|guarded| &guarded.route)),
            trusted_proxies: config.trusted_proxies.clone(),
            timeouts: config.timeouts,
            rate_min: config.limits.rate_min,
            routes,
            metrics: runtime.metrics.clone(),
            traces: runtime.traces.clone(),
            principal_changes: runtime.principal_changes.clone(),
            access: Access::new(config, runtime.secret),
        })
    }

    /// Answers a request. `refusal` says why its bytes were refused, if they were; over HTTP/1,
    /// `body_end` knows whether the end of its body was seen.
    pub(crate) async fn answer(
        &self,
        request: Request<Incoming>,
        client: &Client,
        refusal: Option<Refusal>,
        body_end: Option<BodyEnd>,
    ) -> Response<Body> {
        let started = Instant::now();
        let (mut parts, body) = request.into_parts();
        // Before any check: whatever becomes of the request, its answer and its log lines have the
        // id.
        let id = request_id(&mut parts);
        let mut line = self
            .access
            .as_ref()
            .map(|access| access.begin(&mut parts, &id, started, refusal.is_none()));
        // At the error level, so that no filter that passes a line of the request removes the id
        // from it.
        let span = tracing::error_span!("request", request_id = %id);
        let arrived = Arrived {
            parts,
            body,
            body_end,
            refusal,
            started,
        };
        let mut response = self
            .find_answer(arrived, client, &mut line)
            .instrument(span)
            .await;
        response
            .headers_mut()
            .insert(REQUEST_ID, request_id::value(&id));
        match line {
            Some(line) => line.answered(response),
            None => response,
        }
    }

    async fn find_answer(
        &self,
        arrived: Arrived,
        client: &Client,
        line: &mut Option<Line>,
    ) -> Response<Body> {
        let Arrived {
            mut parts,
            body,
            body_end,
            refusal,
            started,
        } = arrived;
        let checked = match refusal {
            Some(refusal) => Err(refusal),
            None => check(&parts),
        };
        if let Err(refusal) = checked {
            // A request that cannot be read has no route; it counts for the last one, which takes
            // all remaining requests.
            self.last()
                .counts
                .request(Outcome::Refused, started.elapsed());
            return refused(refusal, parts.version);
        }
        if let Some(rest) = parts.uri.path().strip_prefix(well_known::PATH) {
            match (rest, rest.strip_prefix("/problems/")) {
                ("", _) => return self.publish(&parts.method),
                ("/problems", _) | (_, Some("")) => {
                    return published(&parts.method, PROBLEMS.into(), PAGE);
                }
                (_, Some(code)) => return publish_problem(&parts.method, code),
                (_, None) => {}
            }
        }
        if forward::is_going_in_circles(&parts.headers) {
            self.last()
                .counts
                .request(Outcome::Refused, started.elapsed());
            return circle(&parts);
        }
        let Ok(choice) = choose(&self.routes, &parts.method, parts.uri.path()) else {
            self.last()
                .counts
                .request(Outcome::Refused, started.elapsed());
            return path_ambiguous();
        };
        let guarded = choice.route;
        let may_be_guarded = guarded.service.may_guard(&parts);
        if let Some(line) = line {
            line.on(&guarded.named, may_be_guarded);
        }
        let span = self
            .traces
            .as_ref()
            .map(|traces| traces.begin(&parts, &guarded.route.name));
        // Before the gateway adds itself to the fields that proxies set.
        parts
            .extensions
            .insert(client.peer(&parts.headers, &self.trusted_proxies));
        if guarded.is_unverified {
            parts.extensions.insert(Unverified);
        }
        forward::request(&mut parts, client, &self.sensitive);
        if let Some(span) = &span {
            span.inject(&mut parts.headers);
        }
        let body = Inbound::new(body, body_end, self.sensitive.clone());
        let (body, asker) = self.watch(guarded, &parts, body);

        // Before the key is looked up: a caller refused here learns nothing about the key.
        let refusal = if may_be_guarded {
            guarded.principals.check(&mut parts, client).await
        } else {
            None
        };
        if let Some(line) = line {
            line.asked_by(Principals::established(&parts).ok());
        }
        let (refusal, foreseen) = match refusal {
            // A shadow route refuses no request.
            Some(refusal) if guarded.route.policy.shadow => {
                (None, refusal.extensions().get().cloned().map(Would::Reject))
            }
            refusal => (refusal, None),
        };
        let mut response = match refusal {
            Some(refusal) => refusal,
            None => {
                let mut service = guarded.service.clone();
                let (method, uri) = (parts.method.clone(), parts.uri.clone());
                let answered = service.call(Request::from_parts(parts, body)).await;
                answered.unwrap_or_else(|error| failed(&error, &method, uri.path(), guarded))
            }
        };
        let outcome = outcome_of(&response);
        if outcome == Outcome::First
            && let Some(asker) = asker
        {
            self.suspect(&asker);
        }
        guarded.counts.request(outcome, started.elapsed());
        if let Some(foreseen) = foreseen
            && response.extensions().get::<Would>().is_some()
        {
            // The principal is checked first, and the layer knows only that there is none.
            response.extensions_mut().insert(foreseen);
        }
        if let Some(would) = response.extensions().get::<Would>() {
            guarded.counts.shadowed(would);
        }
        if let Some(span) = span {
            let original = response.extensions().get::<Origin>();
            span.end(
                response.status(),
                outcome,
                original.and_then(|origin| origin.0.to_str().ok()),
            );
        }
        response
    }

    /// The route that takes all remaining requests.
    fn last(&self) -> &Guarded {
        self.routes
            .last()
            .expect("the unwritten route is always there")
    }

    fn publish(&self, method: &Method) -> Response<Body> {
        published(method, self.well_known.clone(), "application/json")
    }

    /// The body for the layer to read, and the hashes that detect a caller whose credential
    /// changes.
    fn watch(
        &self,
        guarded: &Guarded,
        parts: &Parts,
        mut body: Inbound,
    ) -> (Inbound, Option<Asker>) {
        if parts.version == Version::HTTP_2 {
            body = body.paced(self.timeouts.stall, self.rate_min);
        }
        let Some(key) = parts
            .headers
            .get(&guarded.key_field)
            .filter(|_| guarded.route.policy.guards(parts.method.as_str()))
        else {
            return (body, None);
        };
        let Some(presented) = principal::presented(&guarded.principal, &parts.headers) else {
            return (body, None);
        };
        let mut request = self.principal_changes.hasher();
        for part in [
            parts.method.as_str().as_bytes(),
            parts.uri.path().as_bytes(),
            key.as_bytes(),
        ] {
            request.write(part);
            request.write_usize(part.len());
        }
        let asker = Asker {
            request: Arc::new(AtomicU64::new(request.finish())),
            principal: self.principal_changes.digest(presented),
        };
        (body.hashed(request, asker.request.clone()), Some(asker))
    }

    fn suspect(&self, asker: &Asker) {
        if self
            .principal_changes
            .seen(asker.request.load(Ordering::Relaxed), asker.principal)
        {
            self.metrics.suspected_principal();
            self.principal_changes.say_once();
        }
    }
}

/// The content type of the pages about problems.
const PAGE: &str = "text/plain; charset=utf-8";

/// The page about a kind of problem.
fn publish_problem(method: &Method, code: &str) -> Response<Body> {
    let of_wire = || {
        Some(format!(
            "{code}\n\n{}\n",
            Refusal::from_word(code)?.sentence()
        ))
    };
    match problem_page(code).map(str::to_owned).or_else(of_wire) {
        Some(page) => published(method, page.into(), PAGE),
        None => problem(
            StatusCode::NOT_FOUND,
            "no-such-problem",
            "There is no problem of this name",
            "The path is that of a `type` in a problem document, and this is none that this version gives.",
        ),
    }
}

fn published(method: &Method, document: Bytes, content_type: &'static str) -> Response<Body> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        let detail =
            format!("{method} is not allowed: this path only tells what the gateway promises.");
        let mut response = problem(
            StatusCode::METHOD_NOT_ALLOWED,
            "method-not-allowed",
            "Only GET is allowed here",
            &detail,
        );
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let mut response = Response::new(Body::from(document));
    response.extensions_mut().insert(Action::Published);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("max-age=60"));
    response
}

/// A request as it arrived.
struct Arrived {
    parts: Parts,
    body: Incoming,
    body_end: Option<BodyEnd>,
    refusal: Option<Refusal>,
    started: Instant,
}

/// The request and its principal, as hashes that are valid only within this process.
struct Asker {
    request: Arc<AtomicU64>,
    principal: u64,
}

fn outcome_of(response: &Response<Body>) -> Outcome {
    let extensions = response.extensions();
    if let Some(rejection) = extensions.get::<Rejection>() {
        return rejection.into();
    }
    // A response that the upstream sent just now is not a replay, whatever its fields say.
    match extensions.get::<Dispatched>() {
        Some(Dispatched::Guarded) => Outcome::First,
        Some(Dispatched::Unguarded) => Outcome::Unguarded,
        None if extensions.get::<FromTransaction>().is_some() => Outcome::First,
        None if response.headers().contains_key(REPLAYED) => Outcome::Replayed,
        None => Outcome::UpstreamFailed,
    }
}

/// A problem that the gateway itself detects, outside of the layer.
fn problem(status: StatusCode, slug: &'static str, title: &str, detail: &str) -> Response<Body> {
    let mut response = hapax::middleware::problem(status, slug, title, detail, RETRY_DIALECTS);
    response.extensions_mut().insert(Action::Rejected(slug));
    response
}

/// Checks that need the parsed request: the spelling of its method, and for HTTP/2 the rules of
/// [`check_http2`].
fn check(parts: &Parts) -> Result<(), Refusal> {
    // Methods are case-sensitive, but some servers treat `patch` as PATCH; such a request would
    // bypass its guard.
    let method = parts.method.as_str();
    if method.bytes().any(|byte| byte.is_ascii_lowercase())
        && METHODS
            .iter()
            .any(|known| known.eq_ignore_ascii_case(method))
    {
        return Err(Refusal::MethodCase);
    }
    if parts.version == Version::HTTP_2 {
        check_http2(parts)
    } else {
        Ok(())
    }
}

/// The answer to bytes that are not a valid request.
fn refused(refusal: Refusal, version: Version) -> Response<Body> {
    let mut response = problem(
        refusal.status(),
        refusal.code(),
        "The request cannot be read as one request",
        refusal.sentence(),
    );
    response
        .extensions_mut()
        .insert(Action::Refused(refusal.code()));
    if version < Version::HTTP_2 {
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The answer to a path that services read in several ways, which would fall under different rules.
fn path_ambiguous() -> Response<Body> {
    problem(
        StatusCode::BAD_REQUEST,
        "path-ambiguous",
        "The path can be read in more than one way",
        "The rules of this gateway depend on how its path is read: send it in its plain spelling, without doubled or trailing slashes, \
         dot segments, path parameters and needless percent-encoding.",
    )
}

/// The answer to a request in a loop between gateways. Only gateways received it, so it had no
/// effect.
fn circle(parts: &Parts) -> Response<Body> {
    tracing::error!(
        method = %parts.method, path = parts.uri.path(),
        "a request has been through this gateway several times: the upstream leads back here");
    problem(
        StatusCode::LOOP_DETECTED,
        "loop-detected",
        "The request goes in circles",
        "It has been through too many gateways: the upstream of one leads back to another.",
    )
}

/// The answer to an unguarded request that got no connection within its share.
fn busy(busy: &Busy) -> Response<Body> {
    let detail = format!("The request was not sent: {busy}. Repeat it later.");
    let mut response = problem(
        StatusCode::SERVICE_UNAVAILABLE,
        "upstream-busy",
        "Too many unguarded requests are under way",
        &detail,
    );
    response
        .headers_mut()
        .insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// The answer to an unguarded request that the upstream did not answer.
fn failed(error: &BoxError, method: &Method, path: &str, guarded: &Guarded) -> Response<Body> {
    if BodyUnreadable::caused(&**error) {
        return rejected(&Rejection::BodyUnreadable, RETRY_DIALECTS);
    }
    tracing::warn!(%method, path, cause = %error, "the upstream gave no answer to an unguarded request");
    if let Some(busy) = error
        .downcast_ref::<NeverDispatched>()
        .and_then(|never| never.0.downcast_ref::<Busy>())
    {
        return self::busy(busy);
    }
    if error.is::<NeverDispatched>() {
        return problem(
            StatusCode::BAD_GATEWAY,
            "upstream-unreachable",
            "The upstream cannot be reached",
            "The request was not sent.",
        );
    }
    let why = guarded.why_unguarded(method);
    let detail = &format!(
        "The request was sent, and may have had its effect. {why} A repeat may have the effect again."
    );
    if error.is::<TimedOut>() {
        return problem(
            StatusCode::GATEWAY_TIMEOUT,
            "upstream-timeout",
            "The upstream did not answer in time",
            detail,
        );
    }
    problem(
        StatusCode::BAD_GATEWAY,
        "upstream-failed",
        "The upstream gave no answer",
        detail,
    )
}
