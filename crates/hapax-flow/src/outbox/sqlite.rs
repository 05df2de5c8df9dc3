//! The outbox in the user's own SQLite file. There is one writer, so the order of the numbers is
//! the order of the commits, and a position is a number.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hapax_core::flow::{Envelope, MessageId};
use hapax_core::time::Timestamp;
use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension, Row, Transaction, TransactionBehavior,
    named_params, params,
};
use tokio::sync::Mutex;

use super::{
    Aside, Due, End, Held, News, Outbox, OutboxError, Page, PageLimit, Reply, Take, micros,
    read_headers,
};

/// Messages that may be set aside for one reader.
const ASIDE_MAX: i64 = 1_000_000;
/// How long a statement waits for other writers of the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Messages that one sweep removes.
const SWEEP_ROWS: i64 = 10_000;

/// The outbox in a SQLite file. It was made by opening the file as a
/// [`Guest`](hapax::store::guest::Guest).
pub struct SqliteOutbox {
    path: PathBuf,
    connection: Arc<Mutex<Option<Connection>>>,
}

impl SqliteOutbox {
    /// The outbox in this file. It is opened when it is first used.
    pub fn new(path: impl Into<PathBuf>) -> SqliteOutbox {
        SqliteOutbox {
            path: path.into(),
            connection: Arc::new(Mutex::new(None)),
        }
    }

    /// Runs work on the connection, on a thread that may block.
    pub(crate) fn on_file<'a, T: Send + 'static>(
        &'a self,
        work: impl FnOnce(&mut Connection) -> Result<T, OutboxError> + Send + 'static,
    ) -> Reply<'a, Result<T, OutboxError>> {
        let path = self.path.clone();
        Box::pin(async move {
            let mut slot = self.connection.clone().lock_owned().await;
            let blocking = tokio::task::spawn_blocking(move || {
                if slot.is_none() {
                    *slot = Some(open(&path)?);
                }
                let connection = slot.as_mut().expect("it was just opened");
                let result = work(connection);
                // A file that failed is opened anew.
                if let Err(OutboxError::Unavailable(_)) = result {
                    *slot = None;
                }
                result
            });
            match blocking.await {
                Ok(result) => result,
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Err(_) => Err(OutboxError::Unavailable("the program is stopping".into())),
            }
        })
    }

    /// Runs work in a transaction that holds the write lock from its beginning.
    pub(crate) fn write<'a, T: Send + 'static>(
        &'a self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, OutboxError> + Send + 'static,
    ) -> Reply<'a, Result<T, OutboxError>> {
        self.on_file(move |connection| {
            let transaction = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .map_err(explain)?;
            let result = work(&transaction)?;
            transaction.commit().map_err(explain)?;
            Ok(result)
        })
    }
}

impl std::fmt::Debug for SqliteOutbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteOutbox")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

fn open(path: &Path) -> Result<Connection, OutboxError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = Connection::open_with_flags(path, flags);
    let explained = |error: rusqlite::Error| {
        OutboxError::Unavailable(format!("{} cannot be opened: {error}", path.display()))
    };
    let connection = opened.map_err(explained)?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(explained)?;
    // A mark that were lost would only repeat messages, but a fence must not be given twice.
    connection
        .pragma_update(None, "synchronous", "FULL")
        .and_then(|()| connection.pragma_update(None, "foreign_keys", "ON"))
        .map_err(explained)?;
    Ok(connection)
}

const COLUMNS: &str = "seq, id, at, topic, key, ordered, version, headers, payload";

impl Outbox for SqliteOutbox {
    /// The number of the last message that is published, or set aside.
    type Position = i64;

    fn take<'a>(
        &'a self,
        reader: &'a str,
        owner: &'a str,
        lease: Duration,
    ) -> Reply<'a, Result<Take<i64>, OutboxError>> {
        let (reader, owner) = (reader.to_owned(), owner.to_owned());
        self.write(move |tx| take(tx, reader, &owner, lease))
    }

    fn page<'a>(
        &'a self,
        position: &'a i64,
        limit: PageLimit,
    ) -> Reply<'a, Result<Page<i64>, OutboxError>> {
        let after = *position;
        self.on_file(move |connection| {
            let sql =
                format!("SELECT {COLUMNS} FROM hapax_outbox WHERE seq > ?1 ORDER BY seq LIMIT ?2");
            let rows = i64::try_from(limit.messages_max).unwrap_or(i64::MAX);
            let messages = envelopes(connection, &sql, params![after, rows], limit.bytes_max)?;
            let next = messages.last().map_or(after, |last| last.sequence);
            if !messages.is_empty() {
                make_durable(connection)?;
            }
            Ok(Page {
                look_again: !messages.is_empty(),
                messages,
                next,
            })
        })
    }

    fn mark<'a>(
        &'a self,
        held: &'a Held,
        position: &'a i64,
        published: u64,
        aside: &'a [Aside],
    ) -> Reply<'a, Result<(), OutboxError>> {
        let (held, position, aside) = (held.clone(), *position, aside.to_vec());
        self.write(move |tx| mark(tx, &held, position, published, &aside))
    }

    fn blocked<'a>(
        &'a self,
        held: &'a Held,
    ) -> Reply<'a, Result<Vec<(String, String)>, OutboxError>> {
        let reader = held.reader.clone();
        self.on_file(move |connection| {
            let sql = "SELECT DISTINCT topic, key FROM hapax_deliveries \
                       WHERE reader = ?1 AND state <> 3 AND ordered AND key IS NOT NULL";
            let mut statement = connection.prepare_cached(sql).map_err(explain)?;
            let rows = statement.query_map([&reader], |row| Ok((row.get(0)?, row.get(1)?)));
            rows.map_err(explain)?
                .collect::<Result<_, _>>()
                .map_err(explain)
        })
    }

    fn due<'a>(
        &'a self,
        held: &'a Held,
        limit: PageLimit,
        patience: Duration,
    ) -> Reply<'a, Result<Vec<Due>, OutboxError>> {
        let held = held.clone();
        self.on_file(move |connection| {
            let now = now();
            let sql =
                "SELECT 1 FROM hapax_deliveries WHERE reader = ?1 AND state = 1 AND due_at <= ?2";
            let is_due = connection
                .prepare_cached(sql)
                .and_then(|mut statement| statement.exists(params![held.reader, now]));
            if !is_due.map_err(explain)? {
                return Ok(Vec::new());
            }
            let tx = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .map_err(explain)?;
            check_fence(&tx, &held)?;
            let due = take_due(&tx, &held, limit, patience, now)?;
            tx.commit().map_err(explain)?;
            Ok(due)
        })
    }

    fn end<'a>(
        &'a self,
        held: &'a Held,
        sequence: i64,
        end: &'a End,
    ) -> Reply<'a, Result<bool, OutboxError>> {
        let (held, end) = (held.clone(), end.clone());
        self.write(move |tx| {
            check_fence(tx, &held)?;
            end_delivery(tx, &held, sequence, &end)
        })
    }

    fn release<'a>(&'a self, held: &'a Held) -> Reply<'a, Result<(), OutboxError>> {
        let held = held.clone();
        self.write(move |tx| {
            let sql = "UPDATE hapax_readers SET lease_until = 0, owner = NULL WHERE name = ?1 AND fence = ?2";
            execute(tx, sql, params![held.reader, held.fence]).map(drop)
        })
    }

    fn stop<'a>(&'a self, held: &'a Held, reason: &'a str) -> Reply<'a, Result<(), OutboxError>> {
        let (held, reason) = (held.clone(), reason.to_owned());
        self.write(move |tx| {
            check_fence(tx, &held)?;
            let sql = "UPDATE hapax_readers SET lease_until = 0, owner = NULL, stopped = ?2 WHERE name = ?1";
            execute(tx, sql, params![held.reader, reason]).map(drop)
        })
    }

    fn sweep(&self) -> Reply<'_, Result<(), OutboxError>> {
        self.write(|tx| {
            let sql = "DELETE FROM hapax_outbox WHERE seq IN (\
                       SELECT seq FROM hapax_outbox WHERE seq <= (SELECT min(after) FROM hapax_readers) ORDER BY seq LIMIT ?1)";
            execute(tx, sql, params![SWEEP_ROWS]).map(drop)
        })
    }
}

/// Commits with a flush, and with it everything that was committed before: a connection of the user
/// may commit without one (`synchronous = NORMAL`), and what leaves must not be lost to a power cut.
fn make_durable(connection: &Connection) -> Result<(), OutboxError> {
    let sql = "UPDATE hapax_readers SET published_at = published_at";
    connection.execute(sql, []).map(drop).map_err(explain)
}

/// Makes numbers go on above every one that was used. They begin anew if the counter is lost, as in
/// a copy of the tables alone: then what is there is numbered anew, and published again. Returns
/// whether that was so.
fn mend_counter(tx: &Transaction<'_>) -> Result<bool, OutboxError> {
    let number = |sql: &str| {
        tx.query_row(sql, [], |row| row.get::<_, i64>(0))
            .map_err(explain)
    };
    let counter =
        number("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'hapax_outbox'")?;
    let used = number(
        "SELECT max(coalesce((SELECT max(after) FROM hapax_readers), 0), coalesce((SELECT max(seq) FROM hapax_deliveries), 0))",
    )?;
    if counter >= used {
        return Ok(false);
    }
    let used = used.max(counter);
    execute(tx, "UPDATE hapax_outbox SET seq = seq + ?1", params![used])?;
    execute(
        tx,
        "DELETE FROM sqlite_sequence WHERE name = 'hapax_outbox'",
        [],
    )?;
    let sql = "INSERT INTO sqlite_sequence (name, seq) VALUES ('hapax_outbox', ?1)";
    execute(tx, sql, params![used.saturating_add(counter)])?;
    Ok(true)
}

fn take(
    tx: &Transaction<'_>,
    reader: String,
    owner: &str,
    lease: Duration,
) -> Result<Take<i64>, OutboxError> {
    let now = now();
    let is_renumbered = mend_counter(tx)?;
    // The first reader of all gets every message that is there; a later one those from now on.
    let sql = "INSERT INTO hapax_readers (name, after, created_at) SELECT ?1, \
               CASE WHEN EXISTS (SELECT 1 FROM hapax_readers) \
               THEN coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'hapax_outbox'), 0) ELSE 0 END, ?2 \
               WHERE true ON CONFLICT (name) DO NOTHING";
    execute(tx, sql, params![reader, now])?;
    let sql = "SELECT owner, lease_until, stopped, fence, after FROM hapax_readers WHERE name = ?1";
    let found = tx.query_row(sql, [&reader], |row| {
        let owner: Option<String> = row.get(0)?;
        Ok((
            owner,
            row.get::<_, i64>(1)?,
            row.get::<_, Option<String>>(2)?,
            row.get::<_, i64>(3)?,
            row.get(4)?,
        ))
    });
    let (last_owner, lease_until, stopped, fence, after) = found.map_err(explain)?;
    if let Some(reason) = stopped {
        return Ok(Take::Stopped(reason));
    }
    if last_owner.as_deref() != Some(owner) && lease_until > now {
        return Ok(Take::Busy);
    }
    let sql =
        "UPDATE hapax_readers SET owner = ?2, fence = fence + 1, lease_until = ?3 WHERE name = ?1";
    execute(
        tx,
        sql,
        params![reader, owner, now.saturating_add(micros(lease))],
    )?;
    Ok(Take::Taken {
        held: Held {
            reader,
            fence: fence + 1,
            lease,
        },
        position: after,
        news: is_renumbered.then_some(News::Restored),
    })
}

fn mark(
    tx: &Transaction<'_>,
    held: &Held,
    position: i64,
    published: u64,
    aside: &[Aside],
) -> Result<(), OutboxError> {
    check_fence(tx, held)?;
    let now = now();
    let sql = "UPDATE hapax_readers SET after = ?2, lease_until = ?3, published = published + ?4, \
               published_at = CASE WHEN ?4 > 0 THEN ?5 ELSE published_at END WHERE name = ?1";
    let published = i64::try_from(published).unwrap_or(i64::MAX);
    let lease_until = now.saturating_add(micros(held.lease));
    execute(
        tx,
        sql,
        params![held.reader, position, lease_until, published, now],
    )?;
    for one in aside {
        set_aside(tx, held, one, now)?;
    }
    if aside.is_empty() {
        return Ok(());
    }
    let sql =
        "UPDATE hapax_readers SET set_aside = set_aside + ?2 WHERE name = ?1 RETURNING set_aside";
    let count = i64::try_from(aside.len()).unwrap_or(i64::MAX);
    let count: i64 = tx
        .query_row(sql, params![held.reader, count], |row| row.get(0))
        .map_err(explain)?;
    if count > ASIDE_MAX {
        let reader = &held.reader;
        let reason =
            format!("more than {ASIDE_MAX} messages are set aside for the reader {reader}");
        return Err(OutboxError::TooManyAside(reason));
    }
    Ok(())
}

/// Copies a message to those that are set aside. One that only follows is due when nothing of its
/// key is before it.
fn set_aside(
    tx: &Transaction<'_>,
    held: &Held,
    aside: &Aside,
    now: i64,
) -> Result<(), OutboxError> {
    let sql = format!(
        "INSERT INTO hapax_deliveries (reader, state, attempts, due_at, reason, {COLUMNS}) \
         SELECT :reader, :state, :attempts, CASE WHEN :attempts > 0 THEN :due_at WHEN EXISTS (\
           SELECT 1 FROM hapax_deliveries AS e WHERE e.reader = :reader AND e.topic = o.topic AND e.key = o.key AND e.seq < o.seq \
           AND e.state <> 3 AND e.ordered AND e.key IS NOT NULL) THEN NULL ELSE :now END, :reason, {COLUMNS} \
         FROM hapax_outbox AS o WHERE o.seq = :seq"
    );
    let end = aside.end.as_ref();
    let values = named_params! {
        ":reader": held.reader,
        ":state": end.and_then(End::state).unwrap_or(1),
        ":attempts": i64::from(end.is_some()),
        ":due_at": end.and_then(End::pause).map(|pause| now.saturating_add(micros(pause))),
        ":now": now,
        ":reason": end.and_then(End::reason),
        ":seq": aside.sequence,
    };
    match execute(tx, &sql, values)? {
        1 => Ok(()),
        _ => Err(OutboxError::Corrupt(
            "one that was to be set aside is no longer there".into(),
        )),
    }
}

fn take_due(
    tx: &Transaction<'_>,
    held: &Held,
    limit: PageLimit,
    patience: Duration,
    now: i64,
) -> Result<Vec<Due>, OutboxError> {
    let sql = format!(
        "SELECT {COLUMNS}, attempts FROM hapax_deliveries WHERE reader = ?1 AND state = 1 AND due_at <= ?2 ORDER BY due_at LIMIT ?3"
    );
    let mut statement = tx.prepare_cached(&sql).map_err(explain)?;
    let rows = i64::try_from(limit.messages_max).unwrap_or(i64::MAX);
    let mut rows = statement
        .query(params![held.reader, now, rows])
        .map_err(explain)?;
    let mut due = Vec::new();
    let mut bytes = 0;
    while let Some(row) = rows.next().map_err(explain)? {
        let message = envelope(row)?;
        let attempts: u32 = row.get(9).map_err(explain)?;
        bytes += message.payload.len();
        due.push(Due {
            attempts: attempts + 1,
            message,
        });
        if bytes > limit.bytes_max {
            break;
        }
    }
    let sql = "UPDATE hapax_deliveries SET attempts = attempts + 1, due_at = ?3 WHERE reader = ?1 AND seq = ?2";
    for one in &due {
        let until = now.saturating_add(micros(patience));
        execute(tx, sql, params![held.reader, one.message.sequence, until])?;
    }
    Ok(due)
}

fn end_delivery(
    tx: &Transaction<'_>,
    held: &Held,
    sequence: i64,
    end: &End,
) -> Result<bool, OutboxError> {
    let now = now();
    let sql = "SELECT topic, CASE WHEN ordered THEN key END FROM hapax_deliveries WHERE reader = ?1 AND seq = ?2";
    let found = tx.query_row(sql, params![held.reader, sequence], |row| {
        Ok((row.get(0)?, row.get(1)?))
    });
    let found: Option<(String, Option<String>)> = found.optional().map_err(explain)?;
    match end.state() {
        None => {
            let sql = "DELETE FROM hapax_deliveries WHERE reader = ?1 AND seq = ?2";
            if execute(tx, sql, params![held.reader, sequence])? == 1 {
                let sql = "UPDATE hapax_readers SET set_aside = set_aside - 1, published = published + 1, published_at = ?2 WHERE name = ?1";
                execute(tx, sql, params![held.reader, now])?;
            }
        }
        Some(state) => {
            let sql = "UPDATE hapax_deliveries SET state = max(?3, 1), attempts = attempts - (?3 = 0), due_at = ?4, reason = ?5 WHERE reader = ?1 AND seq = ?2";
            let due_at = end.pause().map(|pause| now.saturating_add(micros(pause)));
            execute(
                tx,
                sql,
                params![held.reader, sequence, state, due_at, end.reason()],
            )?;
        }
    }
    match found {
        Some((topic, Some(key))) => wake_next(tx, &held.reader, &topic, &key, now),
        Some((_, None)) => Ok(true),
        None => Ok(false),
    }
}

/// Makes the first message of a key due, if it has waited for one that is gone. Returns whether
/// there is none.
pub(super) fn wake_next(
    tx: &Transaction<'_>,
    reader: &str,
    topic: &str,
    key: &str,
    now: i64,
) -> Result<bool, OutboxError> {
    let sql = "SELECT min(seq) FROM hapax_deliveries WHERE reader = ?1 AND topic = ?2 AND key = ?3 AND state <> 3 AND ordered AND key IS NOT NULL";
    let next: Option<i64> = tx
        .query_row(sql, params![reader, topic, key], |row| row.get(0))
        .map_err(explain)?;
    let Some(next) = next else {
        return Ok(true);
    };
    let sql = "UPDATE hapax_deliveries SET due_at = ?3 WHERE reader = ?1 AND seq = ?2 AND state = 1 AND due_at IS NULL";
    execute(tx, sql, params![reader, next, now])?;
    Ok(false)
}

fn check_fence(tx: &Transaction<'_>, held: &Held) -> Result<(), OutboxError> {
    let sql = "SELECT 1 FROM hapax_readers WHERE name = ?1 AND fence = ?2";
    let statement = tx.prepare_cached(sql);
    let is_held =
        statement.and_then(|mut statement| statement.exists(params![held.reader, held.fence]));
    match is_held.map_err(explain)? {
        true => Ok(()),
        false => Err(OutboxError::Lost),
    }
}

pub(crate) fn execute(
    tx: &Transaction<'_>,
    sql: &str,
    values: impl rusqlite::Params,
) -> Result<usize, OutboxError> {
    let statement = tx.prepare_cached(sql);
    statement
        .and_then(|mut statement| statement.execute(values))
        .map_err(explain)
}

/// Messages up to the one with which they have more than `bytes_max` bytes.
fn envelopes(
    connection: &Connection,
    sql: &str,
    values: impl rusqlite::Params,
    bytes_max: usize,
) -> Result<Vec<Envelope>, OutboxError> {
    let mut statement = connection.prepare_cached(sql).map_err(explain)?;
    let mut rows = statement.query(values).map_err(explain)?;
    let mut messages = Vec::new();
    let mut bytes = 0;
    while bytes <= bytes_max
        && let Some(row) = rows.next().map_err(explain)?
    {
        let message = envelope(row)?;
        bytes += message.payload.len();
        messages.push(message);
    }
    Ok(messages)
}

fn envelope(row: &Row<'_>) -> Result<Envelope, OutboxError> {
    let text = |column| -> rusqlite::Result<String> { row.get(column) };
    // Other languages may insert texts and blobs as they like.
    let payload = row.get_ref(8).map_err(explain)?;
    let payload = payload
        .as_bytes_or_null()
        .map_err(|error| OutboxError::Corrupt(error.to_string()))?;
    Ok(Envelope {
        sequence: row.get(0).map_err(explain)?,
        id: MessageId::from_bytes(row.get(1).map_err(explain)?),
        at: Timestamp::from_micros(row.get::<_, i64>(2).map_err(explain)?.unsigned_abs()),
        topic: text(3).map_err(explain)?,
        key: row.get(4).map_err(explain)?,
        ordered: row.get(5).map_err(explain)?,
        version: row.get(6).map_err(explain)?,
        headers: read_headers(&text(7).map_err(explain)?)?,
        payload: Bytes::copy_from_slice(payload.unwrap_or_default()),
    })
}

/// The clock of this machine: every process with this file has the same one.
pub(crate) fn now() -> i64 {
    let now = Timestamp::from_system_time(SystemTime::now());
    i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn explain(error: rusqlite::Error) -> OutboxError {
    let said = error.to_string();
    if said.contains("no such table: hapax_") || said.contains("no such table: sqlite_sequence") {
        return OutboxError::Unusable(
            "the file has no outbox: open it once as a Guest with this version of Hapax".into(),
        );
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => OutboxError::Unusable(said),
        Some(_) => OutboxError::Unavailable(said),
        None => OutboxError::Corrupt(said),
    }
}
