//! A message as a handler gets it.

use std::fmt::Write as _;
use std::ops::Deref;
use std::sync::Arc;

use hapax::join::Session;
use hapax::outbox::{EmitError, Message, MessageId, emit};
use hapax_core::flow::headers;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::Incoming;

/// The longest id that a receipt can have.
const ID_BYTES_MAX: usize = 1024;

/// A message that a consumer has received. It dereferences to [`Incoming`].
#[derive(Clone, Debug)]
pub struct Received {
    consumer: Arc<str>,
    id: Arc<str>,
    has_id: bool,
    incoming: Incoming,
}

impl Received {
    /// `id`: the producer's, if the message has one.
    pub(super) fn new(consumer: &Arc<str>, id: Option<String>, incoming: Incoming) -> Received {
        let id = id.filter(|id| !id.is_empty() && id.len() <= ID_BYTES_MAX);
        Received {
            consumer: consumer.clone(),
            has_id: id.is_some(),
            id: id.unwrap_or_else(|| of_content(&incoming)).into(),
            incoming,
        }
    }

    /// The producer's id. It is the same in every delivery.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether the producer gave it an id that can be used. If not, [`id`](Received::id) is made of
    /// its content.
    pub(super) fn has_id(&self) -> bool {
        self.has_id
    }

    /// Reads the payload as JSON.
    ///
    /// # Errors
    ///
    /// When it is not JSON of this type.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.incoming.payload)
    }

    /// Emits a message that follows from this one, in the transaction of its effect, and returns
    /// its id.
    ///
    /// The id is made of this message's, of the consumer and of `step`, so that handling this
    /// message again emits the same message again. It names this message as its cause, and carries
    /// the same correlation id.
    ///
    /// # Errors
    ///
    /// As [`hapax::outbox::emit`].
    pub async fn emit<S: Session>(
        &self,
        session: &mut S,
        step: &str,
        message: Message,
    ) -> Result<MessageId, EmitError<S::Error>> {
        let correlation = self
            .header("ce-correlationid")
            .or_else(|| self.header(headers::CORRELATION_ID));
        let message = message
            .id(MessageId::caused_by(&self.consumer, &self.id, step))
            .header(headers::CAUSATION_ID, &*self.id)
            .default_header(headers::CORRELATION_ID, correlation);
        emit(session, message).await
    }

    /// What tells messages of one order from others: topic and key.
    pub(super) fn lane(&self) -> Lane {
        match &self.key {
            Some(key) => Lane::Of(self.topic.clone(), key.clone()),
            None => Lane::Alone(self.id.clone()),
        }
    }

    /// The entity that its version is of.
    pub(super) fn entity(&self) -> Option<(String, i64)> {
        let key = self.key.as_ref()?;
        Some((format!("{}\u{1f}{key}", self.topic), self.version?))
    }
}

impl Deref for Received {
    type Target = Incoming;

    fn deref(&self) -> &Incoming {
        &self.incoming
    }
}

/// Messages of one lane are handled one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    /// A topic and a key.
    Of(String, String),
    /// One message without a key.
    Alone(Arc<str>),
}

/// An id for what has none, so that it is parked once however often it is delivered.
fn of_content(incoming: &Incoming) -> String {
    let mut hash = Sha256::new();
    for part in [incoming.topic.as_bytes(), &incoming.payload] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let digest = hash.finalize();
    digest[..16]
        .iter()
        .fold(String::from("no-id-"), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn received(id: Option<&str>, payload: &'static str) -> Received {
        let incoming = Incoming {
            payload: Bytes::from_static(payload.as_bytes()),
            ..Incoming::default()
        };
        Received::new(&"test".into(), id.map(str::to_owned), incoming)
    }

    #[test]
    fn what_has_no_id_is_known_by_its_content() {
        assert_eq!(received(None, "a").id(), received(Some(""), "a").id());
        assert_ne!(received(None, "a").id(), received(None, "b").id());
        assert!(!received(Some(&"x".repeat(2000)), "a").has_id());
    }

    #[test]
    fn json_is_read() {
        let numbers: Vec<u8> = received(Some("1"), "[1,2]").json().unwrap();
        assert_eq!(numbers, [1, 2]);
    }
}
