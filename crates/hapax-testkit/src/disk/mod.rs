//! The disk's side of the crash harness: system calls that fail, full disks, and machines that lose power.
//!
//! - [`Strace`]: attached to a process, it makes chosen system calls fail or kill, and writes down what it saw.
//! - [`Call`]: what it wrote down, in the order in which calls began and ended.
//!
//! All of it works from outside, on the system calls of an unchanged process. Where the system does not permit that, attaching and
//! mounting say so, and a test prints that it was skipped.

mod calls;
mod strace;

pub use calls::{Call, calls};
pub use strace::{Strace, threads};
