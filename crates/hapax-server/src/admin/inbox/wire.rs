//! The JSON types of the inbox, which `hapax inbox --json` prints too.

use std::collections::BTreeMap;

use hapax::core::flow::Window;
use hapax_flow::inbox::{ConsumerState, Found, Head, Listed};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

pub(crate) use crate::admin::keys::time::Time;
use crate::admin::outbox::wire::payload;

/// Which messages to list. Everything that is said must hold.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct InboxQuery {
    /// Only of this consumer.
    pub(super) consumer: Option<String>,
    /// `trying`, `parked` or `again`. Without it: those that are parked.
    #[param(pattern = "^(trying|parked|again)$")]
    pub(super) state: Option<String>,
    /// `next` of the page before.
    #[param(format = "int64", minimum = 0)]
    pub(super) after: Option<i64>,
    /// At most so many, and never more than 1,000.
    pub(super) limit: Option<u32>,
}

/// A page of messages that were not applied.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct InboxPage {
    pub(super) messages: Vec<InboxMessage>,
    /// What to ask for with `after` to go on.
    pub(super) next: Option<i64>,
    pub(super) now: Time,
}

/// Every consumer, by name.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct InboxConsumers {
    pub(super) consumers: Vec<InboxConsumer>,
}

/// A consumer, and what it has not applied.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct InboxConsumer {
    consumer: String,
    /// For how long its receipts are kept; absent: for ever.
    window_seconds: Option<u64>,
    /// Messages that failed and are still tried.
    trying: u64,
    /// Messages that wait for an operator.
    parked: u64,
    /// Parked messages that are to be tried again.
    again: u64,
    /// When the oldest of those that wait for an operator was parked.
    oldest_parked_at: Option<Time>,
}

/// A message that a consumer has not applied.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct InboxMessage {
    consumer: String,
    /// The id that its producer gave it.
    id: String,
    /// `trying`: it failed and is still tried; `parked`, for an operator; `again`: it is tried again.
    #[schema(pattern = "^(trying|parked|again)$")]
    state: String,
    /// `failed`, `too-old`, `ahead`, `gap` or `no-id`.
    cause: String,
    attempts: u32,
    reason: Option<String>,
    parked_at: Time,
    /// Where it came from; absent, like all that follows, while it is still tried.
    topic: Option<String>,
    key: Option<String>,
    version: Option<i64>,
    /// The time that its producer gave it.
    at: Option<Time>,
    headers: BTreeMap<String, String>,
    payload_bytes: u64,
    /// A payload that is text. Not in a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
    /// One that is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

/// That a message is to be tried again, by whom and why.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct InboxRetry {
    /// Of a message older than the consumer's receipts: you have looked, and it was not applied. If
    /// it was, it is applied a second time.
    #[serde(default)]
    pub(super) was_not_applied: bool,
    /// Who, in up to 200 bytes.
    #[schema(min_length = 1)]
    pub(super) by: String,
    /// Why, in up to 2,000 bytes.
    #[schema(min_length = 1)]
    pub(super) reason: String,
}

/// That a message is never applied, by whom and why.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct InboxSkip {
    /// Who, in up to 200 bytes.
    #[schema(min_length = 1)]
    pub(super) by: String,
    /// Why, in up to 2,000 bytes.
    #[schema(min_length = 1)]
    pub(super) reason: String,
}

/// What was done to a message.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct InboxChanged {
    /// `to be tried again` or `skipped`.
    pub(crate) done: &'static str,
    pub(crate) consumer: String,
    pub(crate) id: String,
}

impl InboxMessage {
    fn new(head: &Head, payload_bytes: u64) -> InboxMessage {
        InboxMessage {
            consumer: head.consumer.clone(),
            id: head.id.clone(),
            state: head.state.word().to_owned(),
            cause: head.cause.clone(),
            attempts: head.attempts,
            reason: head.reason.clone(),
            parked_at: Time(head.parked_at),
            topic: head.topic.clone(),
            key: head.key.clone(),
            version: head.version,
            at: head.at.map(Time),
            headers: head.headers.iter().cloned().collect(),
            payload_bytes,
            payload: None,
            payload_base64: None,
        }
    }
}

impl From<&Listed> for InboxMessage {
    fn from(listed: &Listed) -> InboxMessage {
        InboxMessage::new(&listed.head, listed.payload_bytes)
    }
}

impl From<&Found> for InboxMessage {
    fn from(found: &Found) -> InboxMessage {
        let (payload, payload_base64) = payload(&found.payload);
        InboxMessage {
            payload,
            payload_base64,
            ..InboxMessage::new(&found.head, found.payload.len() as u64)
        }
    }
}

impl From<&ConsumerState> for InboxConsumer {
    fn from(consumer: &ConsumerState) -> InboxConsumer {
        InboxConsumer {
            consumer: consumer.name.clone(),
            window_seconds: match consumer.window {
                Window::Limited(window) => Some(window.as_secs()),
                Window::Forever => None,
            },
            trying: consumer.trying,
            parked: consumer.parked,
            again: consumer.again,
            oldest_parked_at: consumer.oldest_parked_at.map(Time),
        }
    }
}
