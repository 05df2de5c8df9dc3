//! Real servers, private to a test: each with a directory and a port of its own, and gone when the
//! test is.
//!
//! No standing service is used or disturbed. A server ends when its handle is dropped, and also
//! when the test process ends in whatever way, since it would not be told then. What is not
//! installed here is reported as `SKIPPED`, and the test has nothing to run on:
//!
//! ```no_run
//! use hapax_testkit::servers::Postgres;
//!
//! let Some(postgres) = Postgres::shared() else { return };
//! let url = postgres.database();
//! assert_eq!(postgres.psql("postgres", "SELECT 1"), "1");
//! # drop(url);
//! ```

mod directory;
mod faketime;
mod faults;
mod haproxy;
mod pgbouncer;
mod port;
mod postgres;
mod process;
mod programs;
mod standby;
mod template;

pub use faketime::{faketime, faketime_file};
pub use faults::FaultProxy;
pub use haproxy::HaProxy;
pub use pgbouncer::PgBouncer;
pub use port::Port;
pub use postgres::Postgres;

/// Says aloud that a test has not run, and why.
fn skipped(why: &str) {
    use std::io::Write;
    // The harness names a test's thread after it. Not by a macro: those write nothing for tests
    // that pass.
    let thread = std::thread::current();
    let line = format!("SKIPPED {}: {why}\n", thread.name().unwrap_or("a test"));
    drop(std::io::stderr().write_all(line.as_bytes()));
}
