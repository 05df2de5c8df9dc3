//! The rules of Hapax, as pure code.
//!
//! This crate *decides* and never *does*: it has no I/O, no clock, no randomness and no runtime.
//! Time is an argument, storage is a trait with a written contract, and every rule is a function
//! from values to a value.
//!
//! Read in this order:
//!
//! 1. [`decide`](mod@decide): what to do with a request, given its record. It is the heart of Hapax
//!    in one page.
//! 2. [`step`]: what a call does next, from its first question to the store until its end is
//!    written.
//! 3. [`guard`]: the four conditions under which a record may change, and what it then becomes.
//! 4. [`record`], [`policy`], [`outcome`], [`rejection`]: the types that those modules use.
//! 5. [`store`]: the contract every store keeps, and [`memory`], the store that shows it in the
//!    fewest lines.
//! 6. [`audit`]: what operators did by hand, who did it and why; [`transfer`]: how the content of a
//!    store moves into another.
//! 7. [`key`], [`scope`], [`operation`], [`fingerprint`]: what identifies a request, and what
//!    decides whether two requests are the same.
//! 8. [`flow`]: messages that leave after an effect: their ids, and what happens to one that fails.

pub mod answer;
pub mod audit;
pub mod decide;
mod digest;
pub mod field;
pub mod fingerprint;
pub mod flow;
mod forward;
pub mod guard;
pub mod key;
pub mod memory;
pub mod operation;
pub mod outcome;
#[doc(hidden)]
pub mod planted;
pub mod policy;
pub mod record;
pub mod rejection;
pub mod request_id;
pub mod scope;
pub mod step;
pub mod store;
pub mod time;
pub mod token;
pub mod transfer;

pub use answer::Answer;
pub use decide::{Ask, Decision, decide};
pub use fingerprint::{Fingerprint, FingerprintPolicy, Fingerprinter};
pub use key::{Key, Pattern};
pub use memory::Memory;
pub use operation::{OperationId, OperationIds, Secret};
pub use outcome::{Class, Loss, Outcome};
pub use policy::{KeyRule, KeySource, Mode, Part, Policy, Velocity};
pub use record::{AttemptToken, Fence, Head, Record, State, StateFilter};
pub use rejection::Rejection;
pub use request_id::RequestId;
pub use scope::{Principal, RecordId, Scope};
pub use store::{Condition, Put, Store, StoreError};
pub use time::{Clock, ManualClock, Timestamp};
pub use transfer::Transfer;
