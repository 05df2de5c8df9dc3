//! The tower layer: one effect per `Idempotency-Key`, for axum, hyper and plain tower.
//!
//! Ordinary use, inside the layer that authenticates:
//!
//! ```no_run
//! # #[cfg(feature = "axum")] mod example {
//! # use axum::{Router, routing::post};
//! # use hapax::{Hapax, Principal};
//! # #[derive(Clone)] struct User { id: String }
//! # async fn charge() {}
//! # fn app(hapax: Hapax) -> Router {
//! Router::new()
//!     .route("/v1/charges", post(charge))
//!     // On the routes only: a request that no route takes needs no record.
//!     .route_layer(hapax.layer().principal_from(|user: &User| Principal::named(user.id.as_str())))
//!     // .layer(authentication) comes after: what is added last runs first, and sets the `User`.
//! # }}
//! ```
//!
//! Customised: another header, a 500 that is known to come before the effect, one JSON value that
//! does not count.
//!
//! ```
//! # use std::{sync::Arc, time::Duration};
//! # use hapax::{Class, Hapax, FingerprintPolicy, KeyRule, Policy};
//! # fn layer(hapax: Hapax) -> Result<hapax::IdempotencyLayer, Box<dyn std::error::Error>> {
//! let policy = Policy {
//!     key: KeyRule::Required,
//!     key_field: "paypal-request-id".into(),
//!     classes: [(500, Class::Release)].into(),
//!     retention: Duration::from_secs(45 * 24 * 60 * 60),
//!     fingerprint: Arc::new(FingerprintPolicy::json_without(["/sent_at"])?),
//!     ..Policy::default()
//! };
//! Ok(hapax.layer().policy(policy)?.anonymous())
//! # }
//! ```
//!
//! The layer never fails upward on a guarded request: every failure is a response of the table in
//! `docs/http.md`. What the inner service returns as an error, and a panic, is held as unknown,
//! unless the error is [`NeverDispatched`]. A handler may overrule how its status is read by
//! putting a [`Class`](hapax_core::Class) into the response's extensions or by sending
//! `Hapax-Outcome` (`none` with a 4xx or 5xx: nothing happened; `done` with a 5xx: keep this
//! answer), and have its answer not kept by sending `Hapax-Keep: no`. What it sends as
//! `Hapax-Trace` goes to no caller: whoever stands outside finds it with each replay, as
//! [`Origin`], and can link the replay to the trace in which the answer was made.
//!
//! Frameworks turn errors into statuses before this layer sees them: an axum handler's `Err` is
//! often a 500, a timeout layer's answer a 408, a catch-panic layer's a 500. The handler may have
//! had its effect by then, so each of those is *unknown*: the first caller gets the response as it
//! is, and a repeat 409 `outcome-unknown`. A handler that knows that nothing happened says so, as
//! above. In the modes [`Transaction`](hapax_core::Mode::Transaction) and
//! [`Rerun`](hapax_core::Mode::Rerun) every 5xx releases the key: there a second attempt is safe.
//!
//! The host a request was sent to is not part of its scope. Services told apart by host alone want
//! a [namespace](crate::Hapax::namespace) each.

mod answer;
mod body;
mod buffered;
pub mod fields;
mod layer;
mod peer;
mod probe;
mod problem;
mod request;
pub mod request_id;
mod service;
mod shadow;
mod source;
mod work;

pub(crate) use answer::kept;
pub use answer::{CloseDelimited, FromTransaction, Origin, OriginalRequestId, is_never_kept};
pub use body::Body;
pub use layer::{IdempotencyLayer, LayerBuilder};
pub use peer::{Peer, Unverified};
pub use probe::{Probe, Probed, Probing};
pub use problem::{PAGES as PROBLEM_PAGES, PROBLEMS, problem, problem_page, rejected};
pub use service::{FailedOpen, Idempotency, NeverDispatched, TimedOut};

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
