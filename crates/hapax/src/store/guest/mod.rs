//! Records in the user's own SQLite file, so that an effect and its record can be one commit.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hapax::{Guest, Hapax};
//!
//! // The file in which the service's own tables are.
//! let hapax = Hapax::new(Guest::open("shop.db").await?).namespace("shop");
//! # Ok(()) }
//! ```
//!
//! With other settings:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use hapax::store::guest::{Guest, Options};
//!
//! let options = Options { busy_timeout: Duration::from_millis(200), ..Options::default() };
//! let guest = Guest::open_with("shop.db", options).await?;
//! # Ok(()) }
//! ```
//!
//! The names of the tables begin with `hapax_`; nothing else in the file is touched. Any number of
//! processes on one machine may have the file open, each with its own connections for its work.
//! Every write is a transaction that takes SQLite's write lock, reads the record, asks the guard
//! and writes. SQLite has one write lock for the whole file: while a transaction of yours that has
//! written is open, no key can be claimed. Duplicates are still answered, because reading needs no
//! lock.
//!
//! If the file would contain nothing else, use [`Sqlite`](crate::Sqlite), which is designed for
//! many keys and erases forgotten answers more thoroughly.
//!
//! Guide to the code: `schema` has the tables and opens the file, `row` reads and writes heads,
//! `transaction` is one write transaction, `writer` runs them, `reader` serves reads, `join` ends
//! attempts in the user's transaction, and `erase` erases forgotten answers.

mod erase;
mod error;
mod join;
mod reader;
mod rest;
mod row;
mod schema;
mod transaction;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hapax_core::audit::{LogEntry, LogQuery, Note};
use hapax_core::record::Head;
use hapax_core::scope::{PrincipalId, RecordId};
use hapax_core::store::{
    Change, Joins, KnownPrincipal, ListQuery, Put, Reading, Renewal, Reply, Store, StoreError,
    StoreInfo, Swept, Written,
};
use hapax_core::time::{Clock, Timestamp};
use rusqlite::Connection;

use self::row::{Policies, Rows};
use self::schema::{Meta, Opened};
use self::writer::Writer;
use super::sqlite_kit::{Readers, audit, blocking};

pub use super::sqlite::{OpenError, SQLITE_VERSION_MIN};

/// Writes an entry into the audit log of a user's file, in the transaction that is open on this
/// connection. For operators of the outbox, whose changes commit with it.
#[doc(hidden)]
pub fn write_down(connection: &Connection, note: Note, now: Timestamp) -> rusqlite::Result<()> {
    audit::GUEST
        .write(connection, LogEntry::noted(note, now))
        .map(drop)
}

/// Records in a SQLite file that other programs write too.
pub struct Guest {
    readers: Readers,
    writer: Writer,
    shared: Arc<Shared>,
    erase_timeout: Duration,
}

/// How to open a file.
pub struct Options {
    /// The source of time; `None` for the machine's clock. Tests set their own.
    pub clock: Option<Arc<dyn Clock>>,
    /// How long a write waits while other transactions are open; one second by default. Then it
    /// fails with an error of the kind
    /// [`StoreErrorKind::Locked`](hapax_core::store::StoreErrorKind::Locked), and callers are told
    /// to try again. It should be shorter than
    /// [`Policy::store_timeout`](crate::Policy::store_timeout), after which callers stop waiting
    /// for the store. Opening waits five times as long.
    pub busy_timeout: Duration,
    /// How long `forget` waits for the log to be unused so that it can be truncated; five seconds
    /// by default. Then it fails with an error of the kind
    /// [`StoreErrorKind::Unerased`](hapax_core::store::StoreErrorKind::Unerased).
    pub erase_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            clock: None,
            busy_timeout: Duration::from_secs(1),
            erase_timeout: Duration::from_secs(5),
        }
    }
}

/// The longest allowed timeout: longer ones are of no use, and SQLite counts milliseconds in a
/// small integer.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The state that all threads share.
struct Shared {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    policies: Policies,
}

impl Shared {
    fn rows<'a>(&'a self, connection: &'a Connection) -> Rows<'a> {
        Rows {
            connection,
            policies: &self.policies,
        }
    }
}

impl Guest {
    /// Opens the file, and creates the tables if they are missing. A missing file is created; a
    /// file without a write-ahead log is switched to one.
    pub async fn open(path: impl AsRef<Path>) -> Result<Guest, OpenError> {
        Guest::open_with(path, Options::default()).await
    }

    /// Opens the file with options.
    pub async fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Guest, OpenError> {
        let path = path.as_ref().to_owned();
        // Opening blocks on the disk, so it must not run on a runtime thread.
        blocking(move || Guest::open_blocking(&path, options)).await
    }

    fn open_blocking(path: &Path, options: Options) -> Result<Guest, OpenError> {
        let Options {
            clock,
            busy_timeout,
            erase_timeout,
        } = options;
        let (busy_timeout, erase_timeout) = (
            busy_timeout.min(TIMEOUT_MAX),
            erase_timeout.min(TIMEOUT_MAX),
        );
        let Opened {
            path,
            connection,
            clock,
        } = schema::open(path, clock, busy_timeout)?;
        let shared = Arc::new(Shared {
            path,
            clock,
            policies: Policies::default(),
        });
        let readers = reader::start(&shared, busy_timeout)?;
        let writer = Writer::start(&shared, connection, busy_timeout)?;
        Ok(Guest {
            readers,
            writer,
            shared,
            erase_timeout,
        })
    }

    async fn put(&self, put: Put) -> Result<Written, StoreError> {
        let put = Arc::new(put);
        let (asked, shared) = (put.clone(), self.shared.clone());
        if let Some(seen) = self
            .readers
            .ask(move |connection| reader::refused(shared.rows(connection), &asked, &*shared.clock))
            .await?
        {
            return Ok(Written::Lost(seen));
        }
        let is_forgetting = matches!(put.change, Change::Forget(..));
        // Encoded here, on the caller's task, because there is only one writer thread.
        let content = put.change.answer().map(|answer| answer.encode(&put.id));
        let written = self
            .writer
            .ask(move |transaction| transaction.put_if(&put, content.as_deref()))
            .await?;
        if is_forgetting && matches!(written, Written::Won(_)) {
            let (shared, timeout) = (self.shared.clone(), self.erase_timeout);
            blocking(move || erase::cut_log(&shared.path, timeout)).await?;
        }
        Ok(written)
    }

    async fn list_all(&self, mut query: ListQuery) -> Result<Vec<Head>, StoreError> {
        let (mut heads, limit) = (Vec::new(), query.limit);
        while heads.len() < limit {
            query.limit = limit - heads.len();
            let (asked, shared) = (query.clone(), self.shared.clone());
            let part = self
                .readers
                .ask(move |connection| {
                    reader::list(shared.rows(connection), &asked, &*shared.clock)
                })
                .await?;
            heads.extend(part.heads);
            if part.next.is_none() {
                break;
            }
            query.after = part.next;
        }
        Ok(heads)
    }
}

impl Store for Guest {
    fn get(&self, ids: Vec<RecordId>) -> Reply<'_, Reading> {
        let shared = self.shared.clone();
        self.readers
            .ask(move |connection| reader::get(shared.rows(connection), &ids, &*shared.clock))
    }

    fn put_if(&self, put: Put) -> Reply<'_, Written> {
        Box::pin(self.put(put))
    }

    fn renew(&self, renewals: Vec<Renewal>) -> Reply<'_, Vec<bool>> {
        self.writer
            .ask(move |transaction| transaction.renew(&renewals))
    }

    fn list(&self, query: ListQuery) -> Reply<'_, Vec<Head>> {
        Box::pin(self.list_all(query))
    }

    fn sweep(&self, limit: usize) -> Reply<'_, Swept> {
        self.writer.ask(move |transaction| transaction.sweep(limit))
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
            // Counts are left out, because counting would read the whole table.
            Ok(StoreInfo {
                now: shared.clock.now(),
                epoch,
                secret,
                lives_since,
                counts: None,
            })
        })
    }

    /// Remembers no principals: without counts, no limit would ask for them.
    fn remember(&self, _: Vec<KnownPrincipal>) -> Reply<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn knows(&self, _: PrincipalId) -> Reply<'_, bool> {
        Box::pin(async { Ok(false) })
    }

    fn log(&self, query: LogQuery) -> Reply<'_, Vec<LogEntry>> {
        self.readers
            .ask(move |connection| audit::GUEST.read(connection, &query))
    }

    fn note(&self, note: Note) -> Reply<'_, LogEntry> {
        self.writer.ask(move |transaction| transaction.note(note))
    }

    fn joins(&self) -> Option<&dyn Joins> {
        Some(self)
    }
}
