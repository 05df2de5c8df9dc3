//! The services in `examples/` as their readers start them: with their dependencies and
//! configuration, on a real Postgres, behind two gateways.
//!
//! The verdict comes from the table of orders, which no record of Hapax can change, and from the
//! messages about them. If PostgreSQL
//! is missing or the dependencies cannot be installed, a test prints that it was skipped.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod client;
mod debezium;
mod files;
#[path = "../harness/mod.rs"]
mod harness;
mod install;
mod joining;
mod kills;
mod pages;
mod paths;
mod psql;
mod relay;
mod sqs;
mod stock;
mod two_calls;
mod world;
