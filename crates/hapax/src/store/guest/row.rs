//! A head as a row, and back.

use std::collections::HashMap;
use std::sync::Arc;

use hapax_core::answer::Answer;
use hapax_core::fingerprint::{Fingerprint, FingerprintPolicy};
use hapax_core::guard;
use hapax_core::key::Key;
use hapax_core::record::{AttemptToken, Fence, Head, Record};
use hapax_core::request_id::RequestId;
use hapax_core::scope::{Principal, RecordId, Scope};
use hapax_core::store::{StoreError, StoreErrorKind};
use hapax_core::time::Timestamp;
use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::error::store_error;
use crate::store::sqlite::row::{code, get, micros, needed, request_id, state, text};

/// A head, and the number of its answer.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) head: Head,
    pub(super) answer: Option<i64>,
}

/// What reading rows takes.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) connection: &'a Connection,
    pub(super) policies: &'a Policies,
}

/// In the order in which [`Rows::decode`] reads them.
macro_rules! columns {
    () => {
        "id, state, fence, token, version, attempts, lease_until, fingerprint, policy, created_at, claimed_at, finished_at, expires_at, \
         tombstone_until, status, answer, namespace, principal, method, path, key, request_id"
    };
}

macro_rules! select_heads {
    ($condition:literal) => {
        concat!(
            "SELECT ",
            columns!(),
            " FROM hapax_heads WHERE ",
            $condition
        )
    };
}

impl Rows<'_> {
    pub(super) fn find(self, id: &RecordId) -> Result<Option<Stored>, StoreError> {
        let mut statement = self
            .connection
            .prepare_cached(select_heads!("id = ?1"))
            .map_err(store_error)?;
        let found = statement
            .query_row([&id.as_bytes()[..]], |row| Ok(self.decode(row)))
            .optional()
            .map_err(store_error)?;
        found.transpose()
    }

    /// Up to so many heads after an id, in the order of their ids.
    pub(super) fn after(
        self,
        id: Option<RecordId>,
        rows_max: usize,
    ) -> Result<Vec<Stored>, StoreError> {
        let sql = select_heads!("id > ?1 ORDER BY id LIMIT ?2");
        let mut statement = self.connection.prepare_cached(sql).map_err(store_error)?;
        let id = id.as_ref().map_or(&[][..], |id| &id.as_bytes()[..]);
        let mut rows = statement
            .query(params![id, rows_max as i64])
            .map_err(store_error)?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(store_error)? {
            found.push(self.decode(row)?);
        }
        Ok(found)
    }

    /// Up to `limit` heads that a sweep should look at, in the order in which they fell due. One
    /// that cannot be read stands in nobody's way.
    pub(super) fn due(self, now: Timestamp, limit: usize) -> Result<Vec<Stored>, StoreError> {
        let sql = select_heads!("due IS NOT NULL AND due <= ?1 ORDER BY due, id");
        let mut statement = self.connection.prepare_cached(sql).map_err(store_error)?;
        let mut rows = statement.query([micros(now)]).map_err(store_error)?;
        let mut due = Vec::new();
        while due.len() < limit
            && let Some(row) = rows.next().map_err(store_error)?
        {
            due.extend(self.decode(row).ok());
        }
        Ok(due)
    }

    /// The record as it is at `now`: its answer is read only where there still is one.
    pub(super) fn record(self, stored: Stored, now: Timestamp) -> Result<Record, StoreError> {
        let Stored { head, answer } = stored;
        let head = head.at(now);
        let Some(number) = answer.filter(|_| head.kept) else {
            return Ok(Record { head, answer: None });
        };
        let sql = "SELECT content FROM hapax_answers WHERE answer = ?1";
        let mut statement = self.connection.prepare_cached(sql).map_err(store_error)?;
        let decode = |row: &Row<'_>| Ok(Answer::decode(&head.id, row.get_ref(0)?.as_blob()?));
        let answer = statement
            .query_row([number], decode)
            .optional()
            .map_err(store_error)?;
        let answer = answer.ok_or_else(|| StoreError::corrupt("a kept answer is missing"))?;
        let answer = answer
            .map_err(|error| StoreError::corrupt("a kept answer is damaged").because(error))?;
        Ok(Record {
            head,
            answer: Some(Arc::new(answer)),
        })
    }

    fn decode(self, row: &Row<'_>) -> Result<Stored, StoreError> {
        let number = |column| get::<i64>(row, column);
        let time =
            |column| number(column).map(|micros| Timestamp::from_micros(micros.unsigned_abs()));
        let fingerprint = match (get::<Option<[u8; 32]>>(row, 7)?, text(row, 8)?) {
            (Some(digest), Some(policy)) => Some(Fingerprint {
                digest,
                policy: self.policies.get(policy)?,
            }),
            (None, _) => None,
            (Some(_), None) => {
                return Err(StoreError::corrupt(
                    "a record was fingerprinted by a policy that is not there",
                ));
            }
        };
        let key = Key::new(needed(row, 20)?)
            .map_err(|error| StoreError::corrupt("a stored key is none").because(error))?;
        let answer: Option<i64> = get(row, 15)?;
        let head = Head {
            id: RecordId::from_bytes(get(row, 0)?),
            scope: Arc::new(Scope {
                namespace: needed(row, 16)?.into(),
                principal: text(row, 17)?.map_or(Principal::Anonymous, Principal::named),
                method: needed(row, 18)?.into(),
                path: needed(row, 19)?.into(),
            }),
            key,
            state: state(number(1)?)?,
            fence: Fence::from_u64(number(2)?.unsigned_abs()),
            token: AttemptToken::from_bytes(get(row, 3)?),
            version: number(4)?.unsigned_abs(),
            attempts: get(row, 5)?,
            lease_until: time(6)?,
            fingerprint,
            created_at: time(9)?,
            claimed_at: time(10)?,
            finished_at: time(11)?,
            expires_at: time(12)?,
            tombstone_until: time(13)?,
            status: get(row, 14)?,
            kept: answer.is_some(),
            request_id: text(row, 21)?.map(request_id).transpose()?,
        };
        Ok(Stored { head, answer })
    }
}

/// Writes a head over the one that was there.
pub(super) fn write(
    connection: &Connection,
    head: &Head,
    answer: Option<i64>,
) -> rusqlite::Result<()> {
    let sql = concat!(
        "INSERT OR REPLACE INTO hapax_heads (",
        columns!(),
        ", due) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23)"
    );
    let fingerprint = head.fingerprint.as_ref();
    let principal = match &head.scope.principal {
        Principal::Anonymous => None,
        Principal::Named(name) => Some(&**name),
    };
    let columns = params![
        &head.id.as_bytes()[..],
        code(head.state),
        head.fence.as_u64() as i64,
        &head.token.as_bytes()[..],
        head.version as i64,
        head.attempts,
        micros(head.lease_until),
        fingerprint.map(|fingerprint| &fingerprint.digest[..]),
        fingerprint.map(|fingerprint| fingerprint.policy.to_string()),
        micros(head.created_at),
        micros(head.claimed_at),
        micros(head.finished_at),
        micros(head.expires_at),
        micros(head.tombstone_until),
        head.status,
        answer,
        &*head.scope.namespace,
        principal,
        &*head.scope.method,
        &*head.scope.path,
        head.key.as_str(),
        head.request_id.as_ref().map(RequestId::as_str),
        guard::due_at(head).map(micros),
    ];
    connection.prepare_cached(sql)?.execute(columns).map(drop)
}

pub(super) fn remove(connection: &Connection, id: &RecordId) -> rusqlite::Result<()> {
    connection
        .prepare_cached("DELETE FROM hapax_heads WHERE id = ?1")?
        .execute([&id.as_bytes()[..]])
        .map(drop)
}

/// Writes an answer, and says under which number.
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

/// What fingerprints cover, read once for each text: it is the same for every record of a route.
#[derive(Default)]
pub(super) struct Policies {
    known: Mutex<HashMap<Box<str>, Arc<FingerprintPolicy>>>,
}

/// Texts that are remembered: far more than a service has routes.
const POLICIES_MAX: usize = 1024;

impl Policies {
    fn get(&self, text: &str) -> Result<Arc<FingerprintPolicy>, StoreError> {
        let mut known = self.known.lock();
        if let Some(policy) = known.get(text) {
            return Ok(policy.clone());
        }
        let policy: FingerprintPolicy = text.parse().map_err(|error| {
            StoreError::new(
                StoreErrorKind::Unsupported,
                "a record was written by a newer version of Hapax",
            )
            .because(error)
        })?;
        let policy = Arc::new(policy);
        if known.len() < POLICIES_MAX {
            known.insert(text.into(), policy.clone());
        }
        Ok(policy)
    }
}
