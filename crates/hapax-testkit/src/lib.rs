//! Test tools beside the contract of `hapax-contract`.
//!
//! - [`history`]: long random histories, replayed against two stores that must never differ.
//! - [`Faulty`]: wraps a store and lets its calls fail, hang or happen late, as scripted.
//! - [`crash`]: the test binary started again as a child, to be killed or stopped from outside; and
//!   a ledger of effects.
//! - [`disk`]: system calls that fail, full disks, and machines that lose power.
//! - `harness`, a feature: a program, a client and a service for tests that speak HTTP.
//! - [`origin`]: a service that misbehaves on the wire as scripted, and counts the requests.
//! - [`servers`]: private real servers, which a test can kill, promote, cut off and restart.

pub mod crash;
pub mod disk;
pub mod faulty;
#[cfg(feature = "harness")]
#[allow(missing_docs, reason = "for the tests of this workspace alone")]
pub mod harness;
pub mod history;
pub mod origin;
pub mod random;
pub mod report;
pub mod servers;

pub use faulty::{Fault, Faulty, Verb};
pub use report::skipped;
// Histories advance it.
pub use hapax_contract::ManualClock;
