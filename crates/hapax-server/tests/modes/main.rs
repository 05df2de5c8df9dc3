//! The modes in which the service takes part, through the real gateway: `transaction`, `fenced` and
//! `probe`.
//!
//! `joining.rs`, `fencing.rs` and `reference.rs` are services that do what each request says. The
//! first two keep their effects in Postgres and the last in memory. The tests count effects there,
//! independently of Hapax, and `ledger.rs` checks them. Services that break the rules of their mode
//! run through the same scenarios, to show that the check detects it.

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
