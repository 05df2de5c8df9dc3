//! From the operation id that an upstream was given to the record it stands for.
//!
//! The id is derived from the record's with the store's secret, and there is no way back: whoever looks for one derives that of each
//! record that it may be. That takes a microsecond, so the ones whose end is not known, of which there are few, are found at once.

use hapax::core::operation::{OperationId, Secret};
use hapax::core::record::{Head, State};
use hapax::core::store::{ListQuery, StoreError};

use super::keys::scan::Heads;

/// Heads in one question to the store.
const BATCH: usize = 1_000;
/// Open records that are looked at: ten times what may be running.
const OPEN_MAX: usize = 100_000;
/// Other records that are looked at. In a larger store one that ended long ago is found by its record id.
const ENDED_MAX: usize = 20_000;

/// Whether a text may be an operation id.
pub(crate) fn is_spelled_well(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The record of an operation: among all that are open, else among the first of all others.
pub(crate) async fn find(store: &impl Heads, secret: &Secret, operation: &str) -> Result<Option<Head>, StoreError> {
    match among(store, secret, operation, Some(State::OPEN), OPEN_MAX).await? {
        Some(head) => Ok(Some(head)),
        None => among(store, secret, operation, None, ENDED_MAX).await,
    }
}

async fn among(
    store: &impl Heads,
    secret: &Secret,
    operation: &str,
    state: Option<&'static str>,
    heads_max: usize,
) -> Result<Option<Head>, StoreError> {
    let (mut after, mut seen) = (None, 0);
    while seen < heads_max {
        let batch = store.heads(ListQuery { state, after, limit: BATCH }).await?;
        seen += batch.len();
        after = batch.last().map(|head| head.id);
        let is_last = batch.len() < BATCH;
        if let Some(found) = batch.into_iter().find(|head| OperationId::of(&head.id, secret).as_str() == operation) {
            return Ok(Some(found));
        }
        if is_last {
            break;
        }
    }
    Ok(None)
}
