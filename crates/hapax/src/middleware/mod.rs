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
//!     .layer(hapax.layer().principal_from(|user: &User| Principal::named(user.id.as_str())))
//!     // .layer(authentication) comes after: what is added last runs first, and sets the `User`.
//! # }}
//! ```
//!
//! Customised: another header, every 5xx held, spelling of JSON ignored.
//!
//! ```
//! # use std::{sync::Arc, time::Duration};
//! # use hapax::{Hapax, FingerprintPolicy, KeyRule, Policy};
//! # fn layer(hapax: Hapax) -> Result<hapax::IdempotencyLayer, Box<dyn std::error::Error>> {
//! let policy = Policy {
//!     key: KeyRule::Required,
//!     key_field: "paypal-request-id".into(),
//!     strict: true,
//!     retention: Duration::from_secs(45 * 24 * 60 * 60),
//!     fingerprint: Arc::new(FingerprintPolicy::json_without(["/sent_at"])?),
//!     ..Policy::default()
//! };
//! Ok(hapax.layer().policy(policy)?.anonymous())
//! # }
//! ```
//!
//! The layer never fails upward on a guarded request: every failure is a response of the table in `docs/http.md`. What the inner
//! service returns as an error, and a panic, is held as unknown, unless the error is [`NeverDispatched`]. A handler may overrule how
//! its status is read by putting a [`Class`](hapax_core::Class) into the response's extensions, and have its answer not kept by
//! sending `Hapax-Keep: no`.

mod answer;
mod body;
mod headers;
mod layer;
mod problem;
mod request;
mod service;

pub use body::Body;
pub use layer::{IdempotencyLayer, LayerBuilder};
pub use service::{Idempotency, NeverDispatched};

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
