//! Logs, metrics and traces of the gateway.
//!
//! None of them contains a key, a principal or a body. [`logs`] go to standard error through the
//! [`StderrWriter`], [`Metrics`] are scraped, and [`Traces`] are sent to the collector that the
//! environment names. [`Timed`] measures a store, [`PrincipalChanges`] notices one request under
//! two principals, and [`Unknowns`] counts unknown outcomes and finds the oldest running attempt.

mod collected;
mod events;
mod exporter;
pub mod logs;
mod metrics;
mod otel;
mod outcome;
mod principal_changes;
mod publications;
mod relays;
mod reloads;
mod routes;
mod stderr;
mod timed;
mod traces;
mod unknowns;

pub(crate) use events::tell_of_lost;
pub use metrics::{Connected, Listener, Metrics};
pub use outcome::Outcome;
pub use principal_changes::PrincipalChanges;
pub(crate) use publications::Traced;
pub(crate) use relays::{Backlog, RelayStats, encode_relays};
pub use routes::RouteMetrics;
pub use stderr::{Entry, StderrWriter};
pub use timed::Timed;
pub use traces::{Span, Traces};
pub use unknowns::Unknowns;
