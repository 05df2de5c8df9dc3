//! Campaigns of faults against the Redis store, and against Redis over Postgres, on private servers.
//!
//! The effects are counted by the work itself, in a ledger that Hapax knows nothing of. Every
//! campaign prints in a line how many faults landed and what was counted. A run in which no fault
//! landed proves nothing, and fails.
//!
//! A plain run is a sample. `HAPAX_CAMPAIGN=full` runs the campaigns in full, which takes about
//! twelve minutes on two cores. `HAPAX_SEED` repeats the choices of a run.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod campaign;
#[path = "../crash/client.rs"]
mod client;
mod cluster;
mod gateways;
mod redis_kills;
mod sentinel;
mod service;
mod shop;
mod tier;
mod watched;
