//! Several gateways on one Postgres: killed at every named point behind a load balancer that sends
//! again what failed, stopped past their leases, with clocks that are wrong, with ten thousand who
//! wait, and without their database.
//!
//! Judged by a ledger in the upstream, where nothing that is killed can reach it. Each test says
//! how many of its faults landed, and fails if none did. Without PostgreSQL, HAProxy or libfaketime
//! here, it says which test was skipped.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod caller;
mod client;
mod clocks;
mod database;
mod hunter;
mod kill;
mod node;
mod outage;
mod point;
mod program;
#[path = "../crash/random.rs"]
mod random;
mod sluice;
#[path = "../crash/sockets.rs"]
#[expect(
    dead_code,
    reason = "shared with the crashes of a single gateway, which need more of it"
)]
mod sockets;
mod upstream;
mod waiters;
mod zombies;
