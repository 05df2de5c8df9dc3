//! The embedded store: one SQLite file, owned by one process.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hapax::Hapax;
//!
//! let hapax = Hapax::sqlite("hapax.db").await?.namespace("payments");
//! # Ok(()) }
//! ```
//!
//! With other options:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hapax::store::sqlite::{Options, Sqlite};
//! use hapax::Hapax;
//!
//! let options = Options { queue_bytes_max: 8 << 20, ..Options::default() };
//! let hapax = Hapax::new(Sqlite::open_with("hapax.db", options).await?).namespace("payments");
//! # Ok(()) }
//! ```
//!
//! One thread writes. Writes that arrive while a commit is in progress share the next one, so that
//! many callers share one fsync and a single caller does not wait for others. Readers have their
//! own connections.
//!
//! The file has one owner, which holds a lock on a file beside it. So a lease from before a restart
//! has no holder and is over at once. Other processes may read through a [`View`].
//!
//! Guide to the code: `schema` has the tables, `row_number` assigns rows, and `index` and
//! `index_snapshot` find them again. `writer` is the queue, `writer_loop` runs batches,
//! `transaction` is one write transaction, and `writer_state` is what the writer knows without
//! reading. `log` keeps the log short, `repair` reopens the file after a disk error, `backup`
//! copies it, `seal` and `erasure` make `forget` erase, `principals` has the known principals, and
//! `transfer` copies everything into or from another store. Code shared with
//! [`Guest`](super::guest) is in `sqlite_kit`.

mod backup;
mod erasure;
mod index;
mod index_snapshot;
mod log;
mod owner;
mod policies;
mod principals;
mod reader;
mod repair;
mod row;
mod row_number;
pub(super) mod schema;
mod seal;
mod shared;
mod stats;
mod transaction;
mod transfer;
mod view;
mod writer;
mod writer_loop;
mod writer_state;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::audit::{LogEntry, LogQuery, Note, REASON_BYTES_MAX};
use hapax_core::record::Head;
use hapax_core::scope::{PrincipalId, RecordId};
use hapax_core::store::{
    Condition, Counts, KnownPrincipal, ListQuery, Put, Reading, Renewal, Reply, Seen, Store,
    StoreError, StoreInfo, Swept, Written,
};
use hapax_core::time::{Clock, Timestamp};

pub use super::sqlite_kit::SQLITE_VERSION_MIN;
pub use super::sqlite_kit::error::OpenError;
pub use backup::{BackupError, Copied};
pub use schema::Restored;
pub use stats::Stats;
pub use view::View;

use self::index::{Found, prefix};
use self::log::{Copier, Wake};
use self::owner::Owner;
use self::schema::{Meta, Opened, Purpose};
use self::shared::{Connections, Shared};
use self::writer::{Command, Start, Writer};
use self::writer_state::WriterState;
use super::sqlite_kit::error::{store_error, unreadable};
use super::sqlite_kit::{Readers, audit, blocking};

/// Records in one SQLite file.
pub struct Sqlite {
    // The fields are dropped in this order. The writer holds the owner's lock and releases it last,
    // when nothing uses the file any more.
    readers: Readers,
    _copier: Copier,
    writer: Writer,
    shared: Arc<Shared>,
    restored: Option<Restored>,
}

/// How to open a file.
pub struct Options {
    /// The source of time; `None` for the machine's clock. Tests set their own.
    pub clock: Option<Arc<dyn Clock>>,
    /// Bytes that may wait to be written; 64 MiB by default. Beyond it a write is refused at once,
    /// so that a slow disk causes responses of 503 rather than growing memory.
    pub queue_bytes_max: usize,
    /// How long `forget` waits for readers outside to leave the log so that it can be truncated;
    /// five seconds by default. Then it fails with an error of the kind
    /// [`StoreErrorKind::Unerased`](hapax_core::store::StoreErrorKind::Unerased).
    pub erase_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            clock: None,
            queue_bytes_max: 64 << 20,
            erase_timeout: Duration::from_secs(5),
        }
    }
}

impl Sqlite {
    /// Opens the file, creating or migrating it as needed, and takes ownership of it.
    pub async fn open(path: impl AsRef<Path>) -> Result<Sqlite, OpenError> {
        Sqlite::open_with(path, Options::default()).await
    }

    /// Opens the file with options.
    pub async fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Sqlite, OpenError> {
        let path = path.as_ref().to_owned();
        // Opening blocks on the disk, so it must not run on a runtime thread.
        blocking(move || Sqlite::open_blocking(&path, options, Purpose::Use)).await
    }

    /// Opens the file as the source or target of a [copy](crate::store::copy), even if it is out of
    /// use.
    pub async fn open_to_copy(path: impl AsRef<Path>) -> Result<Sqlite, OpenError> {
        let path = path.as_ref().to_owned();
        blocking(move || Sqlite::open_blocking(&path, Options::default(), Purpose::Copy)).await
    }

    /// Counters and gauges of the store, for metrics. Accesses neither the writer nor the disk.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::Arc;
    ///
    /// use hapax::{Hapax, Sqlite};
    ///
    /// // Shared, so that it can still be asked when it is in use.
    /// let store = Arc::new(Sqlite::open("hapax.db").await?);
    /// let hapax = Hapax::builder_shared(store.clone()).build();
    /// println!("{} commits", store.stats().commits);
    /// # Ok(()) }
    /// ```
    pub fn stats(&self) -> Stats {
        let records = self.shared.index().map_or(0, |index| index.len());
        Stats {
            restored: self.restored.is_some(),
            ..self.shared.counters.read(records)
        }
    }

    /// Whether the file was an older state of the store when it was opened: a restored backup, or
    /// an older copy in its place. Everything done since that state is lost. An alarm, also in the
    /// log.
    pub fn restored(&self) -> Option<Restored> {
        self.restored
    }

    /// Copies the store, while it is in use, into a new file that can be opened as a store. The
    /// copy contains every write that was acknowledged before this call. Nothing is overwritten; a
    /// failed backup leaves no file behind.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// let store = hapax::Sqlite::open(directory.path().join("hapax.db")).await?;
    /// let copied = store.backup(directory.path().join("hapax-backup.db")).await?;
    /// println!("{} bytes", copied.bytes);
    /// # Ok(()) }
    /// ```
    ///
    /// Dropping the future gives the backup up. The writer waits for the disk of the copy: if that
    /// disk hangs, so does the store.
    pub async fn backup(&self, to: impl AsRef<Path>) -> Result<Copied, BackupError> {
        let to = to.as_ref().to_owned();
        let begun = to.clone();
        let file = blocking(move || backup::begin(&begun)).await?;
        let path = file.path().to_owned();
        let syncing = backup::sync_meanwhile(&file).map_err(|source| BackupError::Io {
            path: to.clone(),
            source,
        })?;
        let copied = self
            .writer
            .ask(|reply| Command::Backup(path, reply))
            .await
            .map_err(BackupError::Store)?;
        drop(syncing);
        blocking(move || backup::finish(file, &to, copied.at)).await?;
        Ok(copied)
    }

    fn open_blocking(path: &Path, options: Options, purpose: Purpose) -> Result<Sqlite, OpenError> {
        super::sqlite_kit::check_version()?;
        let path = &owner::locate(path)?;
        let mut owner = Owner::take(path)?;
        let Opened {
            connection,
            clock,
            meta,
            restored,
        } = schema::open(path, options.clock, owner.last(), purpose)?;
        let shared = Arc::new(Shared::new(path.clone(), clock, meta.incarnation));
        let mut writer_state = WriterState::load(&connection, &shared.policies, shared.leases())
            .map_err(|source| unreadable(path, source))?;
        if let Some(Restored { copied_at }) = restored {
            let copied_at = copied_at.map(|at| httpdate::fmt_http_date(at.to_system_time()));
            tracing::error!(
                path = %path.display(),
                copied_at,
                "ALARM: the store goes on from an older state of itself; whatever was done since is forgotten, and keys of that time may run again"
            );
            // The alarm was raised, so from now on this file is the store and no copy.
            writer_state.meta.copied = Timestamp::ZERO;
            writer_state
                .meta
                .write(&connection)
                .map_err(|source| unreadable(path, store_error(source)))?;
        }
        owner.sign(path, &meta.name, meta.incarnation)?;
        shared.open(Connections::open(path)?, writer_state.index.clone());
        let wake = Arc::new(Wake::default());
        let Options {
            queue_bytes_max,
            erase_timeout,
            ..
        } = options;
        let start = Start {
            connection,
            writer_state,
            owner,
            wake: wake.clone(),
            queue_bytes_max,
            erase_timeout,
        };
        let readers = reader::start(&shared)?;
        let writer = Writer::start(shared.clone(), start)?;
        let copier = Copier::start(shared.clone(), wake, writer.commands())?;
        Ok(Sqlite {
            readers,
            _copier: copier,
            writer,
            shared,
            restored,
        })
    }

    /// Reads records without the writer, unless one of them is being moved to another row.
    async fn read(&self, ids: Vec<RecordId>) -> Result<Reading, StoreError> {
        // While the file is closed, ask the writer, which reopens it.
        let Ok(index) = self.shared.index() else {
            return self.read_in_order(ids).await;
        };
        let found: Vec<_> = ids.iter().map(|id| (*id, index.find(id))).collect();
        if found
            .iter()
            .all(|(_, found)| !matches!(found, Found::Rows(_)))
        {
            return Ok(self.in_memory(found));
        }
        let shared = self.shared.clone();
        let read = move |connection: &rusqlite::Connection| {
            reader::get(shared.rows(connection), found, || shared.clock.now())
        };
        match self.readers.ask(read).await? {
            Some(reading) => Ok(reading),
            None => self.read_in_order(ids).await,
        }
    }

    /// Reads records through the writer, in order with the writes.
    fn read_in_order(&self, ids: Vec<RecordId>) -> Reply<'_, Reading> {
        self.writer
            .write(size_of_val(&*ids), move |transaction| transaction.get(&ids))
    }

    /// The records that the index alone can answer: absent ones, and running ones.
    fn in_memory(&self, found: Vec<(RecordId, Found)>) -> Reading {
        let now = self.shared.clock.now();
        let record = |found| match found {
            Found::Running(running) => Some(hapax_core::Record {
                head: Arc::unwrap_or_clone(running.head),
                answer: None,
            }),
            Found::Absent | Found::Rows(_) => None,
        };
        Reading {
            records: found.into_iter().map(|(_, found)| record(found)).collect(),
            now,
        }
    }

    /// The record, if a new claim would find one. So a caller with a duplicate does not wait for
    /// the writer.
    async fn seen(&self, put: &Put) -> Result<Option<Seen>, StoreError> {
        let is_there = self
            .shared
            .index()
            .is_ok_and(|index| !matches!(index.find(&put.id), Found::Absent));
        if put.condition != Condition::Absent || !is_there {
            return Ok(None);
        }
        let Reading { mut records, now } = self.read(vec![put.id]).await?;
        let record = records
            .pop()
            .flatten()
            .filter(|record| !record.head.is_gone(now));
        Ok(record.map(|record| Seen {
            record: Some(record),
            now,
        }))
    }

    async fn list_all(&self, query: ListQuery) -> Result<Vec<Head>, StoreError> {
        let (mut heads, mut next) = (Vec::new(), Some(query.after.as_ref().map_or(0, prefix)));
        while let Some(from) = next
            && heads.len() < query.limit
        {
            let (shared, index) = (self.shared.clone(), self.shared.index()?);
            let rest = ListQuery {
                limit: query.limit - heads.len(),
                ..query.clone()
            };
            let list = move |connection: &rusqlite::Connection| {
                reader::list(
                    shared.rows(connection),
                    &index,
                    &rest,
                    from,
                    shared.clock.now(),
                )
            };
            let part = self.readers.ask(list).await?;
            heads.extend(part.heads);
            next = part.next;
        }
        Ok(heads)
    }
}

impl Store for Sqlite {
    fn get(&self, ids: Vec<RecordId>) -> Reply<'_, Reading> {
        Box::pin(self.read(ids))
    }

    fn put_if(&self, put: Put) -> Reply<'_, Written> {
        if put.condition != Condition::Absent {
            return self.writer.put(put);
        }
        Box::pin(async move {
            match self.seen(&put).await? {
                Some(seen) => Ok(Written::Lost(seen)),
                None => self.writer.put(put).await,
            }
        })
    }

    fn renew(&self, renewals: Vec<Renewal>) -> Reply<'_, Vec<bool>> {
        self.writer
            .write(size_of_val(&*renewals), move |transaction| {
                transaction.renew(&renewals)
            })
    }

    fn list(&self, query: ListQuery) -> Reply<'_, Vec<Head>> {
        Box::pin(self.list_all(query))
    }

    fn sweep(&self, limit: usize) -> Reply<'_, Swept> {
        self.writer
            .write(0, move |transaction| transaction.sweep(limit))
    }

    fn info(&self) -> Reply<'_, StoreInfo> {
        let shared = self.shared.clone();
        self.readers.ask(move |connection| {
            let Meta {
                epoch,
                secret,
                lives_since,
                ..
            } = Meta::read(connection)?;
            let (now, index) = (shared.clock.now(), shared.index()?);
            let counts = Counts {
                records: index.len() as u64,
                refused: index.refused(now),
            };
            Ok(StoreInfo {
                now,
                epoch: epoch.unsigned_abs(),
                secret,
                lives_since,
                counts: Some(counts),
            })
        })
    }

    fn remember(&self, principals: Vec<KnownPrincipal>) -> Reply<'_, ()> {
        self.writer
            .write(size_of_val(&*principals), move |transaction| {
                transaction.remember(&principals)
            })
    }

    fn knows(&self, principal: PrincipalId) -> Reply<'_, bool> {
        let clock = self.shared.clock.clone();
        self.readers
            .ask(move |connection| principals::knows(connection, principal, clock.now()))
    }

    fn log(&self, query: LogQuery) -> Reply<'_, Vec<LogEntry>> {
        self.readers
            .ask(move |connection| audit::OWN.read(connection, &query))
    }

    fn note(&self, note: Note) -> Reply<'_, LogEntry> {
        // The reason has a maximum length; the rest is negligible.
        self.writer
            .write(REASON_BYTES_MAX, move |transaction| transaction.note(note))
    }
}
