//! A record as a row of `hapax.verdict`, and back.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::answer::{Answer, AnswerError};
use hapax_core::fingerprint::Fingerprint;
use hapax_core::key::Key;
use hapax_core::record::{AttemptToken, Fence, Head, Record, State};
use hapax_core::request_id::RequestId;
use hapax_core::scope::{RecordId, Scope};
use hapax_core::store::{Claim, Seen, StoreError, StoreErrorKind, Won, Written};
use hapax_core::time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;
use uuid::Uuid;

use super::policies::Policies;
use crate::store::codec;

/// The columns of `hapax.verdict`, in its order.
mod column {
    pub(super) const VERDICT: usize = 0;
    pub(super) const NOW: usize = 1;
    pub(super) const ID: usize = 2;
    pub(super) const STATE: usize = 3;
    pub(super) const FENCE: usize = 4;
    pub(super) const VERSION: usize = 5;
    pub(super) const ATTEMPTS: usize = 6;
    pub(super) const LEASE_UNTIL: usize = 7;
    pub(super) const CREATED_AT: usize = 8;
    pub(super) const CLAIMED_AT: usize = 9;
    pub(super) const FINISHED_AT: usize = 10;
    pub(super) const EXPIRES_AT: usize = 11;
    pub(super) const TOMBSTONE_UNTIL: usize = 12;
    pub(super) const STATUS: usize = 13;
    pub(super) const KEPT: usize = 14;
    pub(super) const TOKEN: usize = 15;
    pub(super) const FINGERPRINT: usize = 16;
    pub(super) const POLICY: usize = 17;
    pub(super) const NAMESPACE: usize = 18;
    pub(super) const PRINCIPAL: usize = 19;
    pub(super) const METHOD: usize = 20;
    pub(super) const PATH: usize = 21;
    pub(super) const KEY: usize = 22;
    pub(super) const ANSWER: usize = 23;
    pub(super) const REQUEST_ID: usize = 24;
}

/// A function's verdict on a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The condition did not hold, or the call only read.
    Lost,
    Won,
    /// It could not be decided because of a concurrent transaction: send it again.
    Again,
}

pub(super) fn verdict(row: &Row) -> Result<Verdict, StoreError> {
    match get::<i16>(row, column::VERDICT)? {
        0 => Ok(Verdict::Lost),
        1 => Ok(Verdict::Won),
        2 => Ok(Verdict::Again),
        _ => Err(StoreError::new(
            StoreErrorKind::Unsupported,
            "the database answers in a way this version does not know",
        )),
    }
}

/// The id that a row is about, whether or not there is a record.
pub(super) fn id(row: &Row) -> Result<RecordId, StoreError> {
    Ok(RecordId::from_bytes(array(get(row, column::ID)?)?))
}

/// Whether there is a record.
fn is_there(row: &Row) -> Result<bool, StoreError> {
    Ok(get::<Option<i16>>(row, column::STATE)?.is_some())
}

/// Whether a row should have an answer that was not found.
pub(super) fn lacks_its_answer(row: &Row) -> Result<bool, StoreError> {
    Ok(get::<Option<bool>>(row, column::KEPT)?.unwrap_or(false))
}

/// The policy number of a row, if it has a fingerprint.
pub(super) fn policy(row: &Row) -> Result<Option<i64>, StoreError> {
    get(row, column::POLICY)
}

/// The database's time of the read or write.
pub(super) fn now(row: &Row) -> Result<Timestamp, StoreError> {
    time(row, column::NOW)
}

/// The result of a write. For a claim, the scope and key are taken from the claim: a record with
/// the same id has the same.
pub(super) fn written(
    row: &Row,
    policies: &Policies,
    claim: Option<&Claim>,
) -> Result<Written, StoreError> {
    let now = now(row)?;
    match verdict(row)? {
        Verdict::Won => {
            let head = head(row, policies, claim)?;
            let head = head.ok_or_else(|| {
                StoreError::corrupt("the database has no record of what it has written")
            })?;
            Ok(Written::Won(Won { head, now }))
        }
        Verdict::Lost | Verdict::Again => Ok(Written::Lost(Seen {
            record: record(row, policies, claim)?,
            now,
        })),
    }
}

/// The record at the time of the read.
pub(super) fn record(
    row: &Row,
    policies: &Policies,
    claim: Option<&Claim>,
) -> Result<Option<Record>, StoreError> {
    let Some(head) = head(row, policies, claim)? else {
        return Ok(None);
    };
    let head = head.at(now(row)?);
    let answer = if head.kept {
        Some(Arc::new(answer(row, &head.id)?))
    } else {
        None
    };
    Ok(Some(Record { head, answer }))
}

/// The stored head; `None` if there is no record.
pub(super) fn head(
    row: &Row,
    policies: &Policies,
    claim: Option<&Claim>,
) -> Result<Option<Head>, StoreError> {
    if !is_there(row)? {
        return Ok(None);
    }
    let (scope, key) = match claim {
        Some(claim) => (claim.scope.clone(), claim.key.clone()),
        None => (
            Arc::new(scope(row, column::NAMESPACE)?),
            key(row, column::KEY)?,
        ),
    };
    Ok(Some(Head {
        id: id(row)?,
        scope,
        key,
        state: state(row, column::STATE)?,
        fence: fence(row, column::FENCE)?,
        token: token(row, claim)?,
        version: number(row, column::VERSION)?,
        attempts: get::<i32>(row, column::ATTEMPTS)?.unsigned_abs(),
        lease_until: time(row, column::LEASE_UNTIL)?,
        fingerprint: fingerprint(row, policies, claim)?,
        created_at: time(row, column::CREATED_AT)?,
        claimed_at: time(row, column::CLAIMED_AT)?,
        finished_at: time(row, column::FINISHED_AT)?,
        expires_at: time(row, column::EXPIRES_AT)?,
        tombstone_until: time(row, column::TOMBSTONE_UNTIL)?,
        status: status(row, column::STATUS)?,
        kept: get(row, column::KEPT)?,
        request_id: request_id(row, claim)?,
    }))
}

/// Namespace, principal, method and path, in four columns starting at `first`.
pub(super) fn scope(row: &Row, first: usize) -> Result<Scope, StoreError> {
    debug_assert_eq!(
        [column::NAMESPACE + 1, column::METHOD],
        [column::PRINCIPAL, column::PATH - 1]
    );
    let principal = get::<Option<&[u8]>>(row, first + 1)?
        .map(utf8)
        .transpose()?;
    Ok(codec::scope(
        text(row, first)?,
        principal,
        text(row, first + 2)?,
        text(row, first + 3)?,
    ))
}

pub(super) fn key(row: &Row, column: usize) -> Result<Key, StoreError> {
    codec::key(text(row, column)?)
}

/// For a won claim the database does not repeat what the claim contained.
fn token(row: &Row, claim: Option<&Claim>) -> Result<AttemptToken, StoreError> {
    match (get::<Option<Uuid>>(row, column::TOKEN)?, claim) {
        (Some(token), _) => Ok(AttemptToken::from_bytes(token.into_bytes())),
        (None, Some(claim)) if verdict(row)? == Verdict::Won => Ok(claim.token),
        (None, _) => Err(StoreError::corrupt("a record has no token")),
    }
}

fn request_id(row: &Row, claim: Option<&Claim>) -> Result<Option<RequestId>, StoreError> {
    if let Some(claim) = claim.filter(|_| verdict(row).is_ok_and(|verdict| verdict == Verdict::Won))
    {
        return Ok(claim.request_id.clone());
    }
    get::<Option<&[u8]>>(row, column::REQUEST_ID)?
        .map(|stored| utf8(stored).and_then(codec::request_id))
        .transpose()
}

fn fingerprint(
    row: &Row,
    policies: &Policies,
    claim: Option<&Claim>,
) -> Result<Option<Fingerprint>, StoreError> {
    match (
        get::<Option<&[u8]>>(row, column::FINGERPRINT)?,
        policy(row)?,
    ) {
        (None, None) if verdict(row)? == Verdict::Won && claim.is_some() => {
            Ok(claim.map(|claim| claim.fingerprint.clone()))
        }
        (Some(digest), Some(number)) => Ok(Some(Fingerprint {
            digest: array(digest)?,
            policy: policies.get(number)?,
        })),
        (None, None) => Ok(None),
        _ => Err(StoreError::corrupt("a record has half a fingerprint")),
    }
}

fn answer(row: &Row, id: &RecordId) -> Result<Answer, StoreError> {
    let bytes = get::<Option<&[u8]>>(row, column::ANSWER)?;
    let bytes = bytes
        .ok_or_else(|| StoreError::corrupt("a record's answer is not where it was written"))?;
    Answer::decode(id, bytes).map_err(|error| match error {
        AnswerError::Format(_) => StoreError::new(
            StoreErrorKind::Unsupported,
            "an answer was written by a newer version",
        )
        .because(error),
        _ => StoreError::corrupt("a stored answer is not as it was written").because(error),
    })
}

pub(super) fn get<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T, StoreError> {
    let unsupported = "the database answers in a way this version does not know: run `hapax migrate` of this version";
    row.try_get(column)
        .map_err(|error| StoreError::new(StoreErrorKind::Unsupported, unsupported).because(error))
}

/// A text, stored as bytes, so that it may contain NUL and does not depend on the database's
/// encoding.
pub(super) fn text(row: &Row, column: usize) -> Result<&str, StoreError> {
    get(row, column).and_then(utf8)
}

fn utf8(bytes: &[u8]) -> Result<&str, StoreError> {
    std::str::from_utf8(bytes)
        .map_err(|error| StoreError::corrupt("a text in a record is no text").because(error))
}

pub(super) fn array<const N: usize>(bytes: &[u8]) -> Result<[u8; N], StoreError> {
    bytes.try_into().map_err(|error| {
        StoreError::corrupt("an id or a digest in a record has a wrong length").because(error)
    })
}

pub(super) fn number(row: &Row, column: usize) -> Result<u64, StoreError> {
    get::<i64>(row, column).map(i64::unsigned_abs)
}

pub(super) fn time(row: &Row, column: usize) -> Result<Timestamp, StoreError> {
    get(row, column).map(codec::time)
}

pub(super) fn fence(row: &Row, column: usize) -> Result<Fence, StoreError> {
    number(row, column).map(Fence::from_u64)
}

pub(super) fn state(row: &Row, column: usize) -> Result<State, StoreError> {
    codec::state(get::<i16>(row, column)?.into())
}

pub(super) fn status(row: &Row, column: usize) -> Result<Option<u16>, StoreError> {
    Ok(get::<Option<i32>>(row, column)?.and_then(|status| u16::try_from(status).ok()))
}

/// A duration in microseconds, capped so that it can be added to any time without overflow.
pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros())
        .unwrap_or(i64::MAX)
        .min(1 << 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_duration_outgrows_the_databases_numbers() {
        let for_ever = micros(Duration::MAX);
        assert!(
            for_ever
                .checked_add(for_ever)
                .and_then(|sum| sum.checked_add(1 << 53))
                .is_some()
        );
    }
}
