//! What holds Hapax to its word.
//!
//! - [`contract`]: the store contract of [`hapax_core::store`] as a suite that any store calls with
//!   [`store_contract!`].
//! - [`history`]: long random histories, replayed against two stores that must never differ.
//! - [`Faulty`]: a store around a store, which fails, hangs and lands late as scripted.
//! - [`ManualClock`]: a clock that only a test turns.
//! - [`crash`]: the test binary started again as a child, to be killed or stopped from outside; and
//!   a ledger of effects.
//! - [`disk`]: system calls that fail, full disks, and machines that lose power.
//! - [`origin`]: a service that misbehaves on the wire as scripted, and counts what reached it.
//! - [`servers`]: real servers of one's own, to be killed, promoted, cut off and come back.
//!
//! A store joins the suite with one line. The crate that does so needs `tokio` with `macros` and
//! `rt-multi-thread`.
//!
//! ```
//! use std::sync::Arc;
//!
//! use hapax_core::{Memory, Secret};
//! use hapax_testkit::{Bench, ManualClock, store_contract};
//!
//! async fn memory() -> Bench {
//!     let clock = ManualClock::new();
//!     let store = Memory::new(Arc::new(clock.clone()), Secret::from_bytes([7; 32]));
//!     Bench::by_hand(Arc::new(store), clock)
//! }
//!
//! store_contract!(memory);
//! # fn main() {}
//! ```
//!
//! A store whose clock is its own, and which all cases share, says so, and is tested in real time:
//!
//! ```
//! # use std::sync::Arc;
//! # use hapax_core::Store;
//! use hapax_testkit::Bench;
//!
//! fn bench(live: Arc<dyn Store>) -> Bench {
//!     Bench::in_real_time(live).shared()
//! }
//! ```

pub mod clock;
pub mod contract;
pub mod crash;
pub mod disk;
pub mod faulty;
pub mod history;
pub mod origin;
mod random;
pub mod servers;

pub use clock::ManualClock;
pub use contract::Bench;
pub use faulty::{Fault, Faulty, Verb};
