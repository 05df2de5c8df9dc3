//! The known principals, and until when they are known.

use hapax_core::scope::PrincipalId;
use hapax_core::store::{KnownPrincipal, StoreError};
use hapax_core::time::Timestamp;
use rusqlite::{Connection, params};

use crate::store::codec::micros;
use crate::store::sqlite_kit::error::store_error;

pub(super) fn remember(
    connection: &Connection,
    principals: &[KnownPrincipal],
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO principals (id, known_until) VALUES (?1, ?2)
        ON CONFLICT (id) DO UPDATE SET known_until = max(known_until, excluded.known_until)";
    let mut statement = connection.prepare_cached(sql)?;
    for KnownPrincipal { id, until } in principals {
        statement.execute(params![&id.as_bytes()[..], micros(*until)])?;
    }
    Ok(())
}

pub(super) fn knows(
    connection: &Connection,
    id: PrincipalId,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM principals WHERE id = ?1 AND known_until > ?2";
    let exists = |mut statement: rusqlite::CachedStatement<'_>| {
        statement.exists(params![&id.as_bytes()[..], micros(now)])
    };
    connection
        .prepare_cached(sql)
        .and_then(exists)
        .map_err(store_error)
}

/// Removes up to `limit` principals that are no longer known.
pub(super) fn remove_unknown(
    connection: &Connection,
    now: Timestamp,
    limit: usize,
) -> rusqlite::Result<()> {
    let sql = "DELETE FROM principals WHERE id IN (
        SELECT id FROM principals WHERE known_until <= ?1 ORDER BY known_until LIMIT ?2)";
    connection
        .prepare_cached(sql)?
        .execute(params![micros(now), limit as i64])
        .map(drop)
}
