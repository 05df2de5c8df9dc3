//! A message as a handler gets it.

use std::fmt::Write as _;
use std::ops::Deref;
use std::sync::Arc;

use hapax::inbox::check_id;
use hapax::join::Session;
use hapax::outbox::{EmitError, Message, MessageId, emit};
use hapax_core::flow::headers;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::Incoming;

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
        let has_id = id.as_deref().is_some_and(|id| check_id(id).is_ok());
        let id = match id {
            Some(id) if has_id => id,
            id => of_content(id.as_deref().filter(|id| !id.is_empty()), &incoming),
        };
        Received {
            consumer: consumer.clone(),
            id: id.into(),
            has_id,
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
    /// its id. It is what [`causes`](Received::causes) makes of it.
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
        emit(session, self.causes(step, message)).await
    }

    /// A message that follows from this one.
    ///
    /// Its id is made of this message's, of the consumer and of `step`, so that handling this
    /// message again makes the same message again. It names this message as its cause, and carries
    /// the same correlation id and trace.
    pub fn causes(&self, step: &str, message: Message) -> Message {
        let given = |of_event, name| self.header(of_event).or_else(|| self.header(name));
        let correlation = given("ce-correlationid", headers::CORRELATION_ID);
        let mut message = message
            .id(MessageId::caused_by(&self.consumer, &self.id, step))
            .header(headers::CAUSATION_ID, &*self.id)
            .default_header(headers::CORRELATION_ID, correlation);
        // A message that names a trace of its own has its state too.
        if !message.has_header(headers::TRACEPARENT) {
            message = message
                .default_header(
                    headers::TRACEPARENT,
                    given("ce-traceparent", headers::TRACEPARENT),
                )
                .default_header(
                    headers::TRACESTATE,
                    given("ce-tracestate", headers::TRACESTATE),
                );
        }
        message
    }

    /// What tells messages of one order from others: topic and key.
    pub(super) fn lane(&self) -> Lane {
        match &self.key {
            Some(key) => Lane::Of(self.topic.clone(), key.clone()),
            None => Lane::Alone(self.id.clone()),
        }
    }

    /// The entity that its version is of. Without zero bytes, which Postgres has in no text.
    pub(super) fn entity(&self) -> Option<(String, i64)> {
        let key = self.key.as_ref()?;
        let entity = format!("{}\u{1f}{key}", self.topic);
        Some((entity.replace('\0', "\u{fffd}"), self.version?))
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

/// An id for what has none that can be used, so that it is parked once however often it is
/// delivered. `given`: the one that cannot be used. Headers do not count: brokers write into them.
fn of_content(given: Option<&str>, incoming: &Incoming) -> String {
    let Incoming {
        at,
        topic,
        key,
        version,
        payload,
        ..
    } = incoming;
    let at = at.map(|at| at.as_micros().to_string());
    let version = version.map(|version| version.to_string());
    let said = [given, at.as_deref(), key.as_deref(), version.as_deref()];
    let mut hash = Sha256::new();
    let mut push = |part: Option<&[u8]>| {
        hash.update(
            part.map_or(u64::MAX, |part| part.len() as u64)
                .to_be_bytes(),
        );
        hash.update(part.unwrap_or_default());
    };
    for part in said {
        push(part.map(str::as_bytes));
    }
    push(Some(topic.as_bytes()));
    push(Some(payload));
    named("no-id-", &hash.finalize()[..16])
}

/// A prefix and a digest, in hexadecimal digits.
pub(super) fn named(prefix: &str, digest: &[u8]) -> String {
    digest.iter().fold(prefix.to_owned(), |mut text, byte| {
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
        let of_key = |key: &str| {
            let incoming = Incoming {
                key: Some(key.to_owned()),
                ..Incoming::default()
            };
            Received::new(&"test".into(), None, incoming)
        };
        assert_ne!(of_key("a").id(), of_key("b").id());
    }

    #[test]
    fn an_id_that_no_receipt_can_have_is_none_and_still_tells_messages_apart() {
        let long = "x".repeat(2000);
        for (id, other) in [("a\0", "b\0"), (&*long, &long[1..])] {
            let (one, other) = (received(Some(id), "a"), received(Some(other), "a"));
            assert!(!one.has_id() && !other.has_id());
            assert_ne!(one.id(), other.id());
        }
    }

    #[test]
    fn json_is_read() {
        let numbers: Vec<u8> = received(Some("1"), "[1,2]").json().unwrap();
        assert_eq!(numbers, [1, 2]);
    }
}
