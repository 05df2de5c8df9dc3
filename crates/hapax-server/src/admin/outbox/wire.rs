//! The JSON types of the outbox, which `hapax outbox --json` prints too.

use std::collections::BTreeMap;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use hapax_flow::outbox::operate::{Found, Head, Listed, ReaderState, SetAside};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

pub(crate) use crate::admin::keys::time::Time;

/// Which messages that are set aside to list. Everything that is said must hold.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OutboxQuery {
    /// Only of this reader.
    pub(super) reader: Option<String>,
    /// `waiting`, `held` or `dead`.
    #[param(pattern = "^(waiting|held|dead)$")]
    pub(super) state: Option<String>,
    /// `next` of the page before.
    #[param(pattern = "^.*:[0-9]{1,18}$")]
    pub(super) after: Option<String>,
    /// At most so many, and never more than 1,000.
    pub(super) limit: Option<u32>,
}

/// A page of messages that are set aside.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct OutboxPage {
    pub(super) messages: Vec<OutboxMessage>,
    /// What to ask for with `after` to go on.
    pub(super) next: Option<String>,
    pub(super) now: Time,
}

/// One message, at each place where it is.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct OutboxMessages {
    pub(super) messages: Vec<OutboxMessage>,
}

/// Every reader, by name.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct OutboxReaders {
    pub(super) readers: Vec<OutboxReader>,
}

/// A message, and how it is set aside for a reader. One that is in the outbox itself has no reader.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct OutboxMessage {
    #[schema(format = "uuid")]
    id: String,
    topic: String,
    key: Option<String>,
    /// When it was emitted.
    at: Time,
    /// Whether it takes part in the order of its key.
    ordered: bool,
    /// The version that its emitter gave it.
    version: Option<i64>,
    headers: BTreeMap<String, String>,
    payload_bytes: u64,
    /// A payload that is text. Not in a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
    /// One that is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reader: Option<String>,
    /// `waiting` to be sent, `held` for an operator with the later ones of its key, or `dead`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^(waiting|held|dead)$")]
    state: Option<String>,
    /// How often it was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<u32>,
    /// When it is sent next; absent if that is after another one of its key, or after an operator.
    due_at: Option<Time>,
    /// What the destination said.
    reason: Option<String>,
}

/// A reader: one destination, and how far it has got.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct OutboxReader {
    reader: String,
    /// The relay that has it now.
    active_on: Option<String>,
    /// Why an operator has to start it again.
    stopped: Option<String>,
    published: u64,
    published_at: Option<Time>,
    waiting: u64,
    held: u64,
    dead: u64,
    oldest: Option<OldestMessage>,
    writer: Option<OpenWriter>,
}

/// The oldest message that a reader has not published.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct OldestMessage {
    id: String,
    topic: String,
    key: Option<String>,
    at: Time,
    age_seconds: f64,
}

/// The backend whose transaction with messages has been open for longest.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct OpenWriter {
    pid: i32,
    since: Time,
}

/// Which message to change, by whom and why.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MessageChange {
    /// The reader for which it is set aside; needed if there are several.
    #[serde(default)]
    pub(super) reader: Option<String>,
    /// Who, in up to 200 bytes.
    #[schema(min_length = 1)]
    pub(super) by: String,
    /// Why, in up to 2,000 bytes.
    #[schema(min_length = 1)]
    pub(super) reason: String,
}

/// Who changes a reader, and why.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReaderChange {
    /// Who, in up to 200 bytes.
    #[schema(min_length = 1)]
    pub(super) by: String,
    /// Why, in up to 2,000 bytes.
    #[schema(min_length = 1)]
    pub(super) reason: String,
}

/// What was done to a message.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct MessageChanged {
    /// `sent again` or `skipped`.
    pub(crate) done: &'static str,
    pub(crate) id: String,
    pub(crate) reader: String,
}

/// What was done to a reader.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ReaderChanged {
    /// `started` or `removed`.
    pub(crate) done: &'static str,
    pub(crate) reader: String,
}

impl OutboxMessage {
    fn new(head: &Head, payload_bytes: u64, aside: Option<&SetAside>) -> OutboxMessage {
        OutboxMessage {
            id: head.id.to_string(),
            topic: head.topic.clone(),
            key: head.key.clone(),
            at: Time(head.at),
            ordered: head.ordered,
            version: head.version,
            headers: head.headers.iter().cloned().collect(),
            payload_bytes,
            payload: None,
            payload_base64: None,
            reader: aside.map(|aside| aside.reader.clone()),
            state: aside.map(|aside| aside.state.word().to_owned()),
            attempts: aside.map(|aside| aside.attempts),
            due_at: aside.and_then(|aside| aside.due_at).map(Time),
            reason: aside.and_then(|aside| aside.reason.clone()),
        }
    }
}

impl From<&Listed> for OutboxMessage {
    fn from(listed: &Listed) -> OutboxMessage {
        OutboxMessage::new(&listed.head, listed.payload_bytes, Some(&listed.aside))
    }
}

impl From<&Found> for OutboxMessage {
    fn from(found: &Found) -> OutboxMessage {
        let (payload, payload_base64) = payload(&found.payload);
        OutboxMessage {
            payload,
            payload_base64,
            ..OutboxMessage::new(
                &found.head,
                found.payload.len() as u64,
                found.aside.as_ref(),
            )
        }
    }
}

/// A payload as text, or else in base64.
pub(crate) fn payload(bytes: &[u8]) -> (Option<String>, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(BASE64_STANDARD.encode(bytes))),
    }
}

impl From<&ReaderState> for OutboxReader {
    fn from(reader: &ReaderState) -> OutboxReader {
        OutboxReader {
            reader: reader.name.clone(),
            active_on: reader.active.clone(),
            stopped: reader.stopped.clone(),
            published: reader.published,
            published_at: reader.published_at.map(Time),
            waiting: reader.waiting,
            held: reader.held,
            dead: reader.dead,
            oldest: reader.oldest.as_ref().map(|oldest| OldestMessage {
                id: oldest.id.to_string(),
                topic: oldest.topic.clone(),
                key: oldest.key.clone(),
                at: Time(oldest.at),
                age_seconds: reader.now.since(oldest.at).as_secs_f64(),
            }),
            writer: reader.writer.map(|writer| OpenWriter {
                pid: writer.pid,
                since: Time(writer.since),
            }),
        }
    }
}
