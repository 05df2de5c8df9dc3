//! What SQLite says, as what a caller can act on.

use hapax_core::store::StoreError;
use rusqlite::ErrorCode;

/// A database error as a store error. The text is for whoever reads the log: it says what to do.
pub(super) fn store_error(error: rusqlite::Error) -> StoreError {
    let text = match (&error, error.sqlite_error_code()) {
        (_, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)) => {
            "the store file is damaged: stop, keep a copy of it, and restore a backup"
        }
        (_, Some(ErrorCode::DiskFull)) => "the disk of the store file is full: make room, and it goes on by itself",
        (_, Some(ErrorCode::ReadOnly)) => "the store file cannot be written: is its file system mounted read-only?",
        (_, Some(ErrorCode::SystemIoFailure)) => {
            "the disk of the store file fails: see the system's log, and move the store to a sound disk if it goes on"
        }
        (_, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)) => {
            "another program holds a lock on the store file: let it end, as nothing else may write there"
        }
        (_, Some(ErrorCode::CannotOpen)) => "the store file cannot be opened: is it still there, and may it be written?",
        (rusqlite::Error::InvalidColumnType(..) | rusqlite::Error::FromSqlConversionFailure(..), _) => {
            return StoreError::corrupt("a record is damaged: restore a backup").because(error);
        }
        _ => "the store file could not be used",
    };
    StoreError::unavailable(text).because(error)
}

/// Whether the connection can no longer be trusted after a write failed with this: when the disk said no for a reason other than
/// space, what the system's memory says about the file may not be what is on the disk. Damage does not go by opening the file again.
pub(super) fn is_suspect(error: &rusqlite::Error) -> bool {
    use ErrorCode::{ApiMisuse, CannotOpen, FileLockingProtocolFailed, InternalMalfunction, NotADatabase, OutOfMemory};
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

/// Whether it is SQLite that found the file damaged.
pub(super) fn is_damage(error: &StoreError) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<rusqlite::Error>());
    source.is_some_and(|source| source.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt))
}
