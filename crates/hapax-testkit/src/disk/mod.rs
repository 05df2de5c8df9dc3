//! Disk faults for the crash harness: failing system calls, full disks, and power loss.
//!
//! - [`Strace`]: attached to a process, it makes chosen system calls fail or kill the process, and
//!   logs the calls.
//! - [`Call`]: a call in that log, with its beginning and its end.
//! - [`Recording`]: the calls as changes of files; [`Image`]: what of them is on the disk after a
//!   power loss.
//! - [`Tmpfs`]: a small private disk that a test can fill up.
//!
//! All of it works from outside, on the system calls of an unchanged process. Where the system does
//! not permit that, attaching and mounting return an error, and a test prints that it was skipped.

mod calls;
mod power;
mod recording;
mod strace;
mod tmpfs;

pub use calls::{Call, calls, most_by_one_thread};
pub use power::{Disk, Image, Losses};
pub use recording::{RECORD, Recording, Said};
pub use strace::{Strace, threads};
pub use tmpfs::{Filler, Tmpfs, run_unshared};
