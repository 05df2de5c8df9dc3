//! Errors of the guest store, by what a caller can do about them.

use hapax_core::store::{StoreError, StoreErrorKind};
use rusqlite::ErrorCode;

use crate::store::sqlite_kit::error;

/// A database error as a store error. In a file that other programs write too, a busy file is
/// normal.
pub(super) fn store_error(error: rusqlite::Error) -> StoreError {
    if is_busy(&error) {
        locked().because(error)
    } else {
        error::store_error(error)
    }
}

/// Another transaction is open, so nothing can be written.
pub(super) fn locked() -> StoreError {
    StoreError::new(
        StoreErrorKind::Locked,
        "a transaction on the database file has been open for too long: SQLite lets one write at a time. Keep transactions short",
    )
}

pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}
