//! A service that misbehaves as scripted, on a real socket, and counts what reached it.
//!
//! [`Origin`] speaks HTTP/1.1 by hand, [`Origin2`] HTTP/2 by hand, because no library for either
//! would send what is wrong. Each request takes the next script: a list of steps. When there are no
//! more scripts, requests are read and answered with 200. What was read whole is in the [`Ledger`],
//! which is the count of effects that Hapax has no hand in.
//!
//! ```
//! use hapax_testkit::origin::{Origin, Step};
//!
//! # async fn example() {
//! let origin = Origin::start().await;
//! origin.script([Step::Read, Step::Reset]);
//! // Send something with the key `k` to `origin.address()`, twice, and then:
//! assert_eq!(origin.ledger().count("k"), 2);
//! # }
//! ```

mod http1;
mod http2;
mod ledger;
mod scripts;

pub use http1::{Origin, Step, answer};
pub use http2::{Origin2, Step2, code};
pub use ledger::{Ledger, Seen};
pub use scripts::Scripted;
