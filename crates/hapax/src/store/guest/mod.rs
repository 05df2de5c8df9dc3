//! Records as guests in the user's own SQLite file, so that an effect and its record can be one
//! commit.
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
//! The tables begin with `hapax_`; nothing else of the file is touched. Any number of processes on
//! one machine may have it open, with the connections of their own that do the work. Every write is
//! a transaction that takes SQLite's lock, reads the record, asks the guard and writes. SQLite has
//! one such lock for the whole file: while a transaction of yours is open that has written, no key
//! can be claimed. Duplicates are told all the same, as reading waits for nobody.
//!
//! Where nothing else is in the file, [`Sqlite`](crate::Sqlite) is laid out for many keys, and
//! forgets more thoroughly.
//!
//! To read the code: `schema` has the tables and the opening, `row` a head as a row, `transaction`
//! one transaction, `writer` who runs them, `reader` those who only look, `join` the transaction of
//! somebody else, `erase` what is left of a forgotten answer.

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
use hapax_core::time::Clock;
use rusqlite::Connection;

use self::row::{Policies, Rows};
use self::schema::{Meta, Opened};
use self::writer::Writer;
use super::sqlite_kit::{Readers, audit, blocking};

pub use super::sqlite::{OpenError, SQLITE_VERSION_MIN};

/// Records in a SQLite file that others write too.
pub struct Guest {
    readers: Readers,
    writer: Writer,
    shared: Arc<Shared>,
    erase_timeout: Duration,
}

/// How to open a file.
pub struct Options {
    /// Where time comes from; the machine's own clock unless a test turns one by hand.
    pub clock: Option<Arc<dyn Clock>>,
    /// How long a write waits while transactions of others are open, a second unless said
    /// otherwise. After that it is an error of the kind
    /// [`StoreErrorKind::Locked`](hapax_core::store::StoreErrorKind::Locked), and callers are told
    /// to try again. To be shorter than [`Policy::store_timeout`](crate::Policy::store_timeout),
    /// after which nobody waits for the store any more. Opening waits five times as long.
    pub busy_timeout: Duration,
    /// How long a forgetting waits until nobody uses the log and it can be cut: five seconds unless
    /// said otherwise. After that it is an error of the kind
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

/// The longest that anything waits here: nobody has the patience, and SQLite counts it in a small
/// number.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// What all threads have in common.
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
    /// Opens the file, and makes the tables in it if they are missing. A file that is not there is
    /// created; one that has no write-ahead log yet gets one.
    pub async fn open(path: impl AsRef<Path>) -> Result<Guest, OpenError> {
        Guest::open_with(path, Options::default()).await
    }

    /// Opens the file with options.
    pub async fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Guest, OpenError> {
        let path = path.as_ref().to_owned();
        // Opening waits for the disk; a runtime thread must not.
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
        // Encoded by whoever asks: they are many, and the writer is one.
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
            // Counting would read the whole table.
            Ok(StoreInfo {
                now: shared.clock.now(),
                epoch,
                secret,
                lives_since,
                counts: None,
            })
        })
    }

    /// Remembers nobody: without counts there is no limit that would ask.
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
