//! The harness of tests that speak HTTP with a gateway: a [`Program`] to start, kill and listen to,
//! a [`Client`] that asks, and an [`Upstream`] that is asked and keeps its own account of what
//! happened.
//!
//! Everything here waits for events. A wait that takes a minute fails the test.

mod certificates;
mod client;
pub mod frames;
mod program;
mod raw;
pub mod sockets;
mod upstream;

use std::time::Duration;

pub use certificates::{Authority, Certified};
pub use client::{Answer, Client, ClientRequest, Connection, With, body, get, post};
pub use program::{Program, Signal, exchange, send};
pub use raw::{RawAnswer, send_raw};
pub use upstream::{
    Arrived, Asked, Ends, Gate, IntoReply, Part, Reply, Service, Serving, Upstream, broken_off,
    in_parts, whole, with,
};

/// Only a broken test waits so long.
pub const GUARD: Duration = Duration::from_secs(60);

/// Waits for what must happen soon, so that a test of something broken fails instead of hanging.
pub async fn in_time<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(GUARD, event)
        .await
        .unwrap_or_else(|_| panic!("{what}: not within {GUARD:?}"))
}
