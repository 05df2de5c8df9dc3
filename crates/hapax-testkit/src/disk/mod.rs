//! The disk's side of the crash harness: system calls that fail, full disks, and machines that lose
//! power.
//!
//! - [`Strace`]: attached to a process, it makes chosen system calls fail or kill, and writes down
//!   what it saw.
//! - [`Call`]: what it wrote down, in the order in which calls began and ended.
//! - [`Recording`]: the same as changes of files; [`Image`]: what of them is on the disk after the
//!   power went.
//! - [`Tmpfs`]: a small disk of one's own, to be filled up.
//!
//! All of it works from outside, on the system calls of an unchanged process. Where the system does
//! not permit that, attaching and mounting say so, and a test prints that it was skipped.

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
