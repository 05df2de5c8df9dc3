//! The harness of tests that speak HTTP with a gateway: a [`Program`] that a test starts, kills and
//! reads, a [`Client`] that sends requests, and an [`Upstream`] that receives them and keeps its
//! own record of what happened.
//!
//! All waits are for events. A wait that takes a minute fails the test.

mod certificates;
mod client;
pub mod frames;
pub mod install;
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

/// The longest wait. Only a broken test waits this long.
pub const GUARD: Duration = Duration::from_secs(60);

/// Waits for an event that must happen soon, so that a broken test fails instead of hanging.
pub async fn in_time<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(GUARD, event)
        .await
        .unwrap_or_else(|_| panic!("{what}: not within {GUARD:?}"))
}
