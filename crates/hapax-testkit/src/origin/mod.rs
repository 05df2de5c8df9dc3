//! A service on a real socket that misbehaves as scripted and counts the requests that reached it.
//!
//! [`Origin`] implements HTTP/1.1 by hand and [`Origin2`] HTTP/2, because libraries do not send
//! invalid messages. Each request takes the next script: a list of steps. Without a script, a
//! request is read and answered with 200. Complete requests are in the [`Ledger`], which counts
//! effects independently of Hapax.
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
