//! The services in `examples/` as their readers start them: with their own dependencies, their own
//! configuration, on a real Postgres, behind two gateways.
//!
//! Judged by the table of orders, which no record of Hapax can change. Without PostgreSQL, or where
//! the dependencies cannot be installed, it says which test was skipped.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod client;
mod files;
#[path = "../harness/mod.rs"]
mod harness;
mod install;
mod joining;
mod kills;
mod pages;
mod paths;
mod psql;
mod world;
