//! The crash harness: the test binary started again as a child, to be killed or stopped from
//! outside.
//!
//! A test plays both parts. As the parent it spawns itself under a role and does to the child what
//! operating systems do to processes; as the child it finds its [`role`] and acts it. They talk in
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

/// Before what a child says, to tell it from what the test framework prints, on the same line even.
const MARK: &str = "hapax-crash: ";
