//! The path of one request, from top to bottom. What makes an answer of it is the library's own layer, one for each route.

use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use hapax::middleware::{Origin, problem};
use hapax::{Body, Hapax, Idempotency, NeverDispatched, Rejection};
use http::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use tower_layer::Layer;
use tower_service::Service;

use super::body::Inbound;
use super::forward::{self, Client, Sensitive};
use super::principal::Source;
use super::upstream::{Dispatched, Proxy, TimedOut};
use super::wire::{Refusal, check_http2};
use super::{BoxError, well_known};
use crate::config::{Config, PrincipalSource, Route, Timeouts};
use crate::telemetry::{Metrics, Outcome, Suspects, Traces};

const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The methods that everybody knows.
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"];

/// Everything that a request passes.
pub(crate) struct Stack {
    routes: Vec<Guarded>,
    sensitive: Sensitive,
    well_known: Bytes,
    principal: PrincipalSource,
    timeouts: Timeouts,
    rate_min: u64,
    metrics: Metrics,
    traces: Option<Traces>,
    suspects: Suspects,
}

/// A route, and the layer that keeps its promise around the proxy.
struct Guarded {
    route: Route,
    key_field: HeaderName,
    service: Idempotency<Proxy>,
}

impl Stack {
    pub(crate) fn new(
        config: &Config,
        hapax: &Hapax,
        principal: &Source,
        proxy: &Proxy,
        metrics: Metrics,
        traces: Option<Traces>,
    ) -> Result<Stack, String> {
        let mut routes = Vec::new();
        for route in config.all_routes() {
            let layer = hapax.layer().policy(route.policy.clone()).map_err(|error| format!("route {}: {error}", route.name))?;
            let principal = principal.clone();
            let service = layer.principal(move |parts| principal.of(parts)).layer(proxy.clone());
            let key_field = HeaderName::try_from(&*route.policy.key_field).map_err(|error| error.to_string())?;
            routes.push(Guarded { route, key_field, service });
        }
        Ok(Stack {
            sensitive: Sensitive::new(sensitive_fields(config)),
            well_known: well_known::document(config, routes.iter().map(|guarded| &guarded.route)),
            principal: config.principal.clone(),
            timeouts: config.timeouts,
            rate_min: config.limits.rate_min,
            routes,
            metrics,
            traces,
            suspects: Suspects::default(),
        })
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Answers a request. `refusal` is what the bytes it came in were found to be.
    pub(crate) async fn answer(&self, request: Request<Incoming>, client: &Client, refusal: Option<Refusal>) -> Response<Body> {
        let started = Instant::now();
        let (mut parts, body) = request.into_parts();
        let checked = match refusal {
            Some(refusal) => Err(refusal),
            None => check(&parts),
        };
        if let Err(refusal) = checked {
            // What cannot be read is on no route; it counts for the last, which takes whatever is left.
            self.metrics.requests(self.routes.len() - 1, Outcome::Refused, started.elapsed());
            return refused(refusal, parts.version);
        }
        if parts.uri.path() == well_known::PATH {
            return self.publish(&parts.method);
        }
        // The last route takes whatever is left.
        let index = self
            .routes
            .iter()
            .position(|guarded| guarded.route.matches(&parts.method, parts.uri.path()))
            .unwrap_or(self.routes.len() - 1);
        let guarded = &self.routes[index];
        let span = self.traces.as_ref().map(|traces| traces.begin(&parts, &guarded.route.name));
        forward::request(&mut parts, client, &self.sensitive);
        if let Some(span) = &span {
            span.inject(&mut parts.headers);
        }
        let (body, asker) = self.watch(guarded, &parts, body);

        let mut service = guarded.service.clone();
        let response = service.call(Request::from_parts(parts, body)).await.unwrap_or_else(|error| failed(&error));
        let outcome = outcome_of(&response);
        if outcome == Outcome::First
            && let Some(asker) = asker
        {
            self.suspect(&asker);
        }
        self.metrics.requests(index, outcome, started.elapsed());
        if let Some(span) = span {
            let original = response.extensions().get::<Origin>();
            span.end(response.status(), outcome, original.and_then(|origin| origin.0.to_str().ok()));
        }
        response
    }

    fn publish(&self, method: &Method) -> Response<Body> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            let mut response =
                problem(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "Only GET is allowed here", well_known::PATH);
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        let mut response = Response::new(Body::from(self.well_known.clone()));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("max-age=60"));
        response
    }

    /// The body as the layer reads it, and what there is to remember of who sent it.
    fn watch(&self, guarded: &Guarded, parts: &Parts, body: Incoming) -> (Inbound, Option<Asker>) {
        let mut body = Inbound::new(body);
        if parts.version == Version::HTTP_2 {
            body = body.paced(self.timeouts.stall, self.rate_min);
        }
        let PrincipalSource::Digest(field) = &self.principal else { return (body, None) };
        let Some(key) = parts.headers.get(&guarded.key_field).filter(|_| guarded.route.policy.guards(parts.method.as_str())) else {
            return (body, None);
        };
        let mut request = self.suspects.hasher();
        for part in [parts.method.as_str().as_bytes(), parts.uri.path().as_bytes(), key.as_bytes()] {
            request.write(part);
            request.write_usize(part.len());
        }
        let asker = Asker {
            request: Arc::new(AtomicU64::new(request.finish())),
            principal: self.suspects.digest(parts.headers.get(field).map(HeaderValue::as_bytes)),
        };
        (body.hashed(request, asker.request.clone()), Some(asker))
    }

    fn suspect(&self, asker: &Asker) {
        if self.suspects.seen(asker.request.load(Ordering::Relaxed), asker.principal) {
            self.metrics.suspected_principal();
        }
    }
}

/// Who asked for what, as hashes that mean nothing outside this process.
struct Asker {
    request: Arc<AtomicU64>,
    principal: u64,
}

/// What metrics call the routes, in their order.
pub(super) fn route_names(config: &Config) -> Vec<Arc<str>> {
    config.all_routes().into_iter().map(|route| route.name).collect()
}

/// Fields that a client must not be able to take off its request, nor to imitate.
pub(super) fn sensitive_fields(config: &Config) -> Vec<String> {
    let mut fields: Vec<String> = config.routes.iter().map(|route| route.policy.key_field.to_string()).collect();
    if let PrincipalSource::Digest(field) = &config.principal {
        fields.push(field.to_string());
    }
    fields
}

fn outcome_of(response: &Response<Body>) -> Outcome {
    let extensions = response.extensions();
    if let Some(rejection) = extensions.get::<Rejection>() {
        return rejection.into();
    }
    if response.headers().contains_key(REPLAYED) {
        return Outcome::Replayed;
    }
    match extensions.get::<Dispatched>() {
        Some(Dispatched::Guarded) => Outcome::First,
        Some(Dispatched::Unguarded) => Outcome::Unguarded,
        None => Outcome::UpstreamFailed,
    }
}

/// What is left to check of a request that could be read.
fn check(parts: &Parts) -> Result<(), Refusal> {
    // Methods are compared as they are spelled, but some servers run `patch` as PATCH: it would walk around its guard.
    let method = parts.method.as_str();
    if method.bytes().any(|byte| byte.is_ascii_lowercase()) && METHODS.iter().any(|known| known.eq_ignore_ascii_case(method)) {
        return Err(Refusal::MethodCase);
    }
    if parts.version == Version::HTTP_2 { check_http2(parts) } else { Ok(()) }
}

/// What was no request.
fn refused(refusal: Refusal, version: Version) -> Response<Body> {
    let mut response = problem(refusal.status(), refusal.word(), "The request cannot be read as one request", refusal.sentence());
    if version < Version::HTTP_2 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// An unguarded request that the upstream gave no answer to.
fn failed(error: &BoxError) -> Response<Body> {
    tracing::warn!(%error, "the upstream gave no answer to an unguarded request");
    if error.is::<NeverDispatched>() {
        return problem(
            StatusCode::BAD_GATEWAY,
            "upstream-unreachable",
            "The upstream cannot be reached",
            "The request was not sent.",
        );
    }
    let detail = "The request was sent, and may have had its effect. It carried no key, so that it cannot be repeated safely.";
    if error.is::<TimedOut>() {
        return problem(StatusCode::GATEWAY_TIMEOUT, "upstream-timeout", "The upstream did not answer in time", detail);
    }
    problem(StatusCode::BAD_GATEWAY, "upstream-failed", "The upstream gave no answer", detail)
}
