//! Backups: a consistent copy of the file while it is in use.
//!
//! The writer itself copies, a few pages at a time, and goes on serving in between; what it writes meanwhile goes into the copy as
//! well. So no reader holds the log, and the copy is the store as it was at the end of the backup.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hapax_core::Timestamp;
use hapax_core::store::StoreError;
use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};
use tempfile::NamedTempFile;

use super::error::store_error;
use super::row::micros;

/// Pages copied between two batches: so few that a caller hardly waits longer.
const STEP_PAGES: i32 = 32;
/// Tries of one step that another program's lock stands against.
const BUSY_TRIES_MAX: usize = 100;

/// A backup that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Copied {
    /// How large it is.
    pub bytes: u64,
    /// The store's time at its end: every write acknowledged before is in it.
    pub at: Timestamp,
}

/// Why there is no backup. The text says what to do; the store is not affected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// Nothing is overwritten.
    #[error("{path} exists: choose a new path for the backup, or move that file away")]
    Exists {
        /// The file that is there.
        path: PathBuf,
    },
    /// The copy could not be written.
    #[error("the backup {path} could not be written: see whether there is room, and whether the directory may be written")]
    Io {
        /// The copy.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The store could not be read, or the copy not be written.
    #[error("the backup was not completed")]
    Store(#[source] StoreError),
}

/// Where a backup grows until it is whole. Goes with the value, unless it was finished.
pub(super) fn begin(to: &Path) -> Result<NamedTempFile, BackupError> {
    if to.exists() {
        return Err(BackupError::Exists { path: to.to_owned() });
    }
    let directory = directory(to);
    tempfile::Builder::new()
        .prefix(".hapax-backup-")
        .tempfile_in(directory)
        .map_err(|source| BackupError::Io { path: to.to_owned(), source })
}

/// The writer's part: copies everything, calling `between` between two steps. That says whether to go on.
pub(super) fn copy(from: &Connection, to: &Path, mut between: impl FnMut() -> bool) -> Result<Copied, StoreError> {
    let mut copy = Connection::open(to).map_err(store_error)?;
    // Nobody needs half a copy: it is synced once, when it is whole, and not by the writer.
    copy.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF").map_err(store_error)?;
    let backup = Backup::new(from, &mut copy).map_err(store_error)?;
    let mut busy = 0;
    loop {
        match backup.step(STEP_PAGES).map_err(store_error)? {
            StepResult::Done => break,
            StepResult::More => busy = 0,
            _ if busy < BUSY_TRIES_MAX => {
                busy += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            _ => return Err(StoreError::unavailable("another program holds a lock on the store file")),
        }
        if !between() {
            return Err(StoreError::unavailable("the store failed while it was copied"));
        }
    }
    drop(backup);
    let bytes = std::fs::metadata(to).map_or(0, |file| file.len());
    Ok(Copied { bytes, at: Timestamp::ZERO })
}

/// Marks the copy as one, makes it durable, and gives it its name.
pub(super) fn finish(file: NamedTempFile, to: &Path, at: Timestamp) -> Result<(), BackupError> {
    let failed = |source| BackupError::Io { path: to.to_owned(), source };
    mark(file.path(), at).map_err(|error| BackupError::Store(store_error(error)))?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist_noclobber(to).map_err(|error| match error.error.kind() {
        io::ErrorKind::AlreadyExists => BackupError::Exists { path: to.to_owned() },
        _ => failed(error.error),
    })?;
    File::open(directory(to)).and_then(|directory| directory.sync_all()).map_err(failed)
}

/// Whoever opens the copy as a store shall know that it is one.
fn mark(copy: &Path, at: Timestamp) -> rusqlite::Result<()> {
    let connection = Connection::open(copy)?;
    connection.execute("UPDATE meta SET copied_us = ?1", [micros(at)])?;
    connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")?;
    connection.close().map_err(|(_, error)| error)
}

pub(super) fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
