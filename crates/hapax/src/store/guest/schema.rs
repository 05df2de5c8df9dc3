//! The tables, and opening the file.
//!
//! The file belongs to the user, so the schema is plain: an old SQLite or another tool can read it,
//! and every name begins with `hapax_`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax_core::operation::{self, Secret};
use hapax_core::record::Fence;
use hapax_core::store::StoreError;
use hapax_core::time::{Clock, Timestamp};
use rusqlite::{
    Connection, OpenFlags, OptionalExtension, Row, Transaction, TransactionBehavior, params,
};

use super::error::{is_busy, store_error};
use super::rest::Rest;
use crate::clock::{BootClock, boot_id};
use crate::store::codec::micros;
use crate::store::sqlite::OpenError;
use crate::store::sqlite::schema::APPLICATION_ID;
use crate::store::sqlite_kit::error::{explain, unreadable};
use crate::store::{random_secret, sqlite_kit};

/// The newest format that this version knows.
const FORMAT: i64 = 5;

/// Creates the tables of format 1. Never edit it once it was released; add another step.
const TABLES: &str = concat!(
    "
    CREATE TABLE hapax_meta (
        only     INTEGER PRIMARY KEY CHECK (only = 0),
        format   INTEGER NOT NULL,
        secret   BLOB    NOT NULL,            -- makes operation ids and tokens unguessable
        epoch    INTEGER NOT NULL DEFAULT 0,  -- counts every forget
        floor    INTEGER NOT NULL DEFAULT 0,  -- the highest fence of any record ever removed
        boot_id  TEXT    NOT NULL DEFAULT '', -- the boot in which the file was first opened,
        boot_us  INTEGER NOT NULL DEFAULT 0,  -- time since that boot when it was,
        clock_us INTEGER NOT NULL DEFAULT 0,  -- and the store's clock then: the same for every process of this boot
        last_us  INTEGER NOT NULL DEFAULT 0   -- about the latest time of any change: no clock begins earlier
    );

    -- One for each key: what every decision reads.
    CREATE TABLE hapax_heads (
        id              BLOB    PRIMARY KEY NOT NULL,
        state           INTEGER NOT NULL,
        fence           INTEGER NOT NULL,
        token           BLOB    NOT NULL,
        version         INTEGER NOT NULL,
        attempts        INTEGER NOT NULL,
        lease_until     INTEGER NOT NULL,
        fingerprint     BLOB,                    -- null: it was forgotten
        policy          TEXT,                    -- what the fingerprint covers
        created_at      INTEGER NOT NULL,
        claimed_at      INTEGER NOT NULL,
        finished_at     INTEGER NOT NULL,
        expires_at      INTEGER NOT NULL,
        tombstone_until INTEGER NOT NULL,
        status          INTEGER,
        answer          INTEGER,                 -- null: none is kept
        due             INTEGER,                 -- when the sweep looks at it; null: never
        namespace       TEXT    NOT NULL,
        principal       TEXT,                    -- null: anonymous
        method          TEXT    NOT NULL,
        path            TEXT    NOT NULL,
        key             TEXT    NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX hapax_due ON hapax_heads (due) WHERE due IS NOT NULL;

    -- The volume, apart from the heads and appended.
    CREATE TABLE hapax_answers (
        answer  INTEGER PRIMARY KEY,
        content BLOB    NOT NULL
    );

    -- What was done by hand, by whom and why. No record takes its entries with it.
    CREATE TABLE hapax_audit (
        sequence  INTEGER PRIMARY KEY AUTOINCREMENT, -- without gaps, and none is given twice
        at        INTEGER NOT NULL,
        action    TEXT    NOT NULL,
        signed_by TEXT    NOT NULL,
        reason    TEXT    NOT NULL,
        id        BLOB,                              -- null, and so are all that follow: no record was changed
        namespace TEXT,
        principal TEXT,                              -- null: anonymous
        method    TEXT,
        path      TEXT,
        key       TEXT,
        before    INTEGER,
        after     INTEGER,
        status    INTEGER,                           -- null: there is none
        fence     INTEGER,
        version   INTEGER,
        checksum  INTEGER NOT NULL
    );
    CREATE INDEX hapax_audit_of_record ON hapax_audit (id) WHERE id IS NOT NULL;
",
    include_str!("join.sql")
);

/// Turns format 1 into format 2.
const LIVES: &str = "
    -- From when on each life of a key has an operation id of its own, by a record's created_at.
    ALTER TABLE hapax_meta ADD COLUMN lives_us INTEGER NOT NULL DEFAULT 0;
    -- When the life began that an entry is about; 0 in entries from before.
    ALTER TABLE hapax_audit ADD COLUMN created_at INTEGER NOT NULL DEFAULT 0;
";

/// Turns format 2 into format 3.
const REQUESTS: &str = "
    -- The request that made the latest attempt; null: there was none, or the record is from before.
    ALTER TABLE hapax_heads ADD COLUMN request_id TEXT;
";

/// Turns format 3 into format 4.
const OUTBOX: &str = include_str!("outbox.sql");

/// Turns format 4 into format 5.
const INBOX: &str = include_str!("inbox.sql");

/// Opening waits for locks this many times as long as a write does.
const OPEN_TIMEOUTS: u32 = 5;
/// How far `last_us` may lag behind, so that it is rarely written.
const CLOCK_STEP: Duration = Duration::from_secs(1);

/// A file that is open for writing.
pub(super) struct Opened {
    pub(super) path: PathBuf,
    pub(super) connection: Connection,
    pub(super) clock: Arc<dyn Clock>,
}

pub(super) fn open(
    path: &Path,
    clock: Option<Arc<dyn Clock>>,
    timeout: Duration,
) -> Result<Opened, OpenError> {
    sqlite_kit::check_version()?;
    if path.as_os_str().is_empty() || path == Path::new(":memory:") {
        return Err(OpenError::NotAPath);
    }
    let timeout = timeout * OPEN_TIMEOUTS;
    let mut connection = connect(path, OpenFlags::SQLITE_OPEN_CREATE, timeout)?;
    // The canonical path stays valid if the process changes its directory, or a link changes.
    let path = std::fs::canonicalize(path).map_err(|source| OpenError::Io {
        path: path.to_owned(),
        source,
    })?;
    refuse_own_store(&path, &connection, timeout)?;
    keep_log(&path, &connection, timeout)?;
    let anchored = prepare(&path, &mut connection, clock.as_deref(), timeout)?;
    Ok(Opened {
        path,
        connection,
        clock: clock.unwrap_or_else(|| Arc::new(anchored)),
    })
}

/// A connection for writing. It has no busy timeout: its user retries.
pub(super) fn connect(
    path: &Path,
    more: OpenFlags,
    timeout: Duration,
) -> Result<Connection, OpenError> {
    let open = || {
        // Without the flag for URIs: a path that looks like a URI is still a path.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | more;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.set_prepared_statement_cache_capacity(64);
        connection.busy_timeout(Duration::ZERO)?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "secure_delete", "ON")?;
        Ok(connection)
    };
    until_unlocked(path, timeout, open)
}

/// A read-only connection.
pub(super) fn connect_to_read(path: &Path, timeout: Duration) -> Result<Connection, OpenError> {
    let connection = connect(path, OpenFlags::empty(), timeout)?;
    let only_read = connection
        .pragma_update(None, "query_only", "ON")
        .and_then(|()| connection.busy_timeout(timeout));
    only_read.map_err(|source| explain(path, source))?;
    Ok(connection)
}

/// Refuses the file of an embedded store: its owner assumes that nothing else writes there, and its
/// layout is another.
fn refuse_own_store(
    path: &Path,
    connection: &Connection,
    timeout: Duration,
) -> Result<(), OpenError> {
    let application =
        || connection.pragma_query_value(None, "application_id", |row| row.get::<_, i64>(0));
    match until_unlocked(path, timeout, application)? {
        APPLICATION_ID => Err(OpenError::OwnStore {
            path: path.to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Switches to a write-ahead log, so that readers and writers do not block each other.
fn keep_log(path: &Path, connection: &Connection, timeout: Duration) -> Result<(), OpenError> {
    let mode = |row: &Row<'_>| row.get::<_, String>(0);
    let is_log = |found: &str| found.eq_ignore_ascii_case("wal");
    let found = until_unlocked(path, timeout, || {
        connection.pragma_query_value(None, "journal_mode", mode)
    })?;
    if is_log(&found) {
        return Ok(());
    }
    let set = until_unlocked(path, timeout, || {
        connection.pragma_update_and_check(None, "journal_mode", "WAL", mode)
    })?;
    if is_log(&set) {
        Ok(())
    } else {
        Err(OpenError::NoLog {
            path: path.to_owned(),
        })
    }
}

/// Creates the tables if they are missing, and finds the clock that all processes with this file
/// share.
fn prepare(
    path: &Path,
    connection: &mut Connection,
    clock: Option<&dyn Clock>,
    timeout: Duration,
) -> Result<BootClock, OpenError> {
    let failed = |source| explain(path, source);
    connection.busy_timeout(timeout).map_err(failed)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate);
    let transaction = transaction.map_err(|source| locked_or(path, source))?;
    let found = format(&transaction).map_err(failed)?;
    match found {
        None => create(&transaction).map_err(failed)?,
        Some(1..=FORMAT) => {}
        Some(found) => {
            return Err(OpenError::Newer {
                path: path.to_owned(),
                found,
                known: FORMAT,
            });
        }
    }
    let anchored =
        resume_clock(&transaction).map_err(|source| unreadable(path, store_error(source)))?;
    if let Some(found) = found {
        let now = clock.map_or_else(|| anchored.now(), Clock::now);
        migrate_schema(&transaction, found, now).map_err(failed)?;
    }
    transaction.commit().map_err(failed)?;
    connection.busy_timeout(Duration::ZERO).map_err(failed)?;
    Ok(anchored)
}

/// The format of the tables; `None` if there are none.
fn format(transaction: &Transaction<'_>) -> rusqlite::Result<Option<i64>> {
    let sql = "SELECT 1 FROM sqlite_schema WHERE name = 'hapax_meta'";
    if !transaction.prepare(sql)?.exists([])? {
        return Ok(None);
    }
    transaction
        .query_row("SELECT format FROM hapax_meta", [], |row| row.get(0))
        .map(Some)
}

fn create(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute_batch(TABLES)?;
    transaction.execute_batch(LIVES)?;
    transaction.execute_batch(REQUESTS)?;
    transaction.execute_batch(OUTBOX)?;
    transaction.execute_batch(INBOX)?;
    let secret = random_secret().to_bytes();
    transaction
        .execute(
            "INSERT INTO hapax_meta (only, format, secret) VALUES (0, ?1, ?2)",
            params![FORMAT, &secret[..]],
        )
        .map(drop)
}

/// Migrates an older format. A process of an older version may have the file open; it does not
/// notice and continues as before.
fn migrate_schema(
    transaction: &Transaction<'_>,
    found: i64,
    now: Timestamp,
) -> rusqlite::Result<()> {
    if found < 2 {
        // Existing records keep their operation ids, and so do records that such a process makes
        // within the grace period.
        transaction.execute_batch(LIVES)?;
        transaction.execute(
            "UPDATE hapax_meta SET lives_us = ?1",
            [micros(now.after(operation::GRACE))],
        )?;
    }
    if found < 3 {
        transaction.execute_batch(REQUESTS)?;
    }
    if found < 4 {
        transaction.execute_batch(OUTBOX)?;
    }
    if found < 5 {
        transaction.execute_batch(INBOX)?;
        transaction.execute("UPDATE hapax_meta SET format = ?1", [FORMAT])?;
    }
    Ok(())
}

/// The clock of this boot. The first process of a boot anchors it, after every time that was used
/// before; all other processes continue it.
fn resume_clock(transaction: &Transaction<'_>) -> rusqlite::Result<BootClock> {
    let time = |row: &Row<'_>, column| row.get::<_, i64>(column).map(i64::unsigned_abs);
    let sql = "SELECT boot_us, clock_us FROM hapax_meta WHERE boot_id = ?1";
    let resumed = transaction.query_row(sql, [boot_id()], |row| {
        Ok(BootClock::resumed(
            Timestamp::from_micros(time(row, 1)?),
            Duration::from_micros(time(row, 0)?),
        ))
    });
    let last = transaction
        .query_row("SELECT last_us FROM hapax_meta", [], |row| time(row, 0))
        .map(Timestamp::from_micros)?;
    match resumed.optional()? {
        // A clock that lags behind `last` is not the one that made the last change.
        Some(clock) if clock.now() >= last => Ok(clock),
        _ => {
            let clock = BootClock::anchored(last.after(CLOCK_STEP));
            let (wall, boot) = clock.anchor();
            let sql = "UPDATE hapax_meta SET boot_id = ?1, boot_us = ?2, clock_us = ?3";
            transaction.execute(
                sql,
                params![boot_id(), boot.as_micros() as i64, micros(wall)],
            )?;
            Ok(clock)
        }
    }
}

/// The store-wide values, as read in a transaction.
#[derive(Clone, Copy)]
pub(super) struct Meta {
    pub(super) secret: Secret,
    pub(super) epoch: u64,
    pub(super) floor: Fence,
    pub(super) lives_since: Timestamp,
    last: Timestamp,
}

impl Meta {
    pub(super) fn read(connection: &Connection) -> Result<Meta, StoreError> {
        let number = |row: &Row<'_>, column| row.get::<_, i64>(column).map(i64::unsigned_abs);
        let read = |row: &Row<'_>| {
            Ok(Meta {
                secret: Secret::from_bytes(row.get(0)?),
                epoch: number(row, 1)?,
                floor: Fence::from_u64(number(row, 2)?),
                last: Timestamp::from_micros(number(row, 3)?),
                lives_since: Timestamp::from_micros(number(row, 4)?),
            })
        };
        let statement = connection
            .prepare_cached("SELECT secret, epoch, floor, last_us, lives_us FROM hapax_meta");
        statement
            .and_then(|mut statement| statement.query_row([], read))
            .map_err(store_error)
    }

    /// Whether the saved time has to be brought up to date.
    pub(super) fn is_behind(&self, now: Timestamp) -> bool {
        now > self.last.after(CLOCK_STEP)
    }

    pub(super) fn write(&self, connection: &Connection, now: Timestamp) -> rusqlite::Result<()> {
        let sql = "UPDATE hapax_meta SET epoch = ?1, floor = ?2, last_us = ?3";
        let columns = params![
            self.epoch as i64,
            self.floor.as_u64() as i64,
            micros(now.max(self.last))
        ];
        connection.prepare_cached(sql)?.execute(columns).map(drop)
    }
}

/// Retries while another connection holds a lock, up to the timeout.
fn until_unlocked<T>(
    path: &Path,
    timeout: Duration,
    mut attempt: impl FnMut() -> rusqlite::Result<T>,
) -> Result<T, OpenError> {
    let (until, mut rest) = (Instant::now() + timeout, Rest::default());
    loop {
        match attempt() {
            Err(error) if is_busy(&error) && Instant::now() < until => rest.take(),
            result => return result.map_err(|source| locked_or(path, source)),
        }
    }
}

fn locked_or(path: &Path, source: rusqlite::Error) -> OpenError {
    if is_busy(&source) {
        OpenError::Locked {
            path: path.to_owned(),
            source,
        }
    } else {
        explain(path, source)
    }
}
