//! What a test says although it passes: what it counted, and that it was skipped.
//!
//! The test framework keeps the output of the printing macros back and shows only that of tests
//! that failed. These write past it.

use std::fmt::{Arguments, Display};
use std::io::Write as _;
use std::thread;

/// Prints a line, as `println!` does, also for a test that passes.
#[macro_export]
macro_rules! report {
    ($($words:tt)*) => {
        $crate::report::line(format_args!($($words)*))
    };
}

/// What [`report!`](crate::report!) calls.
pub fn line(words: Arguments<'_>) {
    // One write, so that the lines of tests that run side by side are not mixed.
    let line = format!("{words}\n");
    // Nobody may be reading.
    drop(std::io::stdout().write_all(line.as_bytes()));
}

/// Prints that the test of this thread was skipped, and why.
pub fn skipped(why: impl Display) {
    // The test framework names a test's thread after the test.
    let thread = thread::current();
    line(format_args!(
        "SKIPPED {}: {why}",
        thread.name().unwrap_or("a test")
    ));
}
