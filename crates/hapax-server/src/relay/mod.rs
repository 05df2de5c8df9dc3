//! Relays as this program runs them: from the outbox of a database to a destination.
//!
//! [`Destination`] is where messages go, as it is written; `source` the outbox they come from.
//! `running` runs relays on a thread and a runtime of their own, so that neither a destination that
//! blocks nor a flood of messages slows down a gateway in the same process.

mod destination;
mod metrics;
mod oldest;
mod running;
mod source;

pub use destination::Destination;
pub(crate) use metrics::RelayMetrics;
pub(crate) use oldest::Oldest;
pub(crate) use running::{OnceError, Relays, once};
pub(crate) use source::Source;

/// Longest name of a reader.
const NAME_BYTES_MAX: usize = 64;

/// The name of a reader, if it is one: it is also a label of metrics.
pub(crate) fn reader_name(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if text.is_empty() || text.len() > NAME_BYTES_MAX || !text.bytes().all(is_plain) {
        return Err(format!(
            "the name of a reader is 1 to {NAME_BYTES_MAX} letters, digits, `.`, `_` and `-`: write \"orders\", for example"
        ));
    }
    Ok(text.to_owned())
}
