//! The outbox in Postgres. `0007_outbox.sql` has the tables and functions, and says why a page is
//! what it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hapax::store::postgres::{ConnectOptions, Connection};
use hapax_core::flow::{Envelope, MessageId};
use hapax_core::time::Timestamp;
use tokio::sync::Mutex;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Row};

use super::{
    Aside, Due, End, Held, News, Outbox, OutboxError, Page, PageLimit, Reply, Take, micros,
    read_headers,
};

/// The outbox in a Postgres database, over one connection that is made anew when it is lost.
pub struct PostgresOutbox {
    options: ConnectOptions,
    /// The connection on which a reader was taken. A position is good for this one only: after a
    /// crash or a failover the database gives ids of transactions again, so nothing but
    /// [`take`](Outbox::take) makes a new one.
    session: Mutex<Option<Arc<Connection>>>,
    /// The connection of operators.
    aside: Mutex<Option<Arc<Connection>>>,
    /// The latest floor that a committed mark returned: it holds for every snapshot that is taken
    /// after that.
    floor: AtomicI64,
    /// How long a statement may take.
    timeout: Duration,
}

impl PostgresOutbox {
    /// An outbox in this database. It connects when it is first used.
    pub fn new(options: ConnectOptions) -> PostgresOutbox {
        PostgresOutbox {
            options,
            session: Mutex::new(None),
            aside: Mutex::new(None),
            floor: AtomicI64::new(0),
            timeout: Duration::from_secs(10),
        }
    }

    /// Asks on the connection of operators.
    pub(super) async fn query(
        &self,
        sql: &str,
        values: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, OutboxError> {
        let asked = self.query_for_operators(sql, values).await;
        asked.map_err(|failure| explain(&failure))
    }

    /// The same, for the operators of other tables.
    pub(crate) async fn query_for_operators(
        &self,
        sql: &str,
        values: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Failure> {
        self.open(&self.aside).await?;
        self.ask(&self.aside, sql, values).await
    }

    /// Asks on the connection on which the reader was taken.
    async fn query_held(
        &self,
        sql: &str,
        values: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, OutboxError> {
        let asked = self.ask(&self.session, sql, values).await;
        asked.map_err(|failure| explain(&failure))
    }

    /// Makes a connection if there is none.
    async fn open(&self, place: &Mutex<Option<Arc<Connection>>>) -> Result<(), Failure> {
        let mut slot = place.lock().await;
        if slot
            .as_ref()
            .is_none_or(|connection| connection.is_closed())
        {
            let opened = Connection::open(&self.options).await;
            let opened = opened.map_err(|error| Failure::Away(error.to_string()))?;
            *slot = Some(Arc::new(opened));
        }
        Ok(())
    }

    async fn ask(
        &self,
        place: &Mutex<Option<Arc<Connection>>>,
        sql: &str,
        values: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Failure> {
        let connection = place.lock().await.clone();
        let Some(connection) = connection.filter(|connection| !connection.is_closed()) else {
            return Err(Failure::Away("the connection was lost".into()));
        };
        let asked = connection.client().query_typed(sql, values);
        match tokio::time::timeout(self.timeout, asked).await {
            Ok(result) => result.map_err(Failure::Said),
            Err(_) => {
                // What the connection does is not known.
                *place.lock().await = None;
                let seconds = self.timeout.as_secs();
                Err(Failure::Away(format!(
                    "the database did not answer within {seconds} s"
                )))
            }
        }
    }
}

/// Why a database did not answer.
pub(crate) enum Failure {
    /// It cannot be reached, or did not answer in time.
    Away(String),
    /// What it said, or that the connection broke.
    Said(Error),
}

impl std::fmt::Debug for PostgresOutbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresOutbox")
            .field("database", &self.options.to_string())
            .finish_non_exhaustive()
    }
}

/// How far a reader has got: see `hapax.readers`.
#[derive(Clone, Debug)]
pub struct Position {
    lo: String,
    floor: i64,
    under_way: Option<UnderWay>,
}

/// The messages that a later snapshot sees and `lo` does not.
#[derive(Clone, Debug)]
struct UnderWay {
    hi: String,
    after: i64,
    /// The floor of `hi`, for when it becomes `lo`.
    floor: i64,
}

impl Position {
    fn hi(&self) -> Option<&str> {
        self.under_way.as_ref().map(|under_way| &*under_way.hi)
    }

    fn after(&self) -> i64 {
        self.under_way
            .as_ref()
            .map_or(-1, |under_way| under_way.after)
    }
}

impl Outbox for PostgresOutbox {
    type Position = Position;

    fn take<'a>(
        &'a self,
        reader: &'a str,
        owner: &'a str,
        lease: Duration,
    ) -> Reply<'a, Result<Take<Position>, OutboxError>> {
        Box::pin(async move {
            let sql = "SELECT fence, lo, hi, after, floor, mark, stopped, has_failed_over, was_restored \
                       FROM hapax.reader_take($1, $2, $3)";
            let lease_us = micros(lease);
            let values: [(&(dyn ToSql + Sync), Type); 3] = [
                (&reader, Type::TEXT),
                (&owner, Type::TEXT),
                (&lease_us, Type::INT8),
            ];
            let opened = self.open(&self.session).await;
            opened.map_err(|failure| explain(&failure))?;
            let rows = self.query_held(sql, &values).await?;
            let Some(row) = rows.first() else {
                return Ok(Take::Busy);
            };
            if let Some(reason) = get::<Option<String>>(row, "stopped")? {
                return Ok(Take::Stopped(reason));
            }
            self.floor.store(get(row, "mark")?, Ordering::SeqCst);
            let floor = get(row, "floor")?;
            let after = get(row, "after")?;
            // The floor of an earlier snapshot holds for a later one too.
            let under_way =
                get::<Option<String>>(row, "hi")?.map(|hi| UnderWay { hi, after, floor });
            let position = Position {
                lo: get(row, "lo")?,
                floor,
                under_way,
            };
            let held = Held {
                reader: reader.to_owned(),
                fence: get(row, "fence")?,
                lease,
            };
            let news = match (get(row, "was_restored")?, get(row, "has_failed_over")?) {
                (true, _) => Some(News::Restored),
                (false, true) => Some(News::FailedOver),
                (false, false) => None,
            };
            Ok(Take::Taken {
                held,
                position,
                news,
            })
        })
    }

    fn page<'a>(
        &'a self,
        position: &'a Position,
        limit: PageLimit,
    ) -> Reply<'a, Result<Page<Position>, OutboxError>> {
        Box::pin(async move {
            let sql = "SELECT hi, seq, id, at, topic, key, ordered, version, headers, payload \
                       FROM hapax.outbox_page($1, $2, $3, $4, $5, $6)";
            // Before the snapshot is taken, which the statement does.
            let floor = match &position.under_way {
                Some(under_way) => under_way.floor,
                None => self.floor.load(Ordering::SeqCst),
            };
            let (hi, after) = (position.hi(), position.after());
            let (rows, bytes) = (to_i32(limit.messages_max), to_i64(limit.bytes_max));
            let values: [(&(dyn ToSql + Sync), Type); 6] = [
                (&position.lo, Type::TEXT),
                (&hi, Type::TEXT),
                (&position.floor, Type::INT8),
                (&after, Type::INT8),
                (&rows, Type::INT4),
                (&bytes, Type::INT8),
            ];
            let rows = self.query_held(sql, &values).await?;
            let [first, rest @ ..] = rows.as_slice() else {
                return Err(OutboxError::Corrupt("a page has no snapshot".into()));
            };
            let hi: String = get(first, "hi")?;
            let messages: Vec<Envelope> = rest.iter().map(envelope).collect::<Result<_, _>>()?;
            let next = match messages.last() {
                Some(last) => Position {
                    under_way: Some(UnderWay {
                        hi,
                        after: last.sequence,
                        floor,
                    }),
                    ..position.clone()
                },
                None => Position {
                    lo: hi,
                    floor,
                    under_way: None,
                },
            };
            let look_again = !messages.is_empty() || position.under_way.is_some();
            Ok(Page {
                messages,
                next,
                look_again,
            })
        })
    }

    fn mark<'a>(
        &'a self,
        held: &'a Held,
        position: &'a Position,
        published: u64,
        aside: &'a [Aside],
    ) -> Reply<'a, Result<(), OutboxError>> {
        Box::pin(async move {
            let sql =
                "SELECT hapax.reader_mark($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";
            let (hi, after) = (position.hi(), position.after());
            let published = i64::try_from(published).unwrap_or(i64::MAX);
            let lease = micros(held.lease);
            let sequences: Vec<i64> = aside.iter().map(|aside| aside.sequence).collect();
            let states: Vec<i16> = ends(aside, |end| end.state().unwrap_or(1), 1);
            let attempts: Vec<i32> = ends(aside, |_| 1, 0);
            let pauses: Vec<Option<i64>> = ends(aside, |end| end.pause().map(micros), None);
            let reasons: Vec<Option<&str>> = ends(aside, End::reason, None);
            let values: [(&(dyn ToSql + Sync), Type); 13] = [
                (&held.reader, Type::TEXT),
                (&held.fence, Type::INT8),
                (&position.lo, Type::TEXT),
                (&hi, Type::TEXT),
                (&after, Type::INT8),
                (&position.floor, Type::INT8),
                (&published, Type::INT8),
                (&lease, Type::INT8),
                (&sequences, Type::INT8_ARRAY),
                (&states, Type::INT2_ARRAY),
                (&attempts, Type::INT4_ARRAY),
                (&pauses, Type::INT8_ARRAY),
                (&reasons, Type::TEXT_ARRAY),
            ];
            let floor: i64 = one(&self.query_held(sql, &values).await?)?;
            // Marks of one reader are one after the other, and their floors grow.
            self.floor.store(floor, Ordering::SeqCst);
            Ok(())
        })
    }

    fn blocked<'a>(
        &'a self,
        held: &'a Held,
    ) -> Reply<'a, Result<Vec<(String, String)>, OutboxError>> {
        Box::pin(async move {
            let sql = "SELECT topic, key FROM hapax.deliveries_keys($1)";
            let rows = self.query_held(sql, &[(&held.reader, Type::TEXT)]).await?;
            let key = |row: &Row| Ok((get(row, "topic")?, get(row, "key")?));
            rows.iter().map(key).collect()
        })
    }

    fn due<'a>(
        &'a self,
        held: &'a Held,
        limit: PageLimit,
        patience: Duration,
    ) -> Reply<'a, Result<Vec<Due>, OutboxError>> {
        Box::pin(async move {
            let sql = "SELECT attempts, seq, id, at, topic, key, ordered, version, headers, payload \
                       FROM hapax.deliveries_take($1, $2, $3, $4, $5)";
            let (rows, bytes) = (to_i32(limit.messages_max), to_i64(limit.bytes_max));
            let patience = micros(patience);
            let values: [(&(dyn ToSql + Sync), Type); 5] = [
                (&held.reader, Type::TEXT),
                (&held.fence, Type::INT8),
                (&rows, Type::INT4),
                (&bytes, Type::INT8),
                (&patience, Type::INT8),
            ];
            let due = |row: &Row| {
                Ok(Due {
                    attempts: get::<i32>(row, "attempts")?.unsigned_abs(),
                    message: envelope(row)?,
                })
            };
            self.query_held(sql, &values)
                .await?
                .iter()
                .map(due)
                .collect()
        })
    }

    fn end<'a>(
        &'a self,
        held: &'a Held,
        sequence: i64,
        end: &'a End,
    ) -> Reply<'a, Result<bool, OutboxError>> {
        Box::pin(async move {
            let sql = "SELECT hapax.delivery_end($1, $2, $3, $4, $5, $6)";
            let (state, pause, reason) = (end.state(), end.pause().map(micros), end.reason());
            let values: [(&(dyn ToSql + Sync), Type); 6] = [
                (&held.reader, Type::TEXT),
                (&held.fence, Type::INT8),
                (&sequence, Type::INT8),
                (&state, Type::INT2),
                (&pause, Type::INT8),
                (&reason, Type::TEXT),
            ];
            one(&self.query_held(sql, &values).await?)
        })
    }

    fn release<'a>(&'a self, held: &'a Held) -> Reply<'a, Result<(), OutboxError>> {
        Box::pin(async move {
            let sql = "SELECT hapax.reader_release($1, $2)";
            let values: [(&(dyn ToSql + Sync), Type); 2] =
                [(&held.reader, Type::TEXT), (&held.fence, Type::INT8)];
            self.query_held(sql, &values).await.map(drop)
        })
    }

    fn stop<'a>(&'a self, held: &'a Held, reason: &'a str) -> Reply<'a, Result<(), OutboxError>> {
        Box::pin(async move {
            let sql = "SELECT hapax.reader_stop($1, $2, $3)";
            let values: [(&(dyn ToSql + Sync), Type); 3] = [
                (&held.reader, Type::TEXT),
                (&held.fence, Type::INT8),
                (&reason, Type::TEXT),
            ];
            self.query_held(sql, &values).await.map(drop)
        })
    }

    fn sweep(&self) -> Reply<'_, Result<(), OutboxError>> {
        Box::pin(async move {
            self.query_held("SELECT hapax.outbox_sweep()", &[])
                .await
                .map(drop)
        })
    }
}

/// A value for each message that is set aside.
fn ends<'a, T: Copy>(aside: &'a [Aside], of: impl Fn(&'a End) -> T, without: T) -> Vec<T> {
    let value = |aside: &'a Aside| aside.end.as_ref().map_or(without, &of);
    aside.iter().map(value).collect()
}

fn envelope(row: &Row) -> Result<Envelope, OutboxError> {
    Ok(Envelope {
        sequence: get(row, "seq")?,
        id: MessageId::from_bytes(get::<uuid::Uuid>(row, "id")?.into_bytes()),
        at: Timestamp::from_micros(get::<i64>(row, "at")?.unsigned_abs()),
        topic: get(row, "topic")?,
        key: get(row, "key")?,
        ordered: get(row, "ordered")?,
        version: get(row, "version")?,
        headers: read_headers(get(row, "headers")?)?,
        payload: Bytes::from(get::<Vec<u8>>(row, "payload")?),
    })
}

pub(crate) fn get<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a Row,
    column: &str,
) -> Result<T, OutboxError> {
    row.try_get(column)
        .map_err(|error| OutboxError::Corrupt(error.to_string()))
}

pub(crate) fn one<T: for<'a> tokio_postgres::types::FromSql<'a>>(
    rows: &[Row],
) -> Result<T, OutboxError> {
    let row = rows
        .first()
        .ok_or_else(|| OutboxError::Corrupt("a function returned nothing".into()))?;
    row.try_get(0)
        .map_err(|error| OutboxError::Corrupt(error.to_string()))
}

fn to_i32(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn to_i64(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn explain(failure: &Failure) -> OutboxError {
    let error = match failure {
        Failure::Away(why) => return OutboxError::Unavailable(why.clone()),
        Failure::Said(error) => error,
    };
    let Some(said) = error.as_db_error() else {
        return OutboxError::Unavailable(format!("the connection was lost ({error})"));
    };
    match said.code().code() {
        "HX012" => OutboxError::Lost,
        "HX013" => OutboxError::TooManyAside(said.message().to_owned()),
        "42883" | "3F000" => {
            OutboxError::Unusable("the database has no outbox: run `hapax migrate`".to_owned())
        }
        "42501" => OutboxError::Unusable(format!(
            "{}: run `hapax migrate --role ROLE`",
            said.message()
        )),
        _ => OutboxError::Unavailable(said.message().to_owned()),
    }
}
