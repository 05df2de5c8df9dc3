//! The row that a start returns: the claim that it has won, or the record that it has found. Both
//! SQL stores return these columns, in this order.

use std::sync::Arc;

use hapax_core::answer::{Answer, AnswerError};
use hapax_core::fingerprint::Fingerprint;
use hapax_core::record::{AttemptToken, Fence, Head, Record};
use hapax_core::store::{Column, Seen, Start, StoreError, StoreErrorKind, Value, Won, Written};

use super::codec;

/// Whether it was won, the store's time, the numbers of the head, whether an answer is kept; then
/// token, digest, fingerprint policy, request id and answer.
pub(super) const COLUMNS: &[Column] = &[
    Column::Int,
    Column::Int,
    Column::Int,
    Column::Int,
    Column::Int,
    Column::Int,
    Column::Int,
    Column::Int,
    Column::Int,
    Column::Int,
    Column::Int,
    Column::Int,
    Column::Int,
    Column::Int,
    Column::Bytes,
    Column::Bytes,
    Column::Bytes,
    Column::Bytes,
    Column::Bytes,
];
/// How many of them are numbers.
const NUMBERS: usize = 14;

/// Reads the row. Scope and key are taken from the claim: a record with the same id has the same.
pub(super) fn written(start: &Start<'_>, row: Option<Vec<Value>>) -> Result<Written, StoreError> {
    let (numbers, texts) = split(row.ok_or_else(is_claimed)?)?;
    let [
        won,
        now,
        state,
        fence,
        version,
        attempts,
        lease_until,
        created_at,
        claimed_at,
        finished_at,
        expires_at,
        tombstone_until,
        status,
        kept,
    ] = numbers;
    let [token, digest, policy, request_id, answer] = texts;
    let is_won = won == Some(1);
    let number = |number: Option<i64>| number.ok_or_else(unknown_reply);
    let time = |micros| number(micros).map(codec::time);
    let head = Head {
        id: start.id,
        scope: start.claim.scope.clone(),
        key: start.claim.key.clone(),
        state: codec::state(number(state)?)?,
        fence: Fence::from_u64(number(fence)?.unsigned_abs()),
        token: AttemptToken::from_bytes(array(token.ok_or_else(unknown_reply)?)?),
        version: number(version)?.unsigned_abs(),
        attempts: u32::try_from(number(attempts)?).map_err(|_| unknown_reply())?,
        lease_until: time(lease_until)?,
        fingerprint: match is_won {
            true => Some(start.claim.fingerprint.clone()),
            false => fingerprint(digest, policy)?,
        },
        created_at: time(created_at)?,
        claimed_at: time(claimed_at)?,
        finished_at: time(finished_at)?,
        expires_at: time(expires_at)?,
        tombstone_until: time(tombstone_until)?,
        status: status.and_then(|status| u16::try_from(status).ok()),
        kept: kept == Some(1),
        request_id: match is_won {
            true => start.claim.request_id.clone(),
            false => request_id
                .map(|bytes| text(bytes).and_then(|text| codec::request_id(&text)))
                .transpose()?,
        },
    };
    let now = time(now)?;
    if is_won {
        return Ok(Written::Won(Won { head, now }));
    }
    let head = head.at(now);
    let answer = match head.kept {
        true => Some(Arc::new(read_answer(&head, answer)?)),
        false => None,
    };
    Ok(Written::Lost(Seen {
        record: Some(Record { head, answer }),
        now,
    }))
}

type Numbers = [Option<i64>; NUMBERS];
type Texts = [Option<Vec<u8>>; COLUMNS.len() - NUMBERS];

/// A driver may return a null as a null of either type.
fn split(row: Vec<Value>) -> Result<(Numbers, Texts), StoreError> {
    let (mut numbers, mut texts) = (Vec::new(), Vec::new());
    for (place, value) in row.into_iter().enumerate() {
        match value {
            Value::Int(number) if place < NUMBERS => numbers.push(number),
            Value::Bytes(None) if place < NUMBERS => numbers.push(None),
            Value::Bytes(bytes) => texts.push(bytes),
            Value::Int(None) => texts.push(None),
            Value::Int(Some(_)) => return Err(unknown_reply()),
        }
    }
    match (numbers.try_into(), texts.try_into()) {
        (Ok(numbers), Ok(texts)) => Ok((numbers, texts)),
        _ => Err(unknown_reply()),
    }
}

fn fingerprint(
    digest: Option<Vec<u8>>,
    policy: Option<Vec<u8>>,
) -> Result<Option<Fingerprint>, StoreError> {
    let Some(digest) = digest else {
        return Ok(None);
    };
    let policy = text(policy.ok_or_else(codec::missing_policy)?)?;
    Ok(Some(Fingerprint {
        digest: array(digest)?,
        policy: codec::policy(&policy)?,
    }))
}

fn read_answer(head: &Head, content: Option<Vec<u8>>) -> Result<Answer, StoreError> {
    let content = content
        .ok_or_else(|| StoreError::corrupt("a record's answer is not where it was written"))?;
    Answer::decode(&head.id, &content).map_err(|error| match error {
        AnswerError::Format(_) => StoreError::new(
            StoreErrorKind::Unsupported,
            "an answer was written by a newer version",
        )
        .because(error),
        _ => StoreError::corrupt("a stored answer is not as it was written").because(error),
    })
}

fn text(bytes: Vec<u8>) -> Result<String, StoreError> {
    String::from_utf8(bytes)
        .map_err(|error| StoreError::corrupt("a text in a record is no text").because(error))
}

fn array<const N: usize>(bytes: Vec<u8>) -> Result<[u8; N], StoreError> {
    bytes
        .try_into()
        .map_err(|_| StoreError::corrupt("a token or a digest in a record has a wrong length"))
}

/// Without a row, the record that may be claimed again is no longer as it was found.
fn is_claimed() -> StoreError {
    StoreError::new(
        StoreErrorKind::Locked,
        "another transaction has claimed the key meanwhile",
    )
}

fn unknown_reply() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unsupported,
        "the database answers in a way this version does not know",
    )
}
