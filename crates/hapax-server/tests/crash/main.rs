//! The gateway in its own process, killed at every named point and stopped under load; clients that
//! disconnect at every byte; a store whose disk is full. The verdict comes from a ledger in the
//! upstream, which no kill affects.

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
