//! The modes that need something of the service behind, through the real gateway: `transaction`,
//! `fenced` and `probe`.
//!
//! `service.rs` is a service on a real socket that does what each request tells it; `joining.rs`,
//! `fencing.rs` and `reference.rs` are three of them, of which the first two keep their effects in
//! a Postgres and the last in memory. Effects are counted there, where Hapax has no hand in it, and
//! judged by `ledger.rs`. Services that break the rules of their mode are run through the same
//! scenarios, to see that the judge finds out.

mod client;
mod database;
mod fenced;
mod fencing;
mod join;
mod joining;
mod ledger;
mod probe;
mod reference;
mod service;
mod world;
