//! Backups: a consistent copy of the file while it is in use.
//!
//! The writer itself copies, a few pages at a time, and serves requests in between; what it writes
//! meanwhile goes into the copy as well. So no reader holds the log, and the copy is the store as
//! it was at the end of the backup.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use hapax_core::Timestamp;
use hapax_core::store::StoreError;
use hapax_core::time::Clock;
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use tempfile::NamedTempFile;

use super::owner::with_suffix;
use super::schema::Meta;
use super::view;
use crate::store::sqlite_kit::error::store_error;

/// Pages copied between two batches: few, so that callers hardly wait longer.
const STEP_PAGES: i32 = 16;
/// How often the part copied so far is synced to the disk.
const SYNC_EVERY: Duration = Duration::from_millis(5);
/// Tries of one step while another program holds a lock.
const BUSY_TRIES_MAX: usize = 100;

/// A completed backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Copied {
    /// Its size.
    pub bytes: u64,
    /// The store's time at its end: every write acknowledged before is in it.
    pub at: Timestamp,
}

/// Why the backup failed. The text says what to do; the store is not affected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The target exists, and nothing is overwritten.
    #[error("{path} exists: choose a new path for the backup, or move that file away")]
    Exists {
        /// The existing file.
        path: PathBuf,
    },
    /// The copy could not be written.
    #[error(
        "the backup {path} could not be written: see whether there is room, and whether the directory may be written"
    )]
    Io {
        /// The copy.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The store could not be read, or the copy could not be written.
    #[error("the backup was not completed")]
    Store(#[source] StoreError),
}

/// Creates the temporary file in which a backup grows. Dropping it removes the file, unless the
/// backup was finished.
pub(super) fn begin(to: &Path) -> Result<NamedTempFile, BackupError> {
    if to.exists() {
        return Err(BackupError::Exists {
            path: to.to_owned(),
        });
    }
    let directory = directory(to);
    tempfile::Builder::new()
        .prefix(".hapax-backup-")
        .tempfile_in(directory)
        .map_err(|source| BackupError::Io {
            path: to.to_owned(),
            source,
        })
}

/// The writer's part: copies everything, and calls `between` between two steps, which returns
/// whether to continue.
pub(super) fn copy(
    from: &Connection,
    to: &Path,
    clock: &dyn Clock,
    mut between: impl FnMut() -> bool,
) -> Result<Copied, StoreError> {
    let failed = |error| {
        StoreError::unavailable("the store could not be read, or its copy not be written")
            .because(error)
    };
    // The file exists, unless the caller has gone and its drop has removed it.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut copy = Connection::open_with_flags(to, flags).map_err(failed)?;
    // An incomplete copy is of no use: it is synced once when it is whole, and not by the writer.
    copy.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
        .map_err(failed)?;
    let backup = Backup::new(from, &mut copy).map_err(failed)?;
    let mut busy = 0;
    loop {
        match backup.step(STEP_PAGES).map_err(failed)? {
            StepResult::Done => break,
            StepResult::More => busy = 0,
            _ if busy < BUSY_TRIES_MAX => {
                busy += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            _ => {
                return Err(StoreError::unavailable(
                    "another program holds a lock on the store file",
                ));
            }
        }
        if !between() {
            return Err(StoreError::unavailable("the backup was given up"));
        }
    }
    // Read before anything more is written: later writes are not in the copy.
    let at = clock.now();
    drop(backup);
    let bytes = std::fs::metadata(to).map_or(0, |file| file.len());
    Ok(Copied { bytes, at })
}

/// Copies one snapshot through a read-only connection. The owner continues to write, and its log
/// grows until this is over.
pub(super) fn copy_from_outside(from: &Connection, to: &Path) -> Result<Copied, BackupError> {
    let failed = |error| BackupError::Store(store_error(error));
    let file = begin(to)?;
    // The first read fixes the snapshot.
    let snapshot = from.unchecked_transaction().map_err(failed)?;
    let (clock, _) = view::clock(&Meta::read(from).map_err(BackupError::Store)?);
    let at = clock.now();
    let copied = copy(from, file.path(), &clock, || true).map_err(BackupError::Store)?;
    drop(snapshot);
    finish(file, to, at)?;
    Ok(Copied { at, ..copied })
}

/// Syncs the copy bit by bit while it grows, until the guard is dropped. Syncing everything at the
/// end would delay the store's own commits.
pub(super) fn sync_meanwhile(file: &NamedTempFile) -> io::Result<Syncing> {
    let (file, (guard, is_over)) = (file.reopen()?, mpsc::channel::<()>());
    tokio::task::spawn_blocking(move || {
        while is_over.recv_timeout(SYNC_EVERY) == Err(RecvTimeoutError::Timeout) {
            // If this fails, the sync at the end fails too, and reports it.
            let _ = file.sync_data();
        }
    });
    Ok(Syncing { _guard: guard })
}

/// The guard of [`sync_meanwhile`].
pub(super) struct Syncing {
    _guard: mpsc::Sender<()>,
}

/// Marks the file as a copy, makes it durable, and renames it.
pub(super) fn finish(file: NamedTempFile, to: &Path, at: Timestamp) -> Result<(), BackupError> {
    let failed = |source| BackupError::Io {
        path: to.to_owned(),
        source,
    };
    let marked = mark(file.path(), at);
    for end in ["-wal", "-shm", "-journal"] {
        let _ = std::fs::remove_file(with_suffix(file.path(), end));
    }
    marked.map_err(BackupError::Store)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist_noclobber(to)
        .map_err(|error| match error.error.kind() {
            io::ErrorKind::AlreadyExists => BackupError::Exists {
                path: to.to_owned(),
            },
            _ => failed(error.error),
        })?;
    File::open(directory(to))
        .and_then(|directory| directory.sync_all())
        .map_err(failed)
}

/// Marks the file as a copy, so that opening it as a store detects that. Not in WAL mode, so that
/// no other file is left beside it.
fn mark(copy: &Path, at: Timestamp) -> Result<(), StoreError> {
    let connection = Connection::open_with_flags(copy, OpenFlags::SQLITE_OPEN_READ_WRITE)
        .map_err(store_error)?;
    connection
        .execute_batch("PRAGMA journal_mode = DELETE")
        .map_err(store_error)?;
    let meta = Meta {
        copied: at,
        ..Meta::read(&connection)?
    };
    meta.write(&connection).map_err(store_error)
}

pub(super) fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
