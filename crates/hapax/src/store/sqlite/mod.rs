//! The embedded store: one SQLite file, owned by one process.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hapax::{Hapax, Sqlite};
//!
//! let hapax = Hapax::new(Sqlite::open("hapax.db").await?).namespace("payments");
//! # Ok(()) }
//! ```
//!
//! One thread writes. Whatever arrives while a commit is on its way to the disk goes into the next one together, so that many
//! callers share one fsync and a single caller waits for nobody. Readers have connections of their own.
//!
//! The file has one owner, held by a lock on a file beside it. That makes a restart simple: a lease from before it belongs to nobody
//! and is over at once. Other processes may look through a [`View`].

mod owner;
mod reader;
mod row;
mod schema;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::TrySendError;

use hapax_core::record::Head;
use hapax_core::scope::RecordId;
use hapax_core::store::{ListQuery, Pulse, Put, Reading, Renewal, Reply, Store, StoreError, Swept, Written};
use hapax_core::time::Clock;
use tokio::sync::oneshot;

pub use reader::View;

use self::owner::Owner;
use self::reader::Readers;
use self::schema::Opened;
use self::writer::Writer;

/// SQLite before this version can corrupt a database in WAL mode (the WAL-reset bug).
pub const SQLITE_VERSION_MIN: i32 = 3_051_003;

/// Records in one SQLite file.
pub struct Sqlite {
    // Dropped before the writer: the owner's lock goes last, when nothing touches the file any more.
    readers: Readers,
    writer: Writer,
}

/// How to open a file.
#[derive(Default)]
pub struct Options {
    /// Where time comes from; the machine's own clock unless a test turns one by hand.
    pub clock: Option<Arc<dyn Clock>>,
}

/// Why a file could not be opened. The text says what to do.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has it.
    #[error(
        "{path} is in use by process {owner}: one process owns a store file. Stop that process, use another file, or open a read-only view"
    )]
    Owned {
        /// The file.
        path: PathBuf,
        /// The other process's id, or what is known of it.
        owner: String,
    },
    /// There is no file to own.
    #[error("a store is a file: give it a path. For records in memory use `hapax::store::memory()`")]
    NotAPath,
    /// The file belongs to something else.
    #[error("{path} is not a Hapax store: choose another path, or move that file away")]
    NotAStore {
        /// The file.
        path: PathBuf,
    },
    /// The file was written by a newer version.
    #[error("{path} has store format {found}, this version knows formats up to {known}: run a newer version of Hapax")]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: i64,
        /// The newest format this version knows.
        known: i64,
    },
    /// The SQLite this program was linked with is not safe.
    #[error("SQLite {found} can corrupt a database in WAL mode: link 3.51.3 or newer (the bundled one is)")]
    SqliteTooOld {
        /// The version that was linked.
        found: String,
    },
    /// The file or its directory could not be used.
    #[error("{path} could not be opened")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// SQLite could not use the file.
    #[error("{path} could not be opened as a database")]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
}

/// The text, for a `main` that returns the error: what to do is worth more than the names of fields.
impl fmt::Debug for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        match std::error::Error::source(self) {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
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
        // Opening waits for the disk; a runtime thread must not.
        tokio::task::spawn_blocking(move || Sqlite::open_blocking(&path, options)).await.expect("opening does not panic")
    }

    /// How many commits were made since the file was opened: fewer than writes, when writers share them.
    pub fn commits(&self) -> u64 {
        self.writer.commits()
    }

    fn open_blocking(path: &Path, options: Options) -> Result<Sqlite, OpenError> {
        if rusqlite::version_number() < SQLITE_VERSION_MIN {
            return Err(OpenError::SqliteTooOld { found: rusqlite::version().to_owned() });
        }
        let path = &owner::locate(path)?;
        let owner = Owner::take(path)?;
        let Opened { connection, clock, leases } = schema::open(path, options.clock)?;
        let readers = Readers::start(path, &clock, leases)?;
        Ok(Sqlite { readers, writer: Writer::start(connection, clock, leases, owner) })
    }
}

impl Store for Sqlite {
    fn get(&self, ids: Vec<RecordId>) -> Reply<'_, Reading> {
        self.readers.ask(move |reader| reader.get(&ids))
    }

    fn put_if(&self, put: Put) -> Reply<'_, Written> {
        self.writer.ask(|reply| writer::Command::Put(put, reply))
    }

    fn renew(&self, renewals: Vec<Renewal>) -> Reply<'_, Vec<bool>> {
        self.writer.ask(|reply| writer::Command::Renew(renewals, reply))
    }

    fn list(&self, query: ListQuery) -> Reply<'_, Vec<Head>> {
        self.readers.ask(move |reader| reader.list(&query))
    }

    fn sweep(&self, limit: usize) -> Reply<'_, Swept> {
        self.writer.ask(|reply| writer::Command::Sweep(limit, reply))
    }

    fn pulse(&self) -> Reply<'_, Pulse> {
        self.readers.ask(reader::Reader::pulse)
    }
}

/// What one of the store's threads will answer to a message, if it took it.
fn answered<T: Send + 'static, M>(
    sent: Result<(), TrySendError<M>>,
    answer: oneshot::Receiver<Result<T, StoreError>>,
) -> Reply<'static, T> {
    let stopped = || StoreError::unavailable("the store has stopped");
    let taken = sent.map_err(|error| match error {
        TrySendError::Full(_) => StoreError::unavailable("too many requests are waiting for the store"),
        TrySendError::Disconnected(_) => stopped(),
    });
    Box::pin(async move {
        taken?;
        answer.await.map_err(|_| stopped())?
    })
}

/// A database error as a store error. Damage to the file is nobody's record in particular: the store as a whole cannot be used.
fn store_error(error: rusqlite::Error) -> StoreError {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    let message = match error.sqlite_error_code() {
        Some(DatabaseCorrupt | NotADatabase) => "the store file is damaged: restore a backup",
        _ => "the store file could not be used",
    };
    StoreError::unavailable(message).because(error)
}
