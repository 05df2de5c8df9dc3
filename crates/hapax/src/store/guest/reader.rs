//! Reading: threads with their own connections, which no transaction blocks.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::guard;
use hapax_core::record::{Fence, Head};
use hapax_core::scope::RecordId;
use hapax_core::store::{ListQuery, Put, Reading, Seen, StoreError};
use hapax_core::time::Clock;

use super::Shared;
use super::error::store_error;
use super::row::Rows;
use super::schema;
use crate::store::sqlite::OpenError;
use crate::store::sqlite_kit::{Question, Readers};

const READERS: usize = 2;
/// Rows that a listing reads before it lets other reads go first.
const LIST_ROWS: usize = 1024;

pub(super) fn start(shared: &Arc<Shared>, timeout: Duration) -> Result<Readers, OpenError> {
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let connection = schema::connect_to_read(&shared.path, timeout)?;
        readers.push(move |question: Question| question(Ok(&connection)));
    }
    Readers::start(&shared.path, readers)
}

/// Reads records, all in one snapshot.
pub(super) fn get(
    rows: Rows<'_>,
    ids: &[RecordId],
    clock: &dyn Clock,
) -> Result<Reading, StoreError> {
    let _snapshot = rows
        .connection
        .unchecked_transaction()
        .map_err(store_error)?;
    let stored = ids
        .iter()
        .map(|id| rows.find(id))
        .collect::<Result<Vec<_>, _>>()?;
    // Read the clock after taking the snapshot: nothing in the snapshot was written later than
    // this.
    let now = clock.now();
    let records = stored
        .into_iter()
        .map(|stored| stored.map(|stored| rows.record(stored, now)).transpose());
    Ok(Reading {
        records: records.collect::<Result<_, _>>()?,
        now,
    })
}

/// The record, if it already shows that the write would be refused. So a caller whose write is
/// refused waits for no transaction.
pub(super) fn refused(
    rows: Rows<'_>,
    put: &Put,
    clock: &dyn Clock,
) -> Result<Option<Seen>, StoreError> {
    let _snapshot = rows
        .connection
        .unchecked_transaction()
        .map_err(store_error)?;
    let stored = rows.find(&put.id)?;
    let now = clock.now();
    // No fence is assigned here, so the floor does not matter.
    if guard::judge(
        stored.as_ref().map(|stored| &stored.head),
        put,
        now,
        Fence::ZERO,
    )
    .is_ok()
    {
        return Ok(None);
    }
    let record = stored.map(|stored| rows.record(stored, now)).transpose()?;
    Ok(Some(Seen { record, now }))
}

/// A part of a listing, and the id after which to continue.
pub(super) struct Part {
    pub(super) heads: Vec<Head>,
    pub(super) next: Option<RecordId>,
}

/// Heads in the order of their ids: as many as requested, or fewer if that would take long.
pub(super) fn list(
    rows: Rows<'_>,
    query: &ListQuery,
    clock: &dyn Clock,
) -> Result<Part, StoreError> {
    let stored = rows.after(query.after, LIST_ROWS)?;
    let now = clock.now();
    let next = (stored.len() == LIST_ROWS).then(|| stored[LIST_ROWS - 1].head.id);
    let heads = stored.into_iter().map(|stored| stored.head.at(now));
    let heads = heads
        .filter(|head| query.state.is_none_or(|filter| filter.matches(head.state)))
        .take(query.limit);
    Ok(Part {
        heads: heads.collect(),
        next,
    })
}
