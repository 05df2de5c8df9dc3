//! What can go wrong, as what a caller can act on.

use hapax_core::store::{StoreError, StoreErrorKind};
use rusqlite::ErrorCode;

use crate::store::sqlite_kit::error;

/// A database error as a store error. In a file that others write too, one that is locked is
/// nothing out of the ordinary.
pub(super) fn store_error(error: rusqlite::Error) -> StoreError {
    if is_busy(&error) {
        locked().because(error)
    } else {
        error::store_error(error)
    }
}

/// Nobody else can write while somebody's transaction is open.
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
