//! What a caller emits.

use bytes::Bytes;
use hapax_core::flow::{Envelope, EnvelopeError, MessageId, check, headers};
use hapax_core::time::Timestamp;

use super::new_id;

/// A message to emit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a message does nothing until it is emitted"]
pub struct Message {
    pub(super) topic: String,
    pub(super) key: Option<String>,
    pub(super) payload: Bytes,
    pub(super) ordered: bool,
    pub(super) version: Option<i64>,
    pub(super) headers: Vec<(String, String)>,
    step: Option<String>,
    id: Option<MessageId>,
}

impl Message {
    /// A message about the entity `key`. Messages with the same topic and key are published in the
    /// order of their commits.
    pub fn new(
        topic: impl Into<String>,
        key: impl Into<String>,
        payload: impl Into<Bytes>,
    ) -> Message {
        Message {
            key: Some(key.into()),
            ..Message::without_key(topic, payload)
        }
    }

    /// A message without a key, and so without a place in an order.
    pub fn without_key(topic: impl Into<String>, payload: impl Into<Bytes>) -> Message {
        Message {
            topic: topic.into(),
            key: None,
            payload: payload.into(),
            ordered: true,
            version: None,
            headers: Vec::new(),
            step: None,
            id: None,
        }
    }

    /// Says that the payload is JSON.
    pub fn json(self) -> Message {
        self.content_type("application/json")
    }

    /// The media type of the payload. The default is `application/octet-stream`.
    pub fn content_type(self, content_type: impl Into<String>) -> Message {
        self.header(headers::CONTENT_TYPE, content_type)
    }

    /// What the operation does here: the message's id is made of the operation and this name. Each
    /// message of an operation needs a name of its own, which does not begin with `#`.
    pub fn step(mut self, step: impl Into<String>) -> Message {
        self.step = Some(step.into());
        self
    }

    /// The version of the entity, for consumers that skip older ones.
    pub fn version(mut self, version: i64) -> Message {
        self.version = Some(version);
        self
    }

    /// Takes the message out of the order of its key: its emit locks nothing, and if it fails it
    /// holds up no other.
    pub fn unordered(mut self) -> Message {
        self.ordered = false;
        self
    }

    /// An id of your own, in place of one that is made.
    pub fn id(mut self, id: MessageId) -> Message {
        self.id = Some(id);
        self
    }

    /// Adds a header, or replaces the one of this name. The name is in lower case.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Message {
        let (name, value) = (name.into(), value.into());
        self.headers.retain(|(given, _)| *given != name);
        self.headers.push((name, value));
        self
    }

    /// The message that was handled when this one was emitted.
    pub fn caused_by(self, message: MessageId) -> Message {
        self.header(headers::CAUSATION_ID, message.to_string())
    }

    /// Adds a header if there is a value and no header of this name yet.
    pub fn default_header(self, name: &str, value: Option<&str>) -> Message {
        match value {
            Some(value) if !self.has_header(name) => self.header(name, value),
            _ => self,
        }
    }

    /// Whether it has a header of this name.
    pub fn has_header(&self, name: &str) -> bool {
        self.headers.iter().any(|(given, _)| given == name)
    }

    /// The message as it is published, where there is no outbox to emit it to.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn into_envelope(self, at: Timestamp) -> Result<Envelope, EnvelopeError> {
        self.check()?;
        let mut headers = self.headers;
        headers.sort();
        Ok(Envelope {
            sequence: 0,
            id: self.id.unwrap_or_else(new_id),
            at,
            topic: self.topic,
            key: self.key,
            ordered: self.ordered,
            version: self.version,
            headers,
            payload: self.payload,
        })
    }

    pub(super) fn own_id(&self) -> Option<MessageId> {
        self.id
    }

    pub(super) fn own_step(&self) -> Option<&str> {
        self.step.as_deref()
    }

    /// What its emit locks.
    pub(super) fn ordered_key(&self) -> Option<(&str, &str)> {
        let key = self.key.as_deref().filter(|_| self.ordered)?;
        Some((&self.topic, key))
    }

    pub(super) fn check(&self) -> Result<(), EnvelopeError> {
        if self.step.as_ref().is_some_and(|step| step.starts_with('#')) {
            return Err(EnvelopeError::Step);
        }
        check(
            &self.topic,
            self.key.as_deref(),
            &self.headers,
            &self.payload,
        )
    }
}
