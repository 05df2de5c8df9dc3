//! A real service whose disk fails, fills up, or loses data that was never made durable. The
//! verdict comes from a ledger outside Hapax.
//!
//! The faults come from outside, at the system calls of an unchanged process. Nothing here knows
//! how the store lays out its file.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod book;
mod faults;
mod full;
mod kills;
mod power;
mod process;
mod service;
