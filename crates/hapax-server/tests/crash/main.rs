//! The gateway in a process of its own, killed at every named point and stopped under load; clients
//! that hang up at every byte; a store whose disk is full. Judged by a ledger in the upstream,
//! where nothing that is killed can reach it.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod bench;
mod hangup;
#[path = "../harness/mod.rs"]
mod harness;
mod kill;
mod round;
mod store;
mod streams;
mod term;
