//! The tower layer: one effect per `Idempotency-Key`, for axum, hyper and plain tower.
//!
//! Ordinary use, inside the layer that authenticates:
//!
//! ```no_run
//! # #[cfg(feature = "axum")] mod example {
//! # use axum::{Router, routing::post};
//! # use hapax::Hapax;
//! # #[derive(Clone)] struct User { id: String }
//! # async fn charge() {}
//! # fn app(hapax: Hapax) -> Result<Router, hapax::GuardError> {
//! let guard = hapax.guard().principal_from(|user: &User| user.id.clone()).build()?;
//! let app = Router::new()
//!     .route("/v1/charges", post(charge))
//!     // On the routes only: a request that no route takes needs no record.
//!     .route_layer(guard);
//! // `.layer(authentication)` comes after: the layer that is added last runs first, and sets the
//! // `User`.
//! # Ok(app) }}
//! ```
//!
//! Customised: another header, a 500 that is known to come before the effect, one JSON value that
//! does not count.
//!
//! ```
//! # use std::{sync::Arc, time::Duration};
//! # use hapax::{Class, Hapax, FingerprintPolicy, KeyRule, Policy};
//! # fn layer(hapax: Hapax) -> Result<hapax::Guard, Box<dyn std::error::Error>> {
//! let policy = Policy {
//!     key: KeyRule::Required,
//!     key_field: "paypal-request-id".into(),
//!     classes: [(500, Class::Release)].into(),
//!     retention: Duration::from_secs(45 * 24 * 60 * 60),
//!     fingerprint: Arc::new(FingerprintPolicy::json_without(["/sent_at"])?),
//!     ..Policy::default()
//! };
//! Ok(hapax.guard().policy(policy).anonymous().build()?)
//! # }
//! ```
//!
//! The layer never fails upward on a guarded request: every failure is a response of the table in
//! `docs/http.md`. An error of the inner service, or a panic, is held as unknown, unless the error
//! is [`NeverDispatched`]. A handler may override how its status is read by putting a
//! [`Class`](hapax_core::Class) into the response's extensions or by sending `Hapax-Outcome`
//! (`none` with a 4xx or 5xx: nothing happened; `done` with a 5xx: keep this answer). It prevents
//! its answer from being kept by sending `Hapax-Keep: no`. The field `Hapax-Trace` is sent to no
//! caller: layers outside this one find it with each replay, as [`Origin`], and can link the replay
//! to the trace in which the answer was made.
//!
//! Frameworks turn errors into statuses before this layer sees them: an axum handler's `Err` is
//! often a 500, a timeout layer's answer a 408, a catch-panic layer's a 500. The handler may have
//! had its effect by then, so each of those is *unknown*: the first caller gets the response as it
//! is, and a repeat gets 409 `outcome-unknown`. A handler that knows that nothing happened can
//! state it, as above. In the modes [`Transaction`](hapax_core::Mode::Transaction) and
//! [`Rerun`](hapax_core::Mode::Rerun) every 5xx releases the key, because there a second attempt is
//! safe.
//!
//! The host of a request is not part of its scope. Services that differ only by host need a
//! [namespace](crate::Hapax::namespace) each.
//!
//! An answer that is a stream (`text/event-stream`, newline-delimited JSON and the like, of no known
//! length) is sent as it comes and not kept: a repeat gets 409 `answer-not-kept`.
//!
//! What an extractor refuses is kept like any 4xx, though the handler never ran: a caller who
//! corrects the body sends it under a new key. The layer's own limit,
//! [`Policy::body_bytes_max`](hapax_core::Policy::body_bytes_max), is judged before axum's
//! `DefaultBodyLimit`: over it the answer is 413 `body-too-large`, and nothing was begun.
//!
//! # Spans and task-locals
//!
//! A guarded handler runs on a task of its own, so that a client that hangs up does not stop it.
//! The task runs in the tracing span of its request. It does not have the task-locals that a layer
//! outside the guard has set. Pass such a value in the request's extensions, or set the task-local
//! inside the guard, by a layer that is added before it:
//!
//! ```
//! # #[cfg(feature = "axum")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! use axum::extract::Request;
//! use axum::middleware::{Next, from_fn};
//! use axum::{Router, response::Response, routing::post};
//!
//! tokio::task_local! { static TENANT: String }
//!
//! async fn set_tenant(request: Request, next: Next) -> Response {
//!     let tenant = request.headers()["x-tenant"].to_str().unwrap_or_default().to_owned();
//!     TENANT.scope(tenant, next.run(request)).await
//! }
//!
//! # let hapax = hapax::Hapax::new(hapax::store::memory());
//! let app = Router::new()
//!     .route("/orders", post(|| async { TENANT.with(String::clone) }))
//!     .route_layer(from_fn(set_tenant)) // inside the guard
//!     .route_layer(hapax.guard().anonymous().build().unwrap());
//! # let order = axum::http::Request::post("/orders").header("x-tenant", "shop").header("idempotency-key", "k1");
//! # let order = order.body(axum::body::Body::empty()).unwrap();
//! # assert_eq!(tower::ServiceExt::oneshot(app, order).await.unwrap().status(), 200);
//! # }
//! # #[cfg(not(feature = "axum"))]
//! # fn main() {}
//! ```

mod answer;
mod body;
mod buffered;
pub mod fields;
mod guard;
#[cfg_attr(
    not(any(
        feature = "sqlx-0_9-postgres",
        feature = "sqlx-0_9-sqlite",
        feature = "sea-orm-2"
    )),
    allow(
        dead_code,
        unused_imports,
        unused_macros,
        reason = "no driver whose pool a guard can use is compiled in"
    )
)]
mod in_transaction;
mod peer;
mod probe;
mod problem;
mod request;
pub mod request_id;
mod service;
mod shadow;
mod source;
mod webhooks;
mod work;

pub(crate) use answer::kept;
pub use answer::{CloseDelimited, FromTransaction, Origin, OriginalRequestId, is_never_kept};
pub use body::Body;
pub use guard::{
    Guard, GuardBuilder, GuardError, KnowsPrincipal, PrincipalIsMissing, PrincipalIsSet,
};
#[cfg_attr(
    not(any(
        feature = "sqlx-0_9-postgres",
        feature = "sqlx-0_9-sqlite",
        feature = "sea-orm-2"
    )),
    allow(
        dead_code,
        unused_imports,
        unused_macros,
        reason = "no driver whose pool a guard can use is compiled in"
    )
)]
pub(crate) use in_transaction::{Driven, Driving, InTransaction, Work};
pub use peer::{Peer, Unverified};
pub use probe::{Probe, Probed, Probing};
pub use problem::{PAGES as PROBLEM_PAGES, PROBLEMS, problem, problem_page, rejected};
#[cfg(feature = "axum")]
pub(crate) use service::Passed;
pub use service::{FailedOpen, Idempotency, NeverDispatched, TimedOut};
pub use webhooks::{StandardWebhooks, WebhookSecretError};

pub(crate) use crate::once::BoxError;
