//! What operators ask of an outbox, and what they change in it.
//!
//! Every change is written into the audit log of the database, in the same transaction.

mod postgres;
mod sqlite;

use bytes::Bytes;
use hapax_core::audit::Signed;
use hapax_core::flow::MessageId;
use hapax_core::time::Timestamp;

use super::{OutboxError, Reply};
pub(crate) use sqlite::write_down;

/// An outbox, as operators use it.
pub trait Operators: Send + Sync + 'static {
    /// Every reader, by name.
    fn readers(&self) -> Reply<'_, Result<Vec<ReaderState>, OutboxError>>;

    /// Messages that are set aside, by reader and in their order.
    fn set_aside<'a>(
        &'a self,
        query: &'a AsideQuery,
    ) -> Reply<'a, Result<Vec<Listed>, OutboxError>>;

    /// One message: as it is set aside for each reader, and as it is in the outbox.
    fn find(&self, id: MessageId) -> Reply<'_, Result<Vec<Found>, OutboxError>>;

    /// Sends a message that is set aside again, at once and with all its attempts. Returns whether
    /// it did: not if there is none, or if an earlier one of its key is in the way.
    fn retry<'a>(
        &'a self,
        reader: &'a str,
        id: MessageId,
        signed: &'a Signed,
    ) -> Reply<'a, Result<bool, OutboxError>>;

    /// Takes out a message that is set aside, for good: this reader never gets it. Returns whether
    /// there was one.
    fn skip<'a>(
        &'a self,
        reader: &'a str,
        id: MessageId,
        signed: &'a Signed,
    ) -> Reply<'a, Result<bool, OutboxError>>;

    /// Starts a reader that was stopped. Returns whether there was one.
    fn start<'a>(
        &'a self,
        reader: &'a str,
        signed: &'a Signed,
    ) -> Reply<'a, Result<bool, OutboxError>>;

    /// Removes a reader for good, with what is set aside for it, unless a relay has it. Returns
    /// whether it did.
    fn remove<'a>(
        &'a self,
        reader: &'a str,
        signed: &'a Signed,
    ) -> Reply<'a, Result<bool, OutboxError>>;
}

/// A reader, and what holds it up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaderState {
    /// Its name.
    pub name: String,
    /// The relay that has it now.
    pub active: Option<String>,
    /// Messages that were published.
    pub published: u64,
    /// When the latest was.
    pub published_at: Option<Timestamp>,
    /// Why an operator has to start it again.
    pub stopped: Option<String>,
    /// Messages that are set aside and will be sent.
    pub waiting: u64,
    /// Messages that wait for an operator.
    pub held: u64,
    /// Messages that are given up, and hold up nobody.
    pub dead: u64,
    /// The oldest message that is not published.
    pub oldest: Option<Oldest>,
    /// Whoever has had a transaction with messages open for longest: what it emitted is published
    /// when it ends. Only in Postgres.
    pub writer: Option<Writer>,
    /// The time of the database.
    pub now: Timestamp,
}

/// The oldest message that a reader has not published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oldest {
    /// When it was emitted.
    pub at: Timestamp,
    /// Its id.
    pub id: MessageId,
    /// Its topic.
    pub topic: String,
    /// Its key.
    pub key: Option<String>,
}

/// A session of the database with an open transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writer {
    /// The process id of its backend, for `pg_terminate_backend`.
    pub pid: i32,
    /// When its transaction began.
    pub since: Timestamp,
}

/// What becomes of a message that is set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsideState {
    /// It is sent when it is due, or when an earlier one of its key is.
    Waiting,
    /// It waits for an operator, and so do the later ones of its key.
    Held,
    /// It is kept to be seen, and holds up nobody.
    Dead,
}

impl AsideState {
    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            AsideState::Waiting => "waiting",
            AsideState::Held => "held",
            AsideState::Dead => "dead",
        }
    }

    fn code(self) -> i16 {
        match self {
            AsideState::Waiting => 1,
            AsideState::Held => 2,
            AsideState::Dead => 3,
        }
    }

    fn of(code: i16) -> Result<AsideState, OutboxError> {
        match code {
            1 => Ok(AsideState::Waiting),
            2 => Ok(AsideState::Held),
            3 => Ok(AsideState::Dead),
            other => Err(OutboxError::Corrupt(format!("it has the state {other}"))),
        }
    }
}

/// Which messages that are set aside to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AsideQuery {
    /// Only of this reader.
    pub reader: Option<String>,
    /// Only in this state.
    pub state: Option<AsideState>,
    /// Only those after this place.
    pub after: Option<(String, i64)>,
    /// At most this many.
    pub limit: u32,
}

/// How a message is set aside for a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAside {
    /// The reader.
    pub reader: String,
    /// What becomes of it.
    pub state: AsideState,
    /// How often it was sent.
    pub attempts: u32,
    /// When it is sent next; `None` if that is after another one of its key, or after an operator.
    pub due_at: Option<Timestamp>,
    /// What the destination said, if it was sent.
    pub reason: Option<String>,
}

/// A message without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// When it was emitted.
    pub at: Timestamp,
    /// Its id.
    pub id: MessageId,
    /// Its topic.
    pub topic: String,
    /// Its key.
    pub key: Option<String>,
    /// Whether it takes part in the order of its key.
    pub ordered: bool,
    /// The version that its emitter gave it.
    pub version: Option<i64>,
    /// Its headers, sorted by name.
    pub headers: Vec<(String, String)>,
}

/// A message that is set aside, in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its place among those of its reader: see [`AsideQuery::after`].
    pub sequence: i64,
    /// How it is set aside.
    pub aside: SetAside,
    /// The message.
    pub head: Head,
    /// How large its payload is.
    pub payload_bytes: u64,
}

/// A message that was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// How it is set aside; `None` for the message in the outbox itself.
    pub aside: Option<SetAside>,
    /// The message.
    pub head: Head,
    /// Its payload.
    pub payload: Bytes,
}

fn time(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros.unsigned_abs())
}

fn number(count: i64) -> u64 {
    u64::try_from(count).unwrap_or(0)
}
