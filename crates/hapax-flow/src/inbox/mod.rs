//! What operators ask of an inbox, and what they change in it.
//!
//! Every change is written into the audit log of the database, in the same transaction.

mod postgres;
mod sqlite;

use std::time::Duration;

use bytes::Bytes;
use hapax_core::audit::Signed;
use hapax_core::flow::Window;
use hapax_core::time::Timestamp;

use crate::outbox::OutboxError;
use crate::publish::Reply;

pub use postgres::PostgresInbox;
pub use sqlite::SqliteInbox;

/// An inbox, as operators use it.
pub trait Operators: Send + Sync + 'static {
    /// Every consumer, by name.
    fn consumers(&self) -> Reply<'_, Result<Vec<ConsumerState>, InboxError>>;

    /// Messages that were not applied, in the order in which they were parked.
    fn parked<'a>(&'a self, query: &'a ParkedQuery) -> Reply<'a, Result<Vec<Listed>, InboxError>>;

    /// One message of a consumer that was not applied.
    fn find<'a>(
        &'a self,
        consumer: &'a str,
        id: &'a str,
    ) -> Reply<'a, Result<Option<Found>, InboxError>>;

    /// Lets the consumer try a parked message again. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// [`InboxError::TooOld`] if its receipt may be gone, unless `not_applied` states that somebody
    /// has looked and the message was not applied.
    fn retry<'a>(
        &'a self,
        consumer: &'a str,
        id: &'a str,
        not_applied: bool,
        signed: &'a Signed,
    ) -> Reply<'a, Result<bool, InboxError>>;

    /// Takes a message out for good: its receipt is written, so that it is never applied. Returns
    /// whether there was one.
    fn skip<'a>(
        &'a self,
        consumer: &'a str,
        id: &'a str,
        signed: &'a Signed,
    ) -> Reply<'a, Result<bool, InboxError>>;
}

/// A consumer, and what it has not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerState {
    /// Its name.
    pub name: String,
    /// How long its receipts are kept.
    pub window: Window,
    /// Messages that failed and are still tried.
    pub trying: u64,
    /// Messages that wait for an operator.
    pub parked: u64,
    /// Parked messages that are to be tried again.
    pub again: u64,
    /// When the oldest of those that wait for an operator was parked.
    pub oldest_parked_at: Option<Timestamp>,
    /// The time of the database.
    pub now: Timestamp,
}

/// What becomes of a message that was not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParkedState {
    /// It failed, and the consumer still tries it.
    Trying,
    /// It waits for an operator.
    Parked,
    /// The consumer tries it again.
    Again,
}

impl ParkedState {
    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            ParkedState::Trying => "trying",
            ParkedState::Parked => "parked",
            ParkedState::Again => "again",
        }
    }

    fn code(self) -> i16 {
        match self {
            ParkedState::Trying => 0,
            ParkedState::Parked => 1,
            ParkedState::Again => 2,
        }
    }

    fn of(code: i16) -> Result<ParkedState, InboxError> {
        match code {
            0 => Ok(ParkedState::Trying),
            1 => Ok(ParkedState::Parked),
            2 => Ok(ParkedState::Again),
            other => Err(InboxError::Corrupt(format!("it has the state {other}"))),
        }
    }
}

/// Which messages to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParkedQuery {
    /// Only of this consumer.
    pub consumer: Option<String>,
    /// Only in this state.
    pub state: Option<ParkedState>,
    /// Only those after the one with this number.
    pub after: Option<i64>,
    /// At most this many.
    pub limit: u32,
}

/// A message that was not applied, without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its place among all of them: see [`ParkedQuery::after`].
    pub number: i64,
    /// The consumer that has not applied it.
    pub consumer: String,
    /// The id that its producer gave it.
    pub id: String,
    /// What becomes of it.
    pub state: ParkedState,
    /// Why it was not applied: `failed`, `too-old`, `ahead`, `gap` or `no-id`.
    pub cause: String,
    /// How often it was tried.
    pub attempts: u32,
    /// The reason in words.
    pub reason: Option<String>,
    /// Where it came from; `None`, like all that follows, while it is still tried.
    pub topic: Option<String>,
    /// Its key.
    pub key: Option<String>,
    /// The version of its entity.
    pub version: Option<i64>,
    /// The time that its producer gave it.
    pub at: Option<Timestamp>,
    /// Its headers, sorted by name.
    pub headers: Vec<(String, String)>,
    /// When it was parked, or failed for the first time.
    pub parked_at: Timestamp,
}

/// A message in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The message.
    pub head: Head,
    /// How large its payload is.
    pub payload_bytes: u64,
}

/// A message that was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The message.
    pub head: Head,
    /// Its payload; empty while it is still tried.
    pub payload: Bytes,
}

/// Why an inbox did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InboxError {
    /// The message is older than the consumer's receipts.
    #[error(
        "the message is older than the receipts of this consumer: nobody can tell whether it was applied"
    )]
    TooOld,
    /// The database has no inbox, or this role may not read it.
    #[error("{0}")]
    Unusable(String),
    /// It does not do this for an operator.
    #[error("{0}")]
    Refused(String),
    /// It cannot be reached, or failed.
    #[error("{0}")]
    Unavailable(String),
    /// A message in it cannot be read.
    #[error("a message in the inbox cannot be read: {0}")]
    Corrupt(String),
}

impl From<OutboxError> for InboxError {
    fn from(error: OutboxError) -> InboxError {
        match error {
            OutboxError::Unusable(why) => InboxError::Unusable(why),
            OutboxError::Refused(why) => InboxError::Refused(why),
            OutboxError::Corrupt(why) => InboxError::Corrupt(why),
            other => InboxError::Unavailable(other.to_string()),
        }
    }
}

fn window(micros: Option<i64>) -> Window {
    match micros {
        Some(micros) => Window::Limited(Duration::from_micros(micros.unsigned_abs())),
        None => Window::Forever,
    }
}

fn time(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros.unsigned_abs())
}

fn number(count: i64) -> u64 {
    u64::try_from(count).unwrap_or(0)
}
