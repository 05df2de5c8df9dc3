//! What the gateway tells: logs, metrics, traces.
//!
//! Three voices, and none of them says a key, a principal or a body. [`logs`] and the [`AccessLog`]
//! go to standard error, [`Metrics`] are asked for, [`Traces`] are sent to whoever the environment
//! names. [`Timed`] measures a store, [`Suspects`] notices one request under two principals,
//! [`Unknowns`] counts what waits to be settled and what takes long.

mod access;
mod collected;
mod events;
mod exporter;
pub mod logs;
mod metrics;
mod otel;
mod outcome;
mod reloads;
mod routes;
mod suspects;
mod timed;
mod traces;
mod unknowns;

pub use access::{AccessLog, Entry};
pub(crate) use events::tell_of_lost;
pub use metrics::{Connected, Listener, Metrics};
pub use outcome::Outcome;
pub use routes::RouteMetrics;
pub use suspects::Suspects;
pub use timed::Timed;
pub use traces::{Span, Traces};
pub use unknowns::Unknowns;
