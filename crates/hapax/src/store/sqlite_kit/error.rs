//! Errors of stores in SQLite files, by what a caller can do about them.

use std::fmt;
use std::path::{Path, PathBuf};

use hapax_core::store::{StoreError, StoreErrorKind};
use rusqlite::ErrorCode;

/// Why a file could not be opened. The text says what to do.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process owns the file.
    #[error(
        "{path} is in use by process {owner}: one process owns a store file. Stop that process, use another file, or open a read-only view"
    )]
    Owned {
        /// The file.
        path: PathBuf,
        /// The id of the other process, if it is known.
        owner: String,
    },
    /// The path is empty, or names no file.
    #[error(
        "a store is a file: give it a path. For records in memory use `hapax::store::memory()`"
    )]
    NotAPath,
    /// The file is an embedded store, not a user's file.
    #[error(
        "{path} is a store that Hapax owns alone: open it with `Sqlite::open`, or give `Guest` the file in which your own tables are"
    )]
    OwnStore {
        /// The file.
        path: PathBuf,
    },
    /// Another connection's transaction keeps the file from being prepared.
    #[error("{path} is locked by another connection: end its transaction, and try again")]
    Locked {
        /// The file.
        path: PathBuf,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// The file belongs to another program.
    #[error("{path} is not a Hapax store: choose another path, or move that file away")]
    NotAStore {
        /// The file.
        path: PathBuf,
    },
    /// The file was written by a newer version.
    #[error(
        "{path} has store format {found}, this version knows formats up to {known}: run a newer version of Hapax"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: i64,
        /// The newest format this version knows.
        known: i64,
    },
    /// The file was written by a version that is too old.
    #[error(
        "{path} has store format {found}, this version knows formats from {known} on: begin with a new file"
    )]
    Older {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: i64,
        /// The oldest format this version knows.
        known: i64,
    },
    /// The file is damaged.
    #[error(
        "{path} is damaged or cut short: keep a copy of it and of the files beside it, and restore a backup"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The error that revealed it.
        source: StoreError,
    },
    /// The store is being copied, was moved, or is an unfinished copy.
    #[error("{path} {refusal}")]
    OutOfUse {
        /// The file.
        path: PathBuf,
        /// Its standing, and what to do.
        refusal: String,
    },
    /// The file has a second hard link.
    #[error(
        "{path} has a second name, a hard link, by which it could have a second owner: remove the link, or copy the file"
    )]
    Linked {
        /// The file.
        path: PathBuf,
    },
    /// The file could not be read completely, but is not known to be damaged.
    #[error("{path} could not be read: see what the system says of its disk, and try again")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: StoreError,
    },
    /// The file system does not support a write-ahead log.
    #[error("{path} is on a file system on which SQLite has no write-ahead log: use a local disk")]
    NoLog {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be written.
    #[error(
        "{path} cannot be written: check its permissions, its directory's, and whether its file system is mounted read-only"
    )]
    ReadOnly {
        /// The file.
        path: PathBuf,
    },
    /// The linked version of SQLite is not safe.
    #[error(
        "SQLite {found} can corrupt a database in WAL mode: link 3.51.3 or newer (the bundled one is)"
    )]
    SqliteTooOld {
        /// The version that was linked.
        found: String,
    },
    /// The file or its directory could not be used.
    #[error(
        "{path} could not be opened: check that the file and its directory are there and may be written"
    )]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// SQLite could not use the file.
    #[error("{path} could not be opened as a database")]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// SQLite's error.
        source: rusqlite::Error,
    },
}

/// Prints the message, for a `main` that returns the error: what to do is more useful than the
/// fields.
impl fmt::Debug for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        match std::error::Error::source(self) {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

/// A database error as a store error. The text is for readers of the log, and says what to do.
pub(in crate::store) fn store_error(error: rusqlite::Error) -> StoreError {
    let text = match (&error, error.sqlite_error_code()) {
        (_, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)) => {
            "the store file is damaged: stop, keep a copy of it, and restore a backup"
        }
        (_, Some(ErrorCode::DiskFull)) => {
            "the disk of the store file is full: make room, and it goes on by itself"
        }
        (_, Some(ErrorCode::ReadOnly)) => {
            "the store file cannot be written: is its file system mounted read-only?"
        }
        (_, Some(ErrorCode::SystemIoFailure)) => {
            "the disk of the store file fails: see the system's log, and move the store to a sound disk if it goes on"
        }
        (_, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)) => {
            "another program holds a lock on the store file: let it end, as nothing else may write there"
        }
        (_, Some(ErrorCode::CannotOpen)) => {
            "the store file cannot be opened: is it still there, and may it be written?"
        }
        (
            rusqlite::Error::InvalidColumnType(..) | rusqlite::Error::FromSqlConversionFailure(..),
            _,
        ) => {
            return StoreError::corrupt("a record is damaged: restore a backup").because(error);
        }
        _ => "the store file could not be used",
    };
    StoreError::unavailable(text).because(error)
}

/// Whether the connection can no longer be trusted after a write failed with this error. After a
/// disk error other than a full disk, the system's memory of the file may differ from the disk.
/// Damage is excluded, because reopening the file does not repair it.
pub(in crate::store) fn is_suspect(error: &rusqlite::Error) -> bool {
    use ErrorCode::{
        ApiMisuse, CannotOpen, FileLockingProtocolFailed, InternalMalfunction, NotADatabase,
        OutOfMemory,
    };
    use ErrorCode::{PermissionDenied, ReadOnly, SystemIoFailure};
    matches!(
        error.sqlite_error_code(),
        Some(
            SystemIoFailure
                | CannotOpen
                | ReadOnly
                | NotADatabase
                | PermissionDenied
                | FileLockingProtocolFailed
                | InternalMalfunction
                | ApiMisuse
                | OutOfMemory
        )
    )
}

/// Whether SQLite found the file damaged.
pub(in crate::store) fn is_damage(error: &StoreError) -> bool {
    let source = std::error::Error::source(error)
        .and_then(|source| source.downcast_ref::<rusqlite::Error>());
    source.is_some_and(|source| source.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt))
}

/// The error for a file that could not be read: it is damaged, or the disk failed.
pub(in crate::store) fn unreadable(path: &Path, source: StoreError) -> OpenError {
    let path = path.to_owned();
    match source.kind() {
        StoreErrorKind::Corrupt => OpenError::Damaged { path, source },
        _ => OpenError::Unreadable { path, source },
    }
}

pub(in crate::store) fn explain(path: &Path, source: rusqlite::Error) -> OpenError {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase, ReadOnly};
    let path = path.to_owned();
    match source.sqlite_error_code() {
        Some(NotADatabase) => OpenError::NotAStore { path },
        Some(DatabaseCorrupt) => OpenError::Damaged {
            path,
            source: StoreError::corrupt("SQLite says so").because(source),
        },
        Some(ReadOnly) => OpenError::ReadOnly { path },
        _ => OpenError::Sqlite { path, source },
    }
}
