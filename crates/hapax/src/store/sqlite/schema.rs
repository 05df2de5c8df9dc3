//! The file's layout and formats, and opening it.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hapax_core::Timestamp;
use hapax_core::operation::{self, Secret};
use hapax_core::record::Fence;
use hapax_core::store::StoreError;
use hapax_core::time::Clock;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Row, Transaction, params};

use super::OpenError;
use super::log::LOG_BYTES_MAX;
use super::transfer;
use crate::clock::{BootClock, boot_id};
use crate::store::codec::{self, micros};
use crate::store::random_secret;
use crate::store::sqlite_kit::audit;
use crate::store::sqlite_kit::error::{explain, store_error, unreadable};

/// "Hapx": distinguishes our files from other programs' databases.
pub(in crate::store) const APPLICATION_ID: i64 = 0x4861_7078;

/// The format of the first migration. Format 1 was never released: its one table with an index was
/// a fifth as fast at ten million keys.
const FORMAT_FIRST: i64 = 2;

/// Each migration takes the file to the next format; the first, an empty file to [`FORMAT_FIRST`].
/// Never edit one that was released; add another.
const MIGRATIONS: &[&str] = &[
    "
    CREATE TABLE meta (
        only        INTEGER PRIMARY KEY CHECK (only = 0),
        name        TEXT    NOT NULL,            -- tells this store from every other; a copy has the same
        secret      BLOB    NOT NULL,            -- makes operation ids and tokens unguessable
        epoch       INTEGER NOT NULL DEFAULT 0,  -- counts every forget, and every restored backup
        floor       INTEGER NOT NULL DEFAULT 0,  -- the highest fence of any record ever removed
        incarnation INTEGER NOT NULL DEFAULT 0,  -- counts every opening; a lease of an earlier one is over
        boot_id     TEXT    NOT NULL DEFAULT '', -- the boot in which the owner opened the file,
        boot_us     INTEGER NOT NULL DEFAULT 0,  -- time since that boot when it did,
        clock_us    INTEGER NOT NULL DEFAULT 0,  -- and the store's clock then: it never starts earlier again
        copied_us   INTEGER NOT NULL DEFAULT 0,  -- in a backup: when it was made; 1: an old state that nobody made
        checksum    INTEGER NOT NULL DEFAULT 0
    ) STRICT;

    -- One for each key: what every decision reads. `row` is a place, see place.rs. That an id is here once is the writer's doing.
    CREATE TABLE heads (
        row             INTEGER PRIMARY KEY,
        id              BLOB    NOT NULL,
        state           INTEGER NOT NULL,
        fence           INTEGER NOT NULL,
        token           BLOB    NOT NULL,
        version         INTEGER NOT NULL,
        attempts        INTEGER NOT NULL,
        incarnation     INTEGER NOT NULL,
        lease_until     INTEGER NOT NULL,
        fingerprint     BLOB,
        policy          INTEGER NOT NULL,        -- what the fingerprint covers; -1: there is none
        created_at      INTEGER NOT NULL,
        claimed_at      INTEGER NOT NULL,
        finished_at     INTEGER NOT NULL,
        expires_at      INTEGER NOT NULL,
        tombstone_until INTEGER NOT NULL,
        status          INTEGER NOT NULL,        -- -1: there is none
        answer          INTEGER NOT NULL,        -- the row of the answer, until expires_at; -1: none was kept
        namespace       TEXT    NOT NULL,
        principal       TEXT,                    -- null: anonymous
        method          TEXT    NOT NULL,
        path            TEXT    NOT NULL,
        key             TEXT    NOT NULL,
        checksum        INTEGER NOT NULL
    ) STRICT;

    -- The volume, apart from the heads.
    CREATE TABLE answers (
        row     INTEGER PRIMARY KEY,
        due     INTEGER NOT NULL,                -- when it may go
        content BLOB    NOT NULL
    ) STRICT;

    -- Which ids are in which rows of heads, packed: see roll.rs.
    CREATE TABLE roll (
        row      INTEGER PRIMARY KEY,
        prefixes BLOB    NOT NULL,
        checksum INTEGER NOT NULL
    ) STRICT;

    -- Rows that the roll names and that have left, one by one and from the front of a lane: what it names besides must be there.
    CREATE TABLE vacated (
        row INTEGER PRIMARY KEY
    ) STRICT;
    CREATE TABLE fronts (
        lane INTEGER PRIMARY KEY,
        row  INTEGER NOT NULL                    -- the last one that was removed
    ) STRICT;

    CREATE TABLE policies (
        policy INTEGER PRIMARY KEY,
        text   TEXT    NOT NULL UNIQUE
    ) STRICT;
",
    "
    -- What was done by hand, by whom and why: see audit.rs. No record takes its entries with it.
    CREATE TABLE audit (
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
    ) STRICT;
    CREATE INDEX audit_of_record ON audit (id) WHERE id IS NOT NULL;

    -- What answers are hidden under, 127 to a row: see seal.rs.
    CREATE TABLE seals (
        row   INTEGER PRIMARY KEY,
        seals BLOB    NOT NULL
    ) STRICT;
",
    "
    -- Where the store stands when it is copied: see transfer.rs. No row: it is in use, or ready to be.
    CREATE TABLE standing (
        only     INTEGER PRIMARY KEY CHECK (only = 0),
        word     TEXT    NOT NULL,               -- leaving, moved, arriving
        copy     BLOB    NOT NULL,               -- tells one copy from every other
        other    TEXT    NOT NULL,               -- the store at its other end
        record   BLOB,                           -- arriving: the last record that has come; null: none yet
        entry    INTEGER NOT NULL,               -- arriving: the last entry of the audit log that has
        checksum INTEGER NOT NULL
    ) STRICT;
",
    "
    -- From when on each life of a key has an operation id of its own, by a record's created_at; see core/src/operation.rs.
    ALTER TABLE meta ADD COLUMN lives_us INTEGER NOT NULL DEFAULT 0;
    -- When the life began that an entry is about; 0 in entries from before.
    ALTER TABLE audit ADD COLUMN created_at INTEGER NOT NULL DEFAULT 0;
",
    "
    -- Principals who have records, for the limits on new ones: see once/capacity.rs.
    CREATE TABLE principals (
        id          BLOB    PRIMARY KEY,
        known_until INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX principals_known_until ON principals (known_until);
",
    "
    -- The request that made the latest attempt; null: there was none, or the record is from before. Counts in the checksum.
    ALTER TABLE heads ADD COLUMN request_id TEXT;
",
];

/// The first format that distinguishes the lives of a key.
const FORMAT_LIVES: i64 = 5;
/// In a file of an older format no record uses the second rule for operation ids.
const NO_LIVES: Timestamp = Timestamp::from_micros(u64::MAX);

/// The first format with request ids.
const FORMAT_REQUESTS: i64 = 7;

/// The first format that has an audit log.
const FORMAT_AUDIT: i64 = 3;

/// The newest format that this version knows.
const FORMAT_LAST: i64 = FORMAT_FIRST + MIGRATIONS.len() as i64 - 1;

/// How long to wait for a lock, which only another program can hold.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(1);
/// The writer's page cache: for the ends of the queues, which it writes repeatedly.
const WRITER_CACHE_KIB: i64 = 16 << 10;

/// A file that is open for writing.
pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) meta: Meta,
    pub(super) restored: Option<Restored>,
}

/// The store continues from an older state of itself: later changes are lost, and keys of that time
/// may run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// When the backup was made, if it was made by [`Sqlite::backup`](super::Sqlite::backup).
    pub copied_at: Option<Timestamp>,
}

/// The purpose of opening a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To use it as the store. Refused if it is out of use.
    Use,
    /// To copy from or into it, whatever its standing.
    Copy,
}

/// `last` has the store that was last opened here, and its incarnation, from the file of the owner.
pub(super) fn open(
    path: &Path,
    clock: Option<Arc<dyn Clock>>,
    last: Option<(String, i64)>,
    purpose: Purpose,
) -> Result<Opened, OpenError> {
    let failed = |source| explain(path, source);
    let mut connection = open_to_write(path, OpenFlags::SQLITE_OPEN_CREATE).map_err(failed)?;
    let now = clock.as_ref().map_or_else(
        || Timestamp::from_system_time(SystemTime::now()),
        |clock| clock.now(),
    );
    migrate(path, &mut connection, now)?;
    let mode: String = connection
        .pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))
        .map_err(failed)?;
    if mode != "wal" {
        return Err(OpenError::NoLog {
            path: path.to_owned(),
        });
    }
    let standing = transfer::standing(&connection).map_err(|source| unreadable(path, source))?;
    if let (Purpose::Use, Some(refusal)) = (purpose, standing.refusal()) {
        return Err(OpenError::OutOfUse {
            path: path.to_owned(),
            refusal,
        });
    }
    begin_incarnation(path, connection, clock, last)
}

/// Opens the file again, without changing its content.
pub(super) fn open_again(path: &Path) -> Result<Connection, OpenError> {
    let connection =
        open_to_write(path, OpenFlags::empty()).map_err(|source| explain(path, source))?;
    match check_format(path, &connection)? {
        FORMAT_LAST => Ok(connection),
        _ => Err(OpenError::NotAStore {
            path: path.to_owned(),
        }),
    }
}

fn open_to_write(path: &Path, more: OpenFlags) -> rusqlite::Result<Connection> {
    // Without the flag for URIs: a path that looks like a URI is still a path.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | more;
    let connection = with_defaults(Connection::open_with_flags(path, flags)?)?;
    // Takes effect only in a file without tables. It lets free pages be given back to the file
    // system, a few at a time.
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(
        None,
        "journal_size_limit",
        i64::try_from(LOG_BYTES_MAX / 2).expect("small"),
    )?;
    connection.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
    Ok(connection)
}

/// A connection that copies the log into the file.
pub(super) fn open_to_checkpoint(path: &Path) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = || {
        let connection = with_defaults(Connection::open_with_flags(path, flags)?)?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "wal_autocheckpoint", 0)?;
        Ok(connection)
    };
    open().map_err(|source| explain(path, source))
}

/// A connection that can only read.
pub(super) fn open_to_read(path: &Path) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)
        .and_then(with_defaults)
        .map_err(|source| explain(path, source))?;
    match check_format(path, &connection)? {
        0 => {
            return Err(OpenError::NotAStore {
                path: path.to_owned(),
            });
        }
        // The view lets all formats be read in the same way. If the owner migrates the file
        // meanwhile, the real column comes before this one.
        ..FORMAT_REQUESTS => {
            let view = "CREATE TEMP VIEW heads AS SELECT *, NULL AS request_id FROM main.heads";
            connection
                .execute_batch(view)
                .map_err(|source| explain(path, source))?;
        }
        _ => {}
    }
    Ok(connection)
}

/// The audit log. A file of an older format has one without some columns, or none.
pub(super) fn audit_log(
    connection: &Connection,
) -> Result<Option<&'static audit::Table>, StoreError> {
    Ok(match format(connection).map_err(store_error)? {
        ..FORMAT_AUDIT => None,
        FORMAT_AUDIT..FORMAT_LIVES => Some(&audit::OWN_BEFORE_LIVES),
        FORMAT_LIVES.. => Some(&audit::OWN),
    })
}

fn format(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

fn with_defaults(connection: Connection) -> rusqlite::Result<Connection> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(64);
    // Closing must not checkpoint the log: after a disk error that would be another write whose
    // result is not checked.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    Ok(connection)
}

/// The row of `meta`.
#[derive(Clone)]
pub(super) struct Meta {
    pub(super) name: String,
    pub(super) secret: Secret,
    pub(super) epoch: i64,
    pub(super) floor: Fence,
    pub(super) incarnation: i64,
    pub(super) boot_id: String,
    pub(super) boot: Duration,
    pub(super) clock: Timestamp,
    pub(super) copied: Timestamp,
    pub(super) lives_since: Timestamp,
}

/// The mark of an older state that was not made by [`Sqlite::backup`](super::Sqlite::backup).
const COPIED_BY_OTHERS: Timestamp = Timestamp::from_micros(1);

impl Meta {
    pub(super) fn read(connection: &Connection) -> Result<Meta, StoreError> {
        let has_lives = format(connection).map_err(store_error)? >= FORMAT_LIVES;
        let sql = match has_lives {
            true => {
                "SELECT secret, epoch, floor, incarnation, boot_id, boot_us, clock_us, copied_us, name, checksum, lives_us FROM meta"
            }
            false => {
                "SELECT secret, epoch, floor, incarnation, boot_id, boot_us, clock_us, copied_us, name, checksum FROM meta"
            }
        };
        let read = |row: &Row<'_>| {
            let meta = Meta {
                name: row.get(8)?,
                secret: Secret::from_bytes(row.get(0)?),
                epoch: row.get(1)?,
                floor: Fence::from_u64(row.get::<_, i64>(2)?.unsigned_abs()),
                incarnation: row.get(3)?,
                boot_id: row.get(4)?,
                boot: Duration::from_micros(row.get::<_, i64>(5)?.unsigned_abs()),
                clock: codec::time(row.get(6)?),
                copied: codec::time(row.get(7)?),
                lives_since: match has_lives {
                    true => codec::time(row.get(10)?),
                    false => NO_LIVES,
                },
            };
            Ok((meta, row.get::<_, u32>(9)?))
        };
        let (meta, checksum) = connection
            .prepare_cached(sql)
            .and_then(|mut statement| statement.query_row([], read))
            .map_err(store_error)?;
        if meta.checksum() != checksum {
            return Err(StoreError::corrupt(
                "what the store says of itself is not as it was written",
            ));
        }
        Ok(meta)
    }

    pub(super) fn write(&self, connection: &Connection) -> rusqlite::Result<()> {
        let sql = "UPDATE meta SET name = ?1, secret = ?2, epoch = ?3, floor = ?4, incarnation = ?5, boot_id = ?6, boot_us = ?7,
            clock_us = ?8, copied_us = ?9, checksum = ?10";
        let columns = params![
            self.name,
            &self.secret.to_bytes()[..],
            self.epoch,
            self.floor.as_u64() as i64,
            self.incarnation,
            self.boot_id,
            self.boot.as_micros() as i64,
            micros(self.clock),
            micros(self.copied),
            self.checksum(),
        ];
        connection.prepare_cached(sql)?.execute(columns).map(drop)
    }

    /// Sets the time from which lives are distinguished: when the file is migrated to this format,
    /// and when it takes over another store's content.
    pub(super) fn set_lives_since(
        &mut self,
        connection: &Connection,
        since: Timestamp,
    ) -> rusqlite::Result<()> {
        self.lives_since = since;
        connection.execute("UPDATE meta SET lives_us = ?1", [micros(since)])?;
        self.write(connection)
    }

    /// The same at a later time. The wall time and the time since boot advance together.
    pub(super) fn at(&self, now: Timestamp) -> Meta {
        let clock = self.clock.max(now);
        Meta {
            boot: self.boot + clock.since(self.clock),
            clock,
            ..self.clone()
        }
    }

    fn checksum(&self) -> u32 {
        let mut sum = crc32fast::Hasher::new();
        let numbers = [
            self.epoch,
            self.floor.as_u64() as i64,
            self.incarnation,
            self.boot.as_micros() as i64,
            micros(self.clock),
            micros(self.copied),
        ];
        numbers
            .iter()
            .for_each(|number| sum.update(&number.to_le_bytes()));
        // Left out if it is not set, so that the checksums of older formats stay valid.
        if !matches!(self.lives_since, Timestamp::ZERO | NO_LIVES) {
            sum.update(&micros(self.lives_since).to_le_bytes());
        }
        for text in [
            self.name.as_bytes(),
            self.boot_id.as_bytes(),
            &self.secret.to_bytes(),
        ] {
            sum.update(text);
            sum.update(&[0xff]);
        }
        sum.finalize()
    }
}

/// `now` is the time by the clock that the store will have, approximately.
fn migrate(path: &Path, connection: &mut Connection, now: Timestamp) -> Result<(), OpenError> {
    let failed = |source| explain(path, source);
    let done = match check_format(path, connection)? {
        0 => 0,
        format => usize::try_from(format - FORMAT_FIRST + 1).expect("a format that was checked"),
    };
    for (index, migration) in MIGRATIONS.iter().enumerate().skip(done) {
        // One transaction each, including the format number: a crash leaves the file in one format
        // or the next, never in between.
        let transaction = connection.transaction().map_err(failed)?;
        transaction.execute_batch(migration).map_err(failed)?;
        if index == 0 {
            create_meta(&transaction).map_err(failed)?;
        }
        if FORMAT_FIRST + index as i64 == FORMAT_LIVES && done > 0 {
            // Existing records keep their operation ids.
            let mut meta = Meta::read(&transaction).map_err(|source| unreadable(path, source))?;
            let since = meta.clock.max(now).after(operation::GRACE);
            meta.set_lives_since(&transaction, since).map_err(failed)?;
        }
        transaction
            .pragma_update(None, "application_id", APPLICATION_ID)
            .map_err(failed)?;
        transaction
            .pragma_update(None, "user_version", FORMAT_FIRST + index as i64)
            .map_err(failed)?;
        transaction.commit().map_err(failed)?;
    }
    Ok(())
}

fn create_meta(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    let secret: Vec<u8> = random_secret().to_bytes().to_vec();
    let name = uuid::Uuid::new_v4().to_string();
    transaction.execute(
        "INSERT INTO meta (only, name, secret) VALUES (0, '', x'')",
        [],
    )?;
    let meta = Meta {
        name,
        secret: Secret::from_bytes(secret.try_into().expect("as made")),
        epoch: 0,
        floor: Fence::ZERO,
        incarnation: 0,
        boot_id: String::new(),
        boot: Duration::ZERO,
        clock: Timestamp::ZERO,
        copied: Timestamp::ZERO,
        lives_since: Timestamp::ZERO,
    };
    meta.write(transaction)
}

/// The file's format; zero for an empty file.
fn check_format(path: &Path, connection: &Connection) -> Result<i64, OpenError> {
    let failed = |source| explain(path, source);
    let pragma = |name: &str| {
        connection
            .pragma_query_value(None, name, |row| row.get::<_, i64>(0))
            .map_err(failed)
    };
    let (application, found) = (pragma("application_id")?, pragma("user_version")?);
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(failed)?;
    match application {
        APPLICATION_ID if found > FORMAT_LAST => Err(OpenError::Newer {
            path: path.to_owned(),
            found,
            known: FORMAT_LAST,
        }),
        APPLICATION_ID if found < FORMAT_FIRST => Err(OpenError::Older {
            path: path.to_owned(),
            found,
            known: FORMAT_FIRST,
        }),
        APPLICATION_ID => Ok(found),
        0 if tables == 0 => Ok(0),
        _ => Err(OpenError::NotAStore {
            path: path.to_owned(),
        }),
    }
}

/// Begins a new incarnation, as every opening does. The file has one owner, so a lease of an
/// earlier incarnation belongs to a process that is gone.
fn begin_incarnation(
    path: &Path,
    connection: Connection,
    clock: Option<Arc<dyn Clock>>,
    last: Option<(String, i64)>,
) -> Result<Opened, OpenError> {
    let before = Meta::read(&connection).map_err(|source| unreadable(path, source))?;
    let anchored = BootClock::anchored(before.clock);
    let (wall, boot) = anchored.anchor();
    let restored = restored(&before, last.as_ref());
    let mut meta = Meta {
        incarnation: last
            .map_or(0, |(_, incarnation)| incarnation)
            .max(before.incarnation)
            + 1,
        boot_id: boot_id(),
        boot,
        clock: wall,
        ..before
    };
    if restored.is_some() {
        // Raise the epoch, because answers in other memories are no longer valid, and the floor,
        // because lost records had fences that must not be assigned again. The mark stays until
        // opening has succeeded, so that an alarm that was never logged is raised again.
        meta.epoch += 1;
        meta.floor = meta.floor.max(Fence::from_u64(wall.as_micros()));
        meta.copied = meta.copied.max(COPIED_BY_OTHERS);
    }
    meta.write(&connection)
        .map_err(|source| explain(path, source))?;
    Ok(Opened {
        connection,
        clock: clock.unwrap_or_else(|| Arc::new(anchored)),
        meta,
        restored,
    })
}

/// Whether the file is an older state of the store: it is marked as a copy, its incarnation is
/// lower than the last one opened here, or it is new where another store was.
fn restored(meta: &Meta, last: Option<&(String, i64)>) -> Option<Restored> {
    let is_copy = meta.copied > Timestamp::ZERO;
    let is_behind = last.is_some_and(|(name, incarnation)| {
        if *name == meta.name {
            *incarnation > meta.incarnation
        } else {
            meta.incarnation == 0
        }
    });
    (is_copy || is_behind).then(|| Restored {
        copied_at: Some(meta.copied).filter(|copied| *copied > COPIED_BY_OTHERS),
    })
}
