//! What holds Hapax to its word, beside the contract of `hapax-contract`.
//!
//! - [`history`]: long random histories, replayed against two stores that must never differ.
//! - [`Faulty`]: a store around a store, which fails, hangs and lands late as scripted.
//! - [`crash`]: the test binary started again as a child, to be killed or stopped from outside; and
//!   a ledger of effects.
//! - [`disk`]: system calls that fail, full disks, and machines that lose power.
//! - `harness`, a feature: a program, a client and a service for tests that speak HTTP.
//! - [`origin`]: a service that misbehaves on the wire as scripted, and counts what reached it.
//! - [`servers`]: real servers of one's own, to be killed, promoted, cut off and come back.

pub mod crash;
pub mod disk;
pub mod faulty;
#[cfg(feature = "harness")]
#[allow(missing_docs, reason = "for the tests of this workspace alone")]
pub mod harness;
pub mod history;
pub mod origin;
pub mod random;
pub mod servers;

pub use faulty::{Fault, Faulty, Verb};
// Histories turn it.
pub use hapax_contract::ManualClock;
