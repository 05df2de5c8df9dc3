//! Reading and writing heads as rows.

use std::collections::HashMap;
use std::sync::Arc;

use hapax_core::fingerprint::{Fingerprint, FingerprintPolicy};
use hapax_core::guard;
use hapax_core::record::{Head, Record};
use hapax_core::scope::RecordId;
use hapax_core::store::StoreError;
use hapax_core::time::Timestamp;
use parking_lot::Mutex;
use rusqlite::{Connection, Row, params};

use super::error::store_error;
use crate::store::codec::{self, micros};
use crate::store::sqlite_kit::Queries;
use crate::store::sqlite_kit::row::{
    self, HEAD_COLUMNS, HeadRow, blob, get, head_columns, missing_answer,
};

/// A head, and the row id of its answer.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) head: Head,
    pub(super) answer: Option<i64>,
}

/// The connection and caches needed to read rows.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) connection: &'a Connection,
    pub(super) policies: &'a Policies,
}

macro_rules! select_heads {
    ($condition:literal) => {
        concat!(
            "SELECT ",
            head_columns!(),
            ", answer, policy FROM hapax_heads WHERE ",
            $condition
        )
    };
}

impl<'a> Rows<'a> {
    fn queries(self) -> Queries<'a> {
        Queries {
            connection: self.connection,
            explain: store_error,
        }
    }

    pub(super) fn find(self, id: &RecordId) -> Result<Option<Stored>, StoreError> {
        let sql = select_heads!("id = ?1");
        self.queries()
            .first(sql, [&id.as_bytes()[..]], |row| self.decode(row))
    }

    /// Up to `limit` heads after an id, in the order of their ids.
    pub(super) fn after(
        self,
        id: Option<RecordId>,
        rows_max: usize,
    ) -> Result<Vec<Stored>, StoreError> {
        let sql = select_heads!("id > ?1 ORDER BY id LIMIT ?2");
        let id = id.as_ref().map_or(&[][..], |id| &id.as_bytes()[..]);
        self.queries()
            .all(sql, params![id, rows_max as i64], |row| self.decode(row))
    }

    /// Up to `limit` heads that are due for a sweep, in the order in which they fell due. Heads
    /// that cannot be read are skipped.
    pub(super) fn due(self, now: Timestamp, limit: usize) -> Result<Vec<Stored>, StoreError> {
        let sql = select_heads!("due IS NOT NULL AND due <= ?1 ORDER BY due, id");
        let mut due = Vec::new();
        if limit > 0 {
            self.queries().each(sql, [micros(now)], |row| {
                due.extend(self.decode(row).ok());
                Ok(due.len() < limit)
            })?;
        }
        Ok(due)
    }

    /// The record at `now`. Its answer is read only if it has not expired.
    pub(super) fn record(self, stored: Stored, now: Timestamp) -> Result<Record, StoreError> {
        let Stored { head, answer } = stored;
        let head = head.at(now);
        let Some(number) = answer.filter(|_| head.kept) else {
            return Ok(Record { head, answer: None });
        };
        let sql = "SELECT content FROM hapax_answers WHERE answer = ?1";
        let answer = self.queries().first(sql, [number], |row| {
            row::decode_answer(&head.id, blob(row, 0)?)
        })?;
        Ok(Record {
            head,
            answer: Some(answer.ok_or_else(missing_answer)?),
        })
    }

    fn decode(self, row: &Row<'_>) -> Result<Stored, StoreError> {
        let columns = HeadRow::read(row, 0)?;
        let answer: Option<i64> = get(row, HEAD_COLUMNS)?;
        let policy = row::text(row, HEAD_COLUMNS + 1)?;
        let fingerprint = columns.fingerprint.map(|digest| {
            Ok::<_, StoreError>(Fingerprint {
                digest,
                policy: self
                    .policies
                    .get(policy.ok_or_else(codec::missing_policy)?)?,
            })
        });
        Ok(Stored {
            head: columns.head(fingerprint.transpose()?, answer.is_some())?,
            answer,
        })
    }
}

/// Writes a head, replacing the previous one.
pub(super) fn write(
    connection: &Connection,
    head: &Head,
    answer: Option<i64>,
) -> rusqlite::Result<()> {
    let sql = concat!(
        "INSERT OR REPLACE INTO hapax_heads (",
        head_columns!(),
        ", answer, policy, due) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, nullif(?11, -1), \
         ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23)"
    );
    let policy = head.fingerprint.as_ref().map(|it| it.policy.to_string());
    let mut statement = connection.prepare_cached(sql)?;
    HeadRow::new(head).bind(&mut statement, 1)?;
    statement.raw_bind_parameter(HEAD_COLUMNS + 1, answer)?;
    statement.raw_bind_parameter(HEAD_COLUMNS + 2, policy)?;
    statement.raw_bind_parameter(HEAD_COLUMNS + 3, guard::due_at(head).map(micros))?;
    statement.raw_execute().map(drop)
}

pub(super) fn remove(connection: &Connection, id: &RecordId) -> rusqlite::Result<()> {
    connection
        .prepare_cached("DELETE FROM hapax_heads WHERE id = ?1")?
        .execute([&id.as_bytes()[..]])
        .map(drop)
}

/// Writes an answer, and returns its row id.
pub(super) fn write_answer(connection: &Connection, content: &[u8]) -> rusqlite::Result<i64> {
    connection
        .prepare_cached("INSERT INTO hapax_answers (content) VALUES (?1)")?
        .insert([content])
}

pub(super) fn remove_answer(connection: &Connection, answer: i64) -> rusqlite::Result<()> {
    connection
        .prepare_cached("DELETE FROM hapax_answers WHERE answer = ?1")?
        .execute([answer])
        .map(drop)
}

/// Parsed fingerprint policies by their text, which is the same for every record of a route.
#[derive(Default)]
pub(super) struct Policies {
    known: Mutex<HashMap<Box<str>, Arc<FingerprintPolicy>>>,
}

/// Cached texts: far more than a service has routes.
const POLICIES_MAX: usize = 1024;

impl Policies {
    fn get(&self, text: &str) -> Result<Arc<FingerprintPolicy>, StoreError> {
        let mut known = self.known.lock();
        if let Some(policy) = known.get(text) {
            return Ok(policy.clone());
        }
        let policy = codec::policy(text)?;
        if known.len() < POLICIES_MAX {
            known.insert(text.into(), policy.clone());
        }
        Ok(policy)
    }
}
