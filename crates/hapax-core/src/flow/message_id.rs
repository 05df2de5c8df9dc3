//! The id of a message.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use crate::digest::Parts;
use crate::operation::OperationId;

/// Identifies a message at every consumer. It is the same each time the message is published.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId([u8; 16]);

impl MessageId {
    /// The id of the message that an operation emits in a step. It is always the same, so an
    /// operation that runs again emits the same message again. `operation` is the id of one life of
    /// the key: the next life emits other messages.
    ///
    /// `hapax.message_id` in `0007_outbox.sql` computes the same.
    pub fn of(operation: &OperationId, step: &str) -> MessageId {
        MessageId::digest("hapax message 1", [operation.as_str(), step])
    }

    /// The id of the message that a consumer emits in a step when it handles the message `id`. It
    /// is always the same, whether the message is handled once or again.
    pub fn caused_by(consumer: &str, id: &str, step: &str) -> MessageId {
        MessageId::digest("hapax caused message 1", [consumer, id, step])
    }

    fn digest<const N: usize>(tag: &'static str, texts: [&str; N]) -> MessageId {
        let mut parts = Parts::new(tag);
        for text in texts {
            parts.push(text.as_bytes());
        }
        let digest = parts.finish();
        let bytes: [u8; 16] = std::array::from_fn(|place| digest[place]);
        MessageId(
            uuid::Builder::from_custom_bytes(bytes)
                .into_uuid()
                .into_bytes(),
        )
    }

    /// An id from its bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> MessageId {
        MessageId(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// As a UUID.
impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Uuid::from_bytes(self.0).fmt(f)
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MessageId({self})")
    }
}

impl FromStr for MessageId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(MessageId(Uuid::parse_str(text)?.into_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{OperationIds, Secret};
    use crate::scope::RecordId;
    use crate::time::Timestamp;

    fn operation(created_at: u64) -> OperationId {
        let ids = OperationIds::new(Secret::from_bytes([1; 32]), Timestamp::ZERO);
        ids.make(
            &RecordId::from_bytes([7; 32]),
            Timestamp::from_micros(created_at),
        )
    }

    #[test]
    fn a_repeat_of_the_operation_emits_the_same_message() {
        let first = MessageId::of(&operation(1), "placed");
        assert_eq!(first, MessageId::of(&operation(1), "placed"));
        assert_ne!(first, MessageId::of(&operation(1), "paid"));
        assert_ne!(first, MessageId::of(&operation(2), "placed"));
        assert_eq!(first, first.to_string().parse().unwrap());
    }

    #[test]
    fn an_id_is_pinned() {
        // A change here would make every repeat of an old operation a new message at its consumers.
        let id = MessageId::of(&operation(1), "placed");
        assert_eq!(id.to_string(), "ef9de944-bd52-824d-9441-f6f06b4651d8");
    }
}
