//! Reading the replies of scripts.

use std::sync::Arc;

use hapax_core::answer::{Answer, AnswerError};
use hapax_core::record::Record;
use hapax_core::scope::RecordId;
use hapax_core::store::{Claim, Seen, StoreError, StoreErrorKind, Won, Written};
use hapax_core::time::Timestamp;
use redis::Value;

use super::head::{self, Policies};

/// The reply to a write: verdict, time, head, answer.
pub(super) fn written(
    id: RecordId,
    reply: Value,
    policies: &Policies,
    claim: Option<&Claim>,
) -> Result<Written, StoreError> {
    let Parts {
        has_won,
        now,
        head,
        answer,
    } = Parts::of(reply)?;
    if !has_won {
        return record(id, head, answer, now, policies, claim).map(Written::Lost);
    }
    let head = head.ok_or_else(unexpected)?;
    let head = head::decode(id, &head, policies, claim)?;
    Ok(Written::Won(Won { head, now }))
}

/// The reply to a read.
pub(super) fn seen(
    id: RecordId,
    reply: Value,
    policies: &Policies,
    claim: Option<&Claim>,
) -> Result<Seen, StoreError> {
    let Parts {
        now, head, answer, ..
    } = Parts::of(reply)?;
    record(id, head, answer, now, policies, claim)
}

/// The head as it is stored, and the store's time.
pub(super) fn stored_head(
    id: RecordId,
    reply: Value,
    policies: &Policies,
) -> Result<(Option<hapax_core::Head>, Timestamp), StoreError> {
    let Parts { now, head, .. } = Parts::of(reply)?;
    let head = head.map(|head| head::decode(id, &head, policies, None));
    Ok((head.transpose()?, now))
}

fn record(
    id: RecordId,
    head: Option<Vec<u8>>,
    answer: Option<Vec<u8>>,
    now: Timestamp,
    policies: &Policies,
    claim: Option<&Claim>,
) -> Result<Seen, StoreError> {
    let Some(head) = head else {
        return Ok(Seen { record: None, now });
    };
    let head = head::decode(id, &head, policies, claim)?.at(now);
    let answer = if head.kept {
        Some(Arc::new(decode_answer(&id, answer)?))
    } else {
        None
    };
    let record = Some(Record { head, answer });
    Ok(Seen { record, now })
}

fn decode_answer(id: &RecordId, stored: Option<Vec<u8>>) -> Result<Answer, StoreError> {
    let stored = stored
        .ok_or_else(|| StoreError::corrupt("a record's answer is not where it was written"))?;
    Answer::decode(id, &stored).map_err(|error| match error {
        AnswerError::Format(_) => StoreError::new(
            StoreErrorKind::Unsupported,
            "an answer was written by a newer version",
        )
        .because(error),
        _ => StoreError::corrupt("a stored answer is not as it was written").because(error),
    })
}

struct Parts {
    has_won: bool,
    now: Timestamp,
    head: Option<Vec<u8>>,
    answer: Option<Vec<u8>>,
}

impl Parts {
    fn of(reply: Value) -> Result<Parts, StoreError> {
        let mut parts = array(reply)?.into_iter();
        let mut next = || parts.next().ok_or_else(unexpected);
        Ok(Parts {
            has_won: integer(&next()?)? == 1,
            now: time(&next()?)?,
            head: bytes(next()?)?,
            answer: bytes(next()?)?,
        })
    }
}

pub(super) fn array(value: Value) -> Result<Vec<Value>, StoreError> {
    match value {
        Value::Array(parts) => Ok(parts),
        Value::Nil => Ok(Vec::new()),
        _ => Err(unexpected()),
    }
}

/// Bytes; `None` for nothing.
pub(super) fn bytes(value: Value) -> Result<Option<Vec<u8>>, StoreError> {
    match value {
        Value::BulkString(bytes) => Ok(Some(bytes)),
        Value::Nil => Ok(None),
        _ => Err(unexpected()),
    }
}

/// A number, which may come as a text.
pub(super) fn integer(value: &Value) -> Result<i64, StoreError> {
    match value {
        Value::Int(number) => Ok(*number),
        Value::BulkString(text) => std::str::from_utf8(text)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(unexpected),
        _ => Err(unexpected()),
    }
}

pub(super) fn count(value: &Value) -> Result<u64, StoreError> {
    integer(value).map(i64::unsigned_abs)
}

pub(super) fn time(value: &Value) -> Result<Timestamp, StoreError> {
    count(value).map(Timestamp::from_micros)
}

pub(super) fn id(value: Value) -> Result<RecordId, StoreError> {
    let id = bytes(value)?.and_then(|bytes| bytes.try_into().ok());
    id.map(RecordId::from_bytes).ok_or_else(unexpected)
}

pub(super) fn unexpected() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unsupported,
        "Redis answers in a way this version does not know",
    )
}
