//! Once: the only driver of [`decide`](hapax_core::decide()).
//!
//! A request becomes a call; the engine finds out what is remembered of it, and has its work run
//! once. What a call does next is decided by [`Step`](hapax_core::step::Step), and done here:
//! `drive.rs` is the path of a call through this node, `lead.rs` takes its steps up to the claim,
//! `attempt.rs` those from the work on; the other files are what those lean on.
//!
//! Without HTTP, use [`Once`]. Ordinary use, with bytes:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use hapax::{BoxError, Hapax};
//!
//! let hapax = Hapax::memory();
//! let once = hapax.once("send-invoice");
//! let send = async || {
//!     once.run("2026-11/17", "invoice 17", async |_operation| {
//!         // The effect.
//!         Ok::<_, BoxError>("sent".into())
//!     })
//!     .await
//! };
//!
//! let first = send().await?;
//! let again = send().await?;
//! assert_eq!((first.replayed, again.replayed), (false, true));
//! assert_eq!(first.value, again.value);
//! # Ok(()) }
//! ```
//!
//! Customised: JSON (feature `json`), the keys of each customer apart, another mode, and an error
//! that says that nothing happened.
//!
//! ```
//! # #[cfg(feature = "json")] mod example {
//! use hapax::{Hapax, Key, Mode, NotDoneExt, Operation, Policy, Principal, RunError};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Clone, Serialize)]
//! struct Invoice { number: u32, cents: u64 }
//! #[derive(Serialize, Deserialize)]
//! enum Paid { Receipt { id: String }, Declined }
//! # struct Bank;
//! # #[derive(Debug)] struct NotReached;
//! # impl std::fmt::Display for NotReached { fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result { f.write_str("not reached") } }
//! # impl std::error::Error for NotReached {}
//! # impl Bank {
//! #     async fn connect(&self) -> Result<&Bank, NotReached> { Ok(self) }
//! #     async fn charge(&self, _key: Key, _cents: u64) -> std::io::Result<Paid> { Ok(Paid::Declined) }
//! # }
//!
//! async fn pay(hapax: &Hapax, bank: Bank, customer: &str, invoice: Invoice) -> Result<Paid, Box<dyn std::error::Error>> {
//!     let once = hapax
//!         .once("pay-invoice")
//!         .principal(Principal::named(customer))
//!         .policy(Policy { mode: Mode::Rerun, ..Policy::default() })?
//!         .json();
//!     let charge = invoice.clone();
//!     let work = async move |operation: Operation| {
//!         // The bank was not reached, so nothing happened: a repeat runs the work again.
//!         let bank = bank.connect().await.not_done(&operation)?;
//!         // An error from here on may come after the effect.
//!         let paid = bank.charge(operation.derive("charge"), charge.cents).await?;
//!         // A refusal is a value: it is kept, and a repeat gets it again.
//!         Ok::<_, hapax::BoxError>(paid)
//!     };
//!     let ran = once.run(format!("invoice-{}", invoice.number), &invoice, work).await;
//!     if let Some(delay) = ran.as_ref().err().and_then(RunError::retry) {
//!         println!("try again in {delay:?}");
//!     }
//!     Ok(ran?.value)
//! }
//! # }
//! ```
//!
//! | The work ends with | Its caller gets | A repeat gets |
//! |---|---|---|
//! | a value | [`Done`] | the same value, `replayed` |
//! | a value over `answer_bytes_max`, or with `keep_answers = false` | [`Done`] | `answer-not-kept` |
//! | an error marked by [`NotDoneExt::not_done`] | [`RunError::NotDone`] | another run |
//! | any other error, or a panic | [`RunError::Lost`] | `outcome-unknown` in mode `hold`, another run in the others |
//! | [`Operation::finish`], whatever it returns after that | [`Done`] with the stored value | the same value, `replayed` |

mod attempt;
mod cache;
mod call;
mod capacity;
mod drive;
mod engine;
mod flights;
#[cfg(feature = "json")]
mod json;
mod lead;
mod not_done;
mod operation;
mod operators;
mod quota_store;
mod remote;
mod renew;
mod run;
mod run_error;
mod shadow;
mod sweep;
#[cfg(feature = "testing")]
mod testing;
mod trace;
mod usage;
mod velocity;

pub(crate) use call::{Call, Ended, Fingerprinting, Reply, Request, UnverifiedCall};
pub(crate) use drive::{is_of_version, not_kept};
pub use engine::{Drained, Limits};
pub(crate) use engine::{Engine, Room};
#[cfg(feature = "json")]
pub(crate) use json::Json;
#[cfg(feature = "json")]
pub use json::JsonOnce;
pub use not_done::{NotDone, NotDoneExt};
pub(crate) use operation::Joined;
pub use operation::Operation;
pub use operators::{Audit, OperatorError, Settlement};
pub use quota_store::Quotas;
pub use run::{Done, Once};
pub(crate) use run::{Value, catch_panic, keep};
pub use run_error::RunError;
pub(crate) use shadow::Prediction;
pub use sweep::Sweep;
pub(crate) use sweep::run_once as sweep_once;
pub(crate) use trace::Trace;
pub(crate) use usage::Reserved;
pub use usage::Usage;
pub(crate) use velocity::Counted;

/// Any error: what work and services fail with.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An error and what caused it, in a line.
pub(crate) fn because(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    for cause in causes.map(ToString::to_string) {
        // Many say what caused them by themselves.
        if !text.contains(&cause) {
            text += &format!(": {cause}");
        }
    }
    text
}
