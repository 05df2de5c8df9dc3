//! Forgetting: SQLite overwrites deleted bytes in the file (`secure_delete`), and their copy in the
//! log is removed by truncating the log.

use std::path::Path;
use std::time::{Duration, Instant};

use hapax_core::store::{StoreError, StoreErrorKind};
use rusqlite::OpenFlags;

use super::error::is_busy;
use super::rest::Rest;
use super::schema;

/// Copies the log into the file and truncates it, as soon as no other connection uses it.
pub(super) fn cut_log(path: &Path, timeout: Duration) -> Result<(), StoreError> {
    let connection = schema::connect(path, OpenFlags::empty(), timeout)
        .map_err(|error| unerased().because(error))?;
    let (until, mut rest) = (Instant::now() + timeout, Rest::default());
    loop {
        let is_held = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| {
            row.get::<_, bool>(0)
        });
        match is_held {
            Ok(false) => return Ok(()),
            Err(error) if !is_busy(&error) => return Err(unerased().because(error)),
            Ok(true) | Err(_) if Instant::now() < until => rest.take(),
            Ok(true) | Err(_) => return Err(unerased()),
        }
    }
}

fn unerased() -> StoreError {
    let text = "somebody reads or writes the database file, and holds the log in which the bytes still are; they go when the log is reused";
    StoreError::new(StoreErrorKind::Unerased, text)
}
