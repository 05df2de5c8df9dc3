//! The crash harness: starts the test binary again as a child, to be killed or stopped from
//! outside.
//!
//! A test is both parent and child. As the parent it spawns itself under a role, and kills, stops
//! or resumes the child. As the child it reads its [`role`] and performs it. They communicate in
//! lines.
//!
//! ```no_run
//! use hapax_testkit::crash::{self, Child};
//!
//! #[test]
//! fn a_killed_writer_leaves_whole_lines() {
//!     if crash::role().as_deref() == Some("writer") {
//!         crash::announce("about to write");
//!         crash::pause_forever();
//!     }
//!     let mut child = Child::spawn("a_killed_writer_leaves_whole_lines", "writer", &[]);
//!     child.wait_for("about to write");
//!     child.kill();
//! }
//! ```

mod child;
mod ledger;
mod player;

pub use child::Child;
pub use ledger::Ledger;
pub use player::{announce, hear, pause_forever, role};

/// The environment variable that makes a process a child.
const ROLE: &str = "HAPAX_CRASH_ROLE";

/// The prefix of a child's lines. It separates them from the output of the test framework, even on
/// the same line.
const MARK: &str = "hapax-crash: ";
