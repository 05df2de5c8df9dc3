//! Finds the record of an operation id that an upstream was given.
//!
//! The second half of the id is the beginning of the record's id, and the first half is derived
//! with the store's secret. So the record is looked up by that beginning, and its operation id is
//! then compared. An operation of an earlier life of the key has no record.

use hapax::RecordId;
use hapax::core::operation::OperationIds;
use hapax::core::record::Head;
use hapax::core::store::{ListQuery, StoreError};

use super::keys::operate::Records;

const DIGITS: usize = 64;

/// Whether a text has the form of an operation id.
pub(crate) fn is_spelled_well(text: &str) -> bool {
    text.len() == DIGITS
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The beginning of the id of an operation's record.
pub(crate) fn beginning(operation: &str) -> &str {
    operation.get(DIGITS / 2..).unwrap_or_default()
}

/// The record of an operation.
pub(crate) async fn find(
    records: &impl Records,
    ids: &OperationIds,
    operation: &str,
) -> Result<Option<Head>, StoreError> {
    let Ok(first) = format!("{:0<DIGITS$}", beginning(operation)).parse() else {
        return Ok(None);
    };
    // Two, in case two ids share the beginning, which practically never happens.
    let heads = records
        .heads(ListQuery {
            state: None,
            after: before(first),
            limit: 2,
        })
        .await?;
    Ok(heads
        .into_iter()
        .find(|head| ids.make(&head.id, head.created_at).as_str() == operation))
}

/// The id before this one, because listings begin after an id. `None` for the first id.
pub(crate) fn before(id: RecordId) -> Option<RecordId> {
    let mut bytes = *id.as_bytes();
    let last = bytes.iter().rposition(|&byte| byte != 0)?;
    bytes[last] -= 1;
    bytes[last + 1..].fill(0xff);
    Some(RecordId::from_bytes(bytes))
}
