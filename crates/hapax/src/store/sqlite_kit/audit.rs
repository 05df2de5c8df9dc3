//! The audit log: rows that outlive the records they are about.

use std::sync::Arc;

use hapax_core::audit::{self, Action, LogEntry, LogQuery, Signed, Start, Touched};
use hapax_core::key::Key;
use hapax_core::record::Fence;
use hapax_core::scope::RecordId;
use hapax_core::store::StoreError;
use hapax_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::Queries;
use super::error::store_error;
use crate::store::codec::{self, micros, state, state_code};

/// In the order in which [`decode`] reads them.
macro_rules! columns {
    () => {
        "sequence, at, action, signed_by, reason, id, namespace, principal, method, path, key, before, after, status, fence, version, \
         checksum, created_at"
    };
}

macro_rules! select {
    ($table:literal, $condition:literal) => {
        concat!(
            "SELECT ",
            columns!(),
            " FROM ",
            $table,
            " WHERE ",
            $condition
        )
    };
}

macro_rules! table {
    ($name:literal) => {
        Table {
            name: $name,
            insert: concat!(
                "INSERT INTO ",
                $name,
                " (",
                columns!(),
                ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)"
            ),
            pages: [
                select!($name, "sequence > ?1 ORDER BY sequence LIMIT ?2"),
                select!($name, "sequence < ?1 ORDER BY sequence DESC LIMIT ?2"),
                select!($name, "sequence <= ?1 ORDER BY sequence DESC LIMIT ?2"),
                select!($name, "id = ?3 AND sequence > ?1 ORDER BY sequence LIMIT ?2"),
                select!($name, "id = ?3 AND sequence < ?1 ORDER BY sequence DESC LIMIT ?2"),
                select!($name, "id = ?3 AND sequence <= ?1 ORDER BY sequence DESC LIMIT ?2"),
            ],
            front: concat!("SELECT at FROM ", $name, " ORDER BY sequence LIMIT 1"),
            oldest: select!($name, "sequence > 0 ORDER BY sequence LIMIT ?1"),
            remove: concat!("DELETE FROM ", $name, " WHERE sequence <= ?1"),
        }
    };
}

/// A log in one table, and the statements on it.
pub(in crate::store) struct Table {
    name: &'static str,
    insert: &'static str,
    /// The pages after a number, before one, and up to one; then the same for one record.
    pages: [&'static str; 6],
    front: &'static str,
    oldest: &'static str,
    remove: &'static str,
}

/// The log of the embedded store.
pub(in crate::store) const OWN: Table = table!("audit");
/// The same in a file of an older format, for reading only.
pub(in crate::store) const OWN_BEFORE_LIVES: Table =
    table!("(SELECT *, 0 AS created_at FROM audit)");
/// The log in a user's file.
pub(in crate::store) const GUEST: Table = table!("hapax_audit");

impl Table {
    /// Writes an entry with the next number, in the transaction of the change it is about.
    pub(in crate::store) fn write(
        &self,
        connection: &Connection,
        entry: LogEntry,
    ) -> rusqlite::Result<LogEntry> {
        // The writer is alone in its transaction.
        let entry = LogEntry {
            sequence: self.last(connection)?.unsigned_abs() + 1,
            ..entry
        };
        self.insert(connection, &entry)?;
        Ok(entry)
    }

    /// The number of the last entry, even if that was removed.
    pub(in crate::store) fn last(&self, connection: &Connection) -> rusqlite::Result<i64> {
        // SQLite's own counter, which includes removed entries.
        let mut last =
            connection.prepare_cached("SELECT seq FROM sqlite_sequence WHERE name = ?1")?;
        Ok(last
            .query_row([self.name], |row| row.get(0))
            .optional()?
            .unwrap_or(0))
    }

    /// Makes the next entry come after this number.
    pub(in crate::store) fn go_on_after(
        &self,
        connection: &Connection,
        sequence: i64,
    ) -> rusqlite::Result<()> {
        if self.last(connection)? < sequence {
            connection.execute("DELETE FROM sqlite_sequence WHERE name = ?1", [self.name])?;
            connection.execute(
                "INSERT INTO sqlite_sequence (name, seq) VALUES (?1, ?2)",
                params![self.name, sequence],
            )?;
        }
        Ok(())
    }

    /// Writes entries with their own numbers, unless they already exist.
    pub(in crate::store) fn insert_new(
        &self,
        connection: &Connection,
        log: &[LogEntry],
    ) -> rusqlite::Result<()> {
        let last = self.last(connection)?.unsigned_abs();
        log.iter()
            .filter(|entry| entry.sequence > last)
            .try_for_each(|entry| self.insert(connection, entry))
    }

    fn insert(&self, connection: &Connection, entry: &LogEntry) -> rusqlite::Result<()> {
        let touched = entry.touched.as_ref();
        let principal = touched.and_then(|touched| codec::principal(&touched.scope));
        connection.prepare_cached(self.insert)?.execute(params![
            entry.sequence as i64,
            micros(entry.at),
            entry.action.word(),
            entry.signed.by(),
            entry.signed.reason(),
            touched.map(|touched| &touched.id.as_bytes()[..]),
            touched.map(|touched| &*touched.scope.namespace),
            principal,
            touched.map(|touched| &*touched.scope.method),
            touched.map(|touched| &*touched.scope.path),
            touched.map(|touched| touched.key.as_str()),
            touched.map(|touched| state_code(touched.before)),
            touched.map(|touched| state_code(touched.after)),
            touched.and_then(|touched| touched.status),
            touched.map(|touched| touched.fence.as_u64() as i64),
            touched.map(|touched| touched.version as i64),
            checksum(entry),
            touched.map_or(0, |touched| micros(touched.created_at)),
        ])?;
        Ok(())
    }

    pub(in crate::store) fn read(
        &self,
        connection: &Connection,
        query: &LogQuery,
    ) -> Result<Vec<LogEntry>, StoreError> {
        let (page, from) = match query.from {
            Start::After(sequence) => (0, sequence),
            Start::Before(sequence) => (1, sequence),
            Start::End => (2, u64::MAX),
        };
        let sql = self.pages[if query.record.is_some() {
            page + 3
        } else {
            page
        }];
        let (from, rows) = (i64::try_from(from).unwrap_or(i64::MAX), query.rows() as i64);
        let queries = Queries {
            connection,
            explain: store_error,
        };
        match &query.record {
            None => queries.all(sql, params![from, rows], decode),
            Some(id) => queries.all(sql, params![from, rows, &id.as_bytes()[..]], decode),
        }
    }

    /// Removes up to `limit` expired entries from the front, and returns how many. A damaged entry
    /// is not trusted to be old: it stays, with all that follow it.
    pub(in crate::store) fn remove_old(
        &self,
        connection: &Connection,
        now: Timestamp,
        limit: usize,
    ) -> rusqlite::Result<usize> {
        let is_old = |at: Timestamp| at.after(audit::KEPT_FOR) <= now;
        let mut front = connection.prepare_cached(self.front)?;
        let front: Option<i64> = front.query_row([], |row| row.get(0)).optional()?;
        if limit == 0 || !front.is_some_and(|at| is_old(Timestamp::from_micros(at.unsigned_abs())))
        {
            return Ok(0);
        }
        let mut statement = connection.prepare_cached(self.oldest)?;
        let mut rows = statement.query([limit as i64])?;
        let mut last = None;
        while let Some(row) = rows.next()? {
            match decode(row) {
                Ok(entry) if is_old(entry.at) => last = Some(entry.sequence),
                _ => break,
            }
        }
        let Some(last) = last else { return Ok(0) };
        connection
            .prepare_cached(self.remove)?
            .execute([last as i64])
    }
}

fn decode(row: &Row<'_>) -> Result<LogEntry, StoreError> {
    let sequence = row.get::<_, i64>(0).map_err(store_error)?.unsigned_abs();
    let damaged = || codec::damaged_entry(sequence);
    let entry = columns_of(row, sequence)
        .map_err(|error| damaged().because(error))?
        .ok_or_else(damaged)?;
    if checksum(&entry)
        != row
            .get::<_, u32>(16)
            .map_err(|error| damaged().because(error))?
    {
        return Err(damaged());
    }
    Ok(entry)
}

/// Decodes the columns of an entry; `None` if they are invalid.
fn columns_of(row: &Row<'_>, sequence: u64) -> rusqlite::Result<Option<LogEntry>> {
    let text = |column| row.get::<_, String>(column);
    let number = |column| row.get::<_, i64>(column);
    let Ok(signed) = Signed::new(&text(3)?, &text(4)?) else {
        return Ok(None);
    };
    let touched = match row.get::<_, Option<[u8; 32]>>(5)? {
        None => None,
        Some(id) => {
            let principal: Option<String> = row.get(7)?;
            let scope = codec::scope(&text(6)?, principal.as_deref(), &text(8)?, &text(9)?);
            let (Ok(key), Ok(before), Ok(after)) =
                (Key::new(text(10)?), state(number(11)?), state(number(12)?))
            else {
                return Ok(None);
            };
            Some(Touched {
                id: RecordId::from_bytes(id),
                scope: Arc::new(scope),
                key,
                created_at: codec::time(number(17)?),
                before,
                after,
                status: row.get(13)?,
                fence: Fence::from_u64(number(14)?.unsigned_abs()),
                version: number(15)?.unsigned_abs(),
            })
        }
    };
    Ok(Some(LogEntry {
        sequence,
        at: codec::time(number(1)?),
        action: Action::of(&text(2)?),
        signed,
        touched,
    }))
}

/// Covers the whole entry, so that a changed bit is detected.
fn checksum(entry: &LogEntry) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    let mut number = |number: i64| sum.update(&number.to_le_bytes());
    number(entry.sequence as i64);
    number(micros(entry.at));
    let touched = entry.touched.as_ref();
    number(i64::from(touched.is_some()));
    let mut texts = vec![
        entry.action.word(),
        entry.signed.by(),
        entry.signed.reason(),
    ];
    if let Some(touched) = touched {
        number(state_code(touched.before).into());
        number(state_code(touched.after).into());
        number(touched.status.map_or(-1, i64::from));
        number(touched.fence.as_u64() as i64);
        number(touched.version as i64);
        // Left out if it is not set, so that the checksums of older entries stay valid.
        if touched.created_at != Timestamp::ZERO {
            number(micros(touched.created_at));
        }
        texts.extend(codec::principal(&touched.scope));
        texts.extend([
            &*touched.scope.namespace,
            &touched.scope.method,
            &touched.scope.path,
            touched.key.as_str(),
        ]);
    }
    sum.update(touched.map_or(&[], |touched| touched.id.as_bytes()));
    for text in texts {
        sum.update(text.as_bytes());
        // A byte that occurs in no text, to separate the parts.
        sum.update(&[0xff]);
    }
    sum.finalize()
}
