//! A message as the relay reads and sends it.

use bytes::Bytes;

use super::MessageId;
use crate::time::Timestamp;

/// The limits of a message. `hapax.emit` checks the same numbers.
pub mod limits {
    /// Bytes of a payload.
    pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;
    /// Bytes of a topic.
    pub const TOPIC_BYTES_MAX: usize = 255;
    /// Bytes of a key.
    pub const KEY_BYTES_MAX: usize = 1024;
    /// Header fields.
    pub const HEADERS_MAX: usize = 64;
    /// Bytes of all header fields together.
    pub const HEADER_BYTES_MAX: usize = 16 * 1024;
    /// Ordered keys in one transaction. Each is locked until the transaction ends.
    pub const ORDERED_KEYS_MAX: usize = 256;
}

/// The names of headers with a meaning of their own.
pub mod headers {
    /// The media type of the payload.
    pub const CONTENT_TYPE: &str = "content-type";
    /// The id of the request that caused the message, and everything that follows from it.
    pub const CORRELATION_ID: &str = "correlation-id";
    /// The id of the message that was handled when this one was emitted.
    pub const CAUSATION_ID: &str = "causation-id";
    /// The trace that the message belongs to, as W3C Trace Context writes it.
    pub const TRACEPARENT: &str = "traceparent";
    /// What else belongs to the trace.
    pub const TRACESTATE: &str = "tracestate";
}

/// A message with its id and the time of its emit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Its place in the outbox. It is never sent: after a restore the numbers may be others.
    pub sequence: i64,
    /// The same each time it is published.
    pub id: MessageId,
    /// When it was emitted, by the clock of the database.
    pub at: Timestamp,
    /// What it is about: the subject, queue or stream that it goes to.
    pub topic: String,
    /// Messages of one topic and key are published in commit order.
    pub key: Option<String>,
    /// Whether it takes part in the order of its key.
    pub ordered: bool,
    /// The version of the entity that it is about, if the application counts them.
    pub version: Option<i64>,
    /// Names in lower case, sorted by name.
    pub headers: Vec<(String, String)>,
    /// Its content.
    pub payload: Bytes,
}

impl Envelope {
    /// The header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(given, _)| given == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The media type of the payload.
    pub fn content_type(&self) -> &str {
        self.header(headers::CONTENT_TYPE)
            .unwrap_or("application/octet-stream")
    }

    /// The topic and key whose messages are published one after the other. `None` if this message
    /// has no place in an order.
    pub fn ordered_key(&self) -> Option<(&str, &str)> {
        let key = self.key.as_deref().filter(|_| self.ordered)?;
        Some((&self.topic, key))
    }
}

/// Why a message cannot be emitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvelopeError {
    /// The topic is empty, too long, or has control characters.
    #[error("a topic has 1 to {max} bytes and no control characters", max = limits::TOPIC_BYTES_MAX)]
    Topic,
    /// The key is empty, too long, or has control characters.
    #[error("the key of a message has 1 to {max} bytes and no control characters", max = limits::KEY_BYTES_MAX)]
    Key,
    /// The step has a name that is kept for messages without one.
    #[error("a step may not begin with #")]
    Step,
    /// The payload is too large.
    #[error(
        "the payload has {0} bytes, and a message may have {max}: keep the content elsewhere and send where it is",
        max = limits::PAYLOAD_BYTES_MAX
    )]
    PayloadTooLarge(usize),
    /// A header's name is not a lower-case token.
    #[error("{0:?} is no name of a header: write lower-case letters, digits and hyphens")]
    HeaderName(String),
    /// A header's value has control characters.
    #[error("the value of the header {0} has control characters")]
    HeaderValue(String),
    /// There are too many headers, or they are too large.
    #[error(
        "a message has at most {max} headers of {bytes} bytes together",
        max = limits::HEADERS_MAX,
        bytes = limits::HEADER_BYTES_MAX
    )]
    Headers,
}

/// Checks a message before it is emitted: its limits, and the names and values of its headers.
pub fn check(
    topic: &str,
    key: Option<&str>,
    headers: &[(String, String)],
    payload: &[u8],
) -> Result<(), EnvelopeError> {
    if !is_text(topic, limits::TOPIC_BYTES_MAX) {
        return Err(EnvelopeError::Topic);
    }
    if key.is_some_and(|key| !is_text(key, limits::KEY_BYTES_MAX)) {
        return Err(EnvelopeError::Key);
    }
    if payload.len() > limits::PAYLOAD_BYTES_MAX {
        return Err(EnvelopeError::PayloadTooLarge(payload.len()));
    }
    check_headers(headers)
}

fn is_text(text: &str, bytes_max: usize) -> bool {
    !text.is_empty() && text.len() <= bytes_max && !text.chars().any(char::is_control)
}

fn check_headers(headers: &[(String, String)]) -> Result<(), EnvelopeError> {
    for (name, value) in headers {
        let is_token =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(EnvelopeError::HeaderName(name.clone()));
        }
        if value.chars().any(char::is_control) {
            return Err(EnvelopeError::HeaderValue(name.clone()));
        }
    }
    let bytes: usize = headers
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum();
    if headers.len() > limits::HEADERS_MAX || bytes > limits::HEADER_BYTES_MAX {
        return Err(EnvelopeError::Headers);
    }
    Ok(())
}
