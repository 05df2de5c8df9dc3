//! Relays as this program runs them: from the outbox of a database to a destination.
//!
//! `source` is the outbox that messages come from, and [`Destination`](crate::destination::Destination)
//! where they go. `running` runs relays on a thread and a runtime of their own, so that neither a destination that
//! blocks nor a flood of messages slows down a gateway in the same process.

mod backlogs;
mod metrics;
mod running;
mod source;

pub(crate) use backlogs::Backlogs;
pub(crate) use metrics::{RelayMetrics, stats};
pub(crate) use running::{OnceError, Relays, once};
pub(crate) use source::Source;
