//! Reading the replies of scripts.

use std::sync::Arc;

use hapax_core::answer::{Answer, AnswerError};
use hapax_core::record::{Head, Record};
use hapax_core::scope::RecordId;
use hapax_core::store::{Claim, Seen, StoreError, StoreErrorKind, Won, Written};
use hapax_core::time::Timestamp;
use redis::Value;

use super::head::{self, Policies};

/// The reply to a write.
pub(super) fn written(
    id: RecordId,
    reply: Value,
    policies: &Policies,
    claim: Option<&Claim>,
) -> Result<Written, StoreError> {
    let parts = Parts::of(reply)?;
    if !parts.has_won {
        return record(id, parts, policies, claim).map(Written::Lost);
    }
    let stored = parts.stored.ok_or_else(unexpected)?;
    let (head, _) = head::decode(id, &stored, policies, claim)?;
    Ok(Written::Won(Won {
        head,
        now: parts.now,
    }))
}

/// The reply to a read.
pub(super) fn seen(id: RecordId, reply: Value, policies: &Policies) -> Result<Seen, StoreError> {
    record(id, Parts::of(reply)?, policies, None)
}

/// The head as it is stored, and the store's time.
pub(super) fn stored_head(
    id: RecordId,
    reply: Value,
    policies: &Policies,
) -> Result<(Option<Head>, Timestamp), StoreError> {
    let Parts { now, stored, .. } = Parts::of(reply)?;
    let head = match stored {
        Some(stored) => Some(head::decode(id, &stored, policies, None)?.0),
        None => None,
    };
    Ok((head, now))
}

fn record(
    id: RecordId,
    parts: Parts,
    policies: &Policies,
    claim: Option<&Claim>,
) -> Result<Seen, StoreError> {
    let Parts { now, stored, .. } = parts;
    let Some(stored) = stored else {
        return Ok(Seen { record: None, now });
    };
    let (head, answer) = head::decode(id, &stored, policies, claim)?;
    let head = head.at(now);
    let answer = if head.kept {
        Some(Arc::new(decode_answer(&id, answer)?))
    } else {
        None
    };
    let record = Some(Record { head, answer });
    Ok(Seen { record, now })
}

fn decode_answer(id: &RecordId, stored: &[u8]) -> Result<Answer, StoreError> {
    if stored.is_empty() {
        return Err(StoreError::corrupt(
            "a record's answer is not where it was written",
        ));
    }
    Answer::decode(id, stored).map_err(|error| match error {
        AnswerError::Format(_) => StoreError::new(
            StoreErrorKind::Unsupported,
            "an answer was written by a newer version",
        )
        .because(error),
        _ => StoreError::corrupt("a stored answer is not as it was written").because(error),
    })
}

/// A reply about a record: won or not, the time, and the record as it is stored.
struct Parts {
    has_won: bool,
    now: Timestamp,
    stored: Option<Vec<u8>>,
}

impl Parts {
    fn of(reply: Value) -> Result<Parts, StoreError> {
        let mut parts = array(reply)?.into_iter();
        let mut next = || parts.next().ok_or_else(unexpected);
        Ok(Parts {
            has_won: integer(&next()?)? == 1,
            now: time(&next()?)?,
            stored: bytes(next()?)?,
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
