//! A head as a row, and back.

use std::sync::Arc;

use hapax_core::answer::Answer;
use hapax_core::fingerprint::{Fingerprint, FingerprintPolicy};
use hapax_core::guard::due_at;
use hapax_core::key::Key;
use hapax_core::record::{AttemptToken, Fence, Head, Last, Record, State};
use hapax_core::scope::{Principal, RecordId, Scope};
use hapax_core::store::{StoreError, StoreErrorKind};
use hapax_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, named_params};

use super::store_error;

/// Whose leases count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leases {
    /// Those of this incarnation of the owner.
    Of(i64),
    /// Nobody's: the owner is gone.
    Nobodys,
}

/// A head with its place in the file.
pub(super) struct Stored {
    pub(super) row: i64,
    pub(super) head: Head,
}

const COLUMNS: &str = "row, id, state, fence, token, version, attempts, incarnation, lease_until, fingerprint, policy, created_at, \
    claimed_at, finished_at, expires_at, tombstone_until, status, kept, namespace, principal, method, path, key";

pub(super) fn find(connection: &Connection, id: &RecordId, leases: Leases) -> Result<Option<Stored>, StoreError> {
    let mut statement = connection.prepare_cached(&format!("SELECT {COLUMNS} FROM heads WHERE id = ?1")).map_err(store_error)?;
    let found = statement.query_row([&id.as_bytes()[..]], |row| Ok(read(row, leases))).optional().map_err(store_error)?;
    found.transpose()
}

/// Heads in the order of their ids, after one of them.
pub(super) fn list(
    connection: &Connection,
    after: Option<&RecordId>,
    state: Option<&str>,
    limit: usize,
    leases: Leases,
) -> Result<Vec<Stored>, StoreError> {
    // An id is 32 bytes, so that the empty blob sorts before all of them.
    let after = after.map_or(&[][..], |id| &id.as_bytes()[..]);
    let (from, to) = state.map_or((0, i64::MAX), codes);
    let sql = format!("SELECT {COLUMNS} FROM heads WHERE id > ?1 AND state BETWEEN ?2 AND ?3 ORDER BY id LIMIT ?4");
    collect(connection, &sql, (after, from, to, clamp(limit)), leases)
}

/// Heads whose time has come, the earliest first, each with its place. One that cannot be read is its own trouble.
pub(super) fn due(connection: &Connection, now: Timestamp, limit: usize, leases: Leases) -> Result<Vec<DueRow>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM heads WHERE due <= ?1 ORDER BY due, id LIMIT ?2");
    let mut statement = connection.prepare_cached(&sql).map_err(store_error)?;
    let rows = statement
        .query_map((micros(now), clamp(limit)), |row| Ok((row.get("row")?, read_head(row, leases))))
        .map_err(store_error)?;
    rows.map(|row| row.map_err(store_error)).collect()
}

pub(super) type DueRow = (i64, Result<Head, StoreError>);

fn collect(connection: &Connection, sql: &str, params: impl rusqlite::Params, leases: Leases) -> Result<Vec<Stored>, StoreError> {
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let rows = statement.query_map(params, |row| Ok(read(row, leases))).map_err(store_error)?;
    rows.map(|row| row.map_err(store_error)?).collect()
}

/// The record of a head: its answer is read only where one was kept.
pub(super) fn with_answer(connection: &Connection, stored: Stored) -> Result<Record, StoreError> {
    let Stored { row, head } = stored;
    if !head.kept {
        return Ok(Record { head, answer: None });
    }
    let mut statement = connection.prepare_cached("SELECT content FROM answers WHERE row = ?1").map_err(store_error)?;
    let content: Option<Vec<u8>> = statement.query_row([row], |row| row.get(0)).optional().map_err(store_error)?;
    let content = content.ok_or_else(|| StoreError::corrupt("a kept answer is missing"))?;
    let answer =
        Answer::decode(&head.id, &content).map_err(|error| StoreError::corrupt("a kept answer is damaged").because(error))?;
    Ok(Record { head, answer: Some(Arc::new(answer)) })
}

/// Writes a head in its place, or in a new one; returns the place.
pub(super) fn write(connection: &Connection, place: Option<i64>, head: &Head, incarnation: i64) -> rusqlite::Result<i64> {
    let mut statement = connection.prepare_cached(
        "INSERT OR REPLACE INTO heads (row, id, state, fence, token, version, attempts, incarnation, lease_until, fingerprint, policy,
            created_at, claimed_at, finished_at, expires_at, tombstone_until, status, kept, due, namespace, principal, method, path, key)
         VALUES (:row, :id, :state, :fence, :token, :version, :attempts, :incarnation, :lease_until, :fingerprint, :policy,
            :created_at, :claimed_at, :finished_at, :expires_at, :tombstone_until, :status, :kept, :due, :namespace, :principal, :method,
            :path, :key)
         RETURNING row",
    )?;
    let principal = match &head.scope.principal {
        Principal::Anonymous => None,
        Principal::Named(name) => Some(&**name),
    };
    let row = named_params! {
        ":row": place,
        ":id": &head.id.as_bytes()[..],
        ":state": code(head.state),
        ":fence": head.fence.as_u64() as i64,
        ":token": &head.token.as_bytes()[..],
        ":version": head.version as i64,
        ":attempts": head.attempts,
        ":incarnation": incarnation,
        ":lease_until": micros(head.lease_until),
        ":fingerprint": head.fingerprint.as_ref().map(|fingerprint| &fingerprint.digest[..]),
        ":policy": head.fingerprint.as_ref().map(|fingerprint| fingerprint.policy.to_string()),
        ":created_at": micros(head.created_at),
        ":claimed_at": micros(head.claimed_at),
        ":finished_at": micros(head.finished_at),
        ":expires_at": micros(head.expires_at),
        ":tombstone_until": micros(head.tombstone_until),
        ":status": head.status,
        ":kept": head.kept,
        ":due": due_at(head).map(micros),
        ":namespace": &*head.scope.namespace,
        ":principal": principal,
        ":method": &*head.scope.method,
        ":path": &*head.scope.path,
        ":key": head.key.as_str(),
    };
    statement.query_row(row, |row| row.get(0))
}

fn read(row: &Row<'_>, leases: Leases) -> Result<Stored, StoreError> {
    let head = read_head(row, leases)?;
    Ok(Stored { row: row.get("row").map_err(store_error)?, head })
}

fn read_head(row: &Row<'_>, leases: Leases) -> Result<Head, StoreError> {
    let number = |name: &str| row.get::<_, i64>(name).map(i64::unsigned_abs).map_err(store_error);
    let text = |name: &str| row.get::<_, String>(name).map(Arc::<str>::from).map_err(store_error);
    let time = |name: &str| number(name).map(Timestamp::from_micros);
    let principal = row.get::<_, Option<String>>("principal").map_err(store_error)?;
    let owner: i64 = row.get("incarnation").map_err(store_error)?;
    Ok(Head {
        id: RecordId::from_bytes(row.get("id").map_err(store_error)?),
        scope: Arc::new(Scope {
            namespace: text("namespace")?,
            principal: principal.map_or(Principal::Anonymous, Principal::named),
            method: text("method")?,
            path: text("path")?,
        }),
        key: Key::new(text("key")?).map_err(|error| StoreError::corrupt("a stored key is not a key").because(error))?,
        state: state(row.get("state").map_err(store_error)?)?,
        fence: Fence::from_u64(number("fence")?),
        token: AttemptToken::from_bytes(row.get("token").map_err(store_error)?),
        version: number("version")?,
        attempts: row.get("attempts").map_err(store_error)?,
        lease_until: if leases == Leases::Of(owner) { time("lease_until")? } else { Timestamp::ZERO },
        fingerprint: fingerprint(row)?,
        created_at: time("created_at")?,
        claimed_at: time("claimed_at")?,
        finished_at: time("finished_at")?,
        expires_at: time("expires_at")?,
        tombstone_until: time("tombstone_until")?,
        status: row.get("status").map_err(store_error)?,
        kept: row.get("kept").map_err(store_error)?,
    })
}

fn fingerprint(row: &Row<'_>) -> Result<Option<Fingerprint>, StoreError> {
    let digest: Option<[u8; 32]> = row.get("fingerprint").map_err(store_error)?;
    let policy: Option<String> = row.get("policy").map_err(store_error)?;
    let (Some(digest), Some(policy)) = (digest, policy) else { return Ok(None) };
    let policy: FingerprintPolicy = policy.parse().map_err(|error| {
        StoreError::new(StoreErrorKind::Unsupported, "a record was written by a newer version of Hapax").because(error)
    })?;
    Ok(Some(Fingerprint { digest, policy: Arc::new(policy) }))
}

/// States as numbers. Written to files: never renumber. Tombstones come last, so that each word is a range.
fn code(state: State) -> i64 {
    match state {
        State::Running => 1,
        State::Completed => 2,
        State::Failed => 3,
        State::Retryable => 4,
        State::Unknown => 5,
        State::Expired(Last::Completed) => 10,
        State::Expired(Last::Failed) => 11,
        State::Expired(Last::Retryable) => 12,
        State::Expired(Last::Unknown) => 13,
    }
}

const STATES: [State; 9] = [
    State::Running,
    State::Completed,
    State::Failed,
    State::Retryable,
    State::Unknown,
    State::Expired(Last::Completed),
    State::Expired(Last::Failed),
    State::Expired(Last::Retryable),
    State::Expired(Last::Unknown),
];

fn state(number: i64) -> Result<State, StoreError> {
    let state = STATES.into_iter().find(|state| code(*state) == number);
    state.ok_or_else(|| StoreError::new(StoreErrorKind::Unsupported, "a record has a state this version does not know"))
}

/// The range of numbers a word stands for; an empty one for a word that is none.
fn codes(word: &str) -> (i64, i64) {
    let codes = || STATES.into_iter().filter(|state| state.word() == word).map(code);
    (codes().min().unwrap_or(1), codes().max().unwrap_or(0))
}

fn micros(time: Timestamp) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

fn clamp(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
