//! Where messages are read from, and where it is kept how far each reader has got.

pub mod operate;
pub(crate) mod postgres;
pub(crate) mod sqlite;

use std::time::Duration;

use hapax_core::flow::Envelope;

pub use crate::publish::Reply;
pub use postgres::PostgresOutbox;
pub use sqlite::SqliteOutbox;

/// An outbox, as a relay uses it.
///
/// Everything that a relay writes has its fence: a relay whose lease was taken by another gets
/// [`OutboxError::Lost`], and stops.
pub trait Outbox: Send + Sync + 'static {
    /// How far a reader has got. It is good for one connection: after an error the relay takes the
    /// reader anew, and begins where the database says.
    type Position: Clone + Send + Sync + 'static;

    /// Takes a reader, or makes it, unless another relay has its lease.
    fn take<'a>(
        &'a self,
        reader: &'a str,
        owner: &'a str,
        lease: Duration,
    ) -> Reply<'a, Result<Take<Self::Position>, OutboxError>>;

    /// The next messages after a position, in the order in which they are published.
    fn page<'a>(
        &'a self,
        position: &'a Self::Position,
        limit: PageLimit,
    ) -> Reply<'a, Result<Page<Self::Position>, OutboxError>>;

    /// Writes down a position, renews the lease, and sets messages aside, all in one step.
    fn mark<'a>(
        &'a self,
        held: &'a Held,
        position: &'a Self::Position,
        published: u64,
        aside: &'a [Aside],
    ) -> Reply<'a, Result<(), OutboxError>>;

    /// The topics and keys of which messages were set aside and hold up later ones.
    fn blocked<'a>(
        &'a self,
        held: &'a Held,
    ) -> Reply<'a, Result<Vec<(String, String)>, OutboxError>>;

    /// Takes messages that were set aside and are due, and counts the attempt. If
    /// [`end`](Outbox::end) is not called for one, it is due again after `patience`.
    fn due<'a>(
        &'a self,
        held: &'a Held,
        limit: PageLimit,
        patience: Duration,
    ) -> Reply<'a, Result<Vec<Due>, OutboxError>>;

    /// Says what becomes of a message that was set aside. Returns whether its key is free: nothing
    /// of it waits any more. Not free, if the message is no longer there: an operator took it out,
    /// and others of its key may wait.
    fn end<'a>(
        &'a self,
        held: &'a Held,
        sequence: i64,
        end: &'a End,
    ) -> Reply<'a, Result<bool, OutboxError>>;

    /// Gives the reader up, so that another relay can take it at once.
    fn release<'a>(&'a self, held: &'a Held) -> Reply<'a, Result<(), OutboxError>>;

    /// Stops the reader until an operator starts it again.
    fn stop<'a>(&'a self, held: &'a Held, reason: &'a str) -> Reply<'a, Result<(), OutboxError>>;

    /// Frees the space of messages that every reader has.
    fn sweep(&self) -> Reply<'_, Result<(), OutboxError>>;
}

/// The right to move a reader on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The reader.
    pub reader: String,
    /// The number of this right: higher than that of every earlier one.
    pub fence: i64,
    /// How long it holds after each [`mark`](Outbox::mark).
    pub lease: Duration,
}

/// The result of [`Outbox::take`].
#[derive(Clone, Debug)]
pub enum Take<P> {
    /// The reader is taken.
    Taken {
        /// The right to it.
        held: Held,
        /// Where to begin.
        position: P,
        /// What happened to the database since the reader was last taken.
        news: Option<News>,
    },
    /// Another relay has it.
    Busy,
    /// An operator has to start it again, for this reason.
    Stopped(String),
}

/// What happened to a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// A standby took over. A message may have left whose commit was lost.
    FailedOver,
    /// It was restored into another server. What was not surely published is published again.
    Restored,
}

/// How much is read at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLimit {
    /// Messages.
    pub messages_max: usize,
    /// Bytes of payload. The message with which they are more is the last one.
    pub bytes_max: usize,
}

/// Messages in their order.
#[derive(Clone, Debug)]
pub struct Page<P> {
    /// The messages; none if there are no more at present.
    pub messages: Vec<Envelope>,
    /// The position behind them.
    pub next: P,
    /// Whether there was more to look at when the page was read: an empty page of which this is
    /// true is followed by another look at once.
    pub look_again: bool,
}

/// A message that is set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aside {
    /// Its place in the outbox.
    pub sequence: i64,
    /// What becomes of it; `None` if it only waits for an earlier one of its key.
    pub end: Option<End>,
}

/// What becomes of a message after an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The destination has it.
    Done,
    /// It is tried again after this time.
    Retry(Duration, String),
    /// The same, and the attempt does not count: the destination as a whole was away.
    Postpone(Duration, String),
    /// It waits for an operator, and so do the later ones of its key.
    Hold(String),
    /// It is kept to be seen, and holds up nobody.
    Dead(String),
}

impl End {
    /// How the state is written down: null for a message that is done, 0 for one that is postponed.
    fn state(&self) -> Option<i16> {
        match self {
            End::Done => None,
            End::Retry(..) => Some(1),
            End::Postpone(..) => Some(0),
            End::Hold(_) => Some(2),
            End::Dead(_) => Some(3),
        }
    }

    fn pause(&self) -> Option<Duration> {
        match self {
            End::Retry(pause, _) | End::Postpone(pause, _) => Some(*pause),
            _ => None,
        }
    }

    fn reason(&self) -> Option<&str> {
        match self {
            End::Done => None,
            End::Retry(_, reason)
            | End::Postpone(_, reason)
            | End::Hold(reason)
            | End::Dead(reason) => Some(reason),
        }
    }
}

/// A message that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// The number of this attempt, from one.
    pub attempts: u32,
    /// The message.
    pub message: Envelope,
}

/// Why an outbox did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutboxError {
    /// Another relay has the reader.
    #[error("another relay has the reader")]
    Lost,
    /// More messages are set aside than may be.
    #[error("{0}")]
    TooManyAside(String),
    /// It has no tables for messages, or this role may not read them.
    #[error("{0}")]
    Unusable(String),
    /// It does not do this for an operator.
    #[error("{0}")]
    Refused(String),
    /// It cannot be reached, or failed.
    #[error("{0}")]
    Unavailable(String),
    /// A message in it cannot be read.
    #[error("a message in the outbox cannot be read: {0}")]
    Corrupt(String),
}

/// Reads the headers of a message, sorted by name. Values that are no texts are written as JSON:
/// only who inserts into SQLite by hand can make such.
pub(crate) fn read_headers(json: &str) -> Result<Vec<(String, String)>, OutboxError> {
    let object: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(json).map_err(|error| {
            OutboxError::Corrupt(format!("its headers are no JSON object: {error}"))
        })?;
    let mut headers: Vec<_> = object
        .into_iter()
        .map(|(name, value)| match value {
            serde_json::Value::String(text) => (name, text),
            other => (name, other.to_string()),
        })
        .collect();
    headers.sort();
    Ok(headers)
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
