//! The file's layout, its versions, and what happens when it is opened.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::Timestamp;
use hapax_core::operation::Secret;
use hapax_core::record::Fence;
use hapax_core::time::Clock;
use rusqlite::{Connection, OpenFlags, Transaction, params};

use super::OpenError;
use super::row::Leases;
use crate::clock::{BootClock, boot_id};
use crate::store::random_secret;

/// "Hapx": tells our files from other programs' databases.
const APPLICATION_ID: i64 = 0x4861_7078;

/// Each migration takes the file from the format of its index to the next. Never edit one that was released; add another.
const MIGRATIONS: &[&str] = &["
    CREATE TABLE meta (
        only        INTEGER PRIMARY KEY CHECK (only = 0),
        secret      BLOB    NOT NULL,            -- makes operation ids and tokens unguessable
        epoch       INTEGER NOT NULL DEFAULT 0,  -- counts every forget
        floor       INTEGER NOT NULL DEFAULT 0,  -- the highest fence of any record ever removed
        incarnation INTEGER NOT NULL DEFAULT 0,  -- counts every opening; a lease of an earlier one is over
        boot_id     TEXT    NOT NULL DEFAULT '', -- the boot in which the owner opened the file,
        boot_us     INTEGER NOT NULL DEFAULT 0,  -- time since that boot when it did,
        clock_us    INTEGER NOT NULL DEFAULT 0   -- and the store's clock then: it never starts earlier again
    ) STRICT;

    -- Small, one for each key, and unique: what every decision reads.
    CREATE TABLE heads (
        row             INTEGER PRIMARY KEY,
        id              BLOB    NOT NULL UNIQUE,
        state           INTEGER NOT NULL,
        fence           INTEGER NOT NULL,
        token           BLOB    NOT NULL,
        version         INTEGER NOT NULL,
        attempts        INTEGER NOT NULL,
        incarnation     INTEGER NOT NULL,
        lease_until     INTEGER NOT NULL,
        fingerprint     BLOB,
        policy          TEXT,                    -- what the fingerprint covers
        created_at      INTEGER NOT NULL,
        claimed_at      INTEGER NOT NULL,
        finished_at     INTEGER NOT NULL,
        expires_at      INTEGER NOT NULL,
        tombstone_until INTEGER NOT NULL,
        status          INTEGER,
        kept            INTEGER NOT NULL,
        due             INTEGER,                 -- when a sweep should look; never, if null
        namespace       TEXT    NOT NULL,
        principal       TEXT,                    -- null: anonymous
        method          TEXT    NOT NULL,
        path            TEXT    NOT NULL,
        key             TEXT    NOT NULL
    ) STRICT;
    CREATE INDEX heads_due ON heads (due) WHERE due IS NOT NULL;

    -- The volume, apart from the heads, under the row of its head.
    CREATE TABLE answers (
        row     INTEGER PRIMARY KEY,
        content BLOB    NOT NULL
    ) STRICT;
"];

/// A file that is open for writing.
pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) leases: Leases,
}

pub(super) fn open(path: &Path, clock: Option<Arc<dyn Clock>>) -> Result<Opened, OpenError> {
    let sqlite = |source| not_a_store_or(path, source);
    // Without the flag for URIs: a path is a path, whatever it looks like.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(sqlite)?;
    connection.busy_timeout(Duration::from_secs(1)).map_err(sqlite)?;
    migrate(path, &mut connection)?;
    connection.pragma_update(None, "journal_mode", "WAL").map_err(sqlite)?;
    connection.pragma_update(None, "synchronous", "FULL").map_err(sqlite)?;
    connection.set_prepared_statement_cache_capacity(32);
    let (clock, leases) = begin_incarnation(&mut connection, clock).map_err(sqlite)?;
    Ok(Opened { connection, clock, leases })
}

/// A connection that can only read.
pub(super) fn open_to_read(path: &Path) -> Result<Connection, OpenError> {
    let sqlite = |source| not_a_store_or(path, source);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(sqlite)?;
    connection.busy_timeout(Duration::from_secs(1)).map_err(sqlite)?;
    match check_format(path, &connection)? {
        0 => Err(OpenError::NotAStore { path: path.to_owned() }),
        _ => Ok(connection),
    }
}

/// What the one row of `meta` says.
pub(super) struct Meta {
    pub(super) secret: Secret,
    pub(super) epoch: u64,
    pub(super) floor: Fence,
    pub(super) incarnation: i64,
    pub(super) boot_id: String,
    pub(super) boot: Duration,
    pub(super) clock: Timestamp,
}

impl Meta {
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Meta> {
        let mut statement =
            connection.prepare_cached("SELECT secret, epoch, floor, incarnation, boot_id, boot_us, clock_us FROM meta")?;
        statement.query_row([], |row| {
            Ok(Meta {
                secret: Secret::from_bytes(row.get(0)?),
                epoch: row.get::<_, i64>(1)?.unsigned_abs(),
                floor: Fence::from_u64(row.get::<_, i64>(2)?.unsigned_abs()),
                incarnation: row.get(3)?,
                boot_id: row.get(4)?,
                boot: Duration::from_micros(row.get::<_, i64>(5)?.unsigned_abs()),
                clock: Timestamp::from_micros(row.get::<_, i64>(6)?.unsigned_abs()),
            })
        })
    }
}

fn migrate(path: &Path, connection: &mut Connection) -> Result<(), OpenError> {
    let sqlite = |source| not_a_store_or(path, source);
    let format = check_format(path, connection)?;
    for (index, migration) in MIGRATIONS.iter().enumerate().skip(usize::try_from(format).unwrap_or(0)) {
        // One transaction each, version included: a crash leaves the file in one format or the next, never between.
        let transaction = connection.transaction().map_err(sqlite)?;
        transaction.execute_batch(migration).map_err(sqlite)?;
        if index == 0 {
            create_meta(&transaction).map_err(sqlite)?;
        }
        transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(sqlite)?;
        transaction.pragma_update(None, "user_version", index as i64 + 1).map_err(sqlite)?;
        transaction.commit().map_err(sqlite)?;
    }
    Ok(())
}

fn create_meta(transaction: &Transaction<'_>) -> rusqlite::Result<usize> {
    let secret: Vec<u8> = random_secret().to_bytes().to_vec();
    transaction.execute("INSERT INTO meta (only, secret) VALUES (0, ?1)", [secret])
}

/// The file's format; zero for an empty file.
fn check_format(path: &Path, connection: &Connection) -> Result<i64, OpenError> {
    let sqlite = |source| not_a_store_or(path, source);
    let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).map_err(sqlite);
    let (application, format) = (pragma("application_id")?, pragma("user_version")?);
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(sqlite)?;
    let known = MIGRATIONS.len() as i64;
    match application {
        APPLICATION_ID if format > known => Err(OpenError::Newer { path: path.to_owned(), found: format, known }),
        APPLICATION_ID => Ok(format),
        0 if tables == 0 => Ok(0),
        _ => Err(OpenError::NotAStore { path: path.to_owned() }),
    }
}

/// Every opening is an incarnation of its own. The file has one owner, so a lease of an earlier one belongs to a process that is gone.
fn begin_incarnation(connection: &mut Connection, clock: Option<Arc<dyn Clock>>) -> rusqlite::Result<(Arc<dyn Clock>, Leases)> {
    let before = Meta::read(connection)?;
    let anchored = BootClock::anchored(before.clock);
    let (wall, boot) = anchored.anchor();
    let incarnation = before.incarnation + 1;
    connection.execute(
        "UPDATE meta SET incarnation = ?1, boot_id = ?2, boot_us = ?3, clock_us = ?4",
        params![incarnation, boot_id(), boot.as_micros() as i64, wall.as_micros() as i64],
    )?;
    Ok((clock.unwrap_or_else(|| Arc::new(anchored)), Leases::Of(incarnation)))
}

fn not_a_store_or(path: &Path, source: rusqlite::Error) -> OpenError {
    match source.sqlite_error_code() {
        Some(rusqlite::ErrorCode::NotADatabase) => OpenError::NotAStore { path: path.to_owned() },
        _ => OpenError::Sqlite { path: path.to_owned(), source },
    }
}
