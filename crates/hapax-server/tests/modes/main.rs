//! The modes that need something of the service behind, through the real gateway: `transaction`,
//! `fenced` and `probe`.
//!
//! `joining.rs`, `fencing.rs` and `reference.rs` are services that do what each request tells them.
//! The first two keep their effects in a Postgres and the last in memory. Effects are counted there, where Hapax has no hand in it, and
//! judged by `ledger.rs`. Services that break the rules of their mode are run through the same
//! scenarios, to see that the judge finds out.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod database;
mod fenced;
mod fencing;
#[path = "../harness/mod.rs"]
mod harness;
mod join;
mod joining;
mod ledger;
mod probe;
mod reference;
mod world;
