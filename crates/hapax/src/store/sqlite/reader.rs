//! Reading: threads with their own connections.

use std::sync::Arc;

use hapax_core::record::{Head, StateFilter};
use hapax_core::scope::RecordId;
use hapax_core::store::{ListQuery, Reading, StoreError};
use hapax_core::time::Timestamp;

use super::OpenError;
use super::index::{Entry, Found, Index};
use super::row::{Lookup, Rows, Stored, missing};
use super::shared::{READERS, Shared, shut};
use crate::store::sqlite_kit::error::store_error;
use crate::store::sqlite_kit::{Question, Readers};

/// Rows that a listing reads before it lets other reads go first.
const LIST_ROWS: usize = 1024;
/// How often a listing retries a record that moves. A commit reaches the index in far fewer tries.
const MOVES_MAX: usize = 100_000;

pub(super) fn start(shared: &Arc<Shared>) -> Result<Readers, OpenError> {
    let reader = |number| {
        let shared = shared.clone();
        move |question: Question| match &*shared.enter() {
            Some(connections) => question(Ok(&connections.reader(number))),
            None => question(Err(shut())),
        }
    };
    Readers::start(&shared.path, (0..READERS).map(reader))
}

/// Reads records by their index entries. `None` if a row was not where the index had it: then the
/// record is being moved, and only the writer can find it.
pub(super) fn get(
    rows: Rows<'_>,
    found: Vec<(RecordId, Found)>,
    now: impl FnOnce() -> Timestamp,
) -> Result<Option<Reading>, StoreError> {
    // One snapshot for all of them, taken after the index was read: index entries are durable, so
    // the snapshot contains their rows.
    let _snapshot = rows
        .connection
        .unchecked_transaction()
        .map_err(store_error)?;
    let mut stored = Vec::with_capacity(found.len());
    for (id, found) in found {
        stored.push(match rows.look_up(&id, found)? {
            Lookup::Missing => return Ok(None),
            found => found.settled()?,
        });
    }
    let now = now();
    let record = |stored: Option<Stored>| stored.map(|stored| rows.record(stored, now)).transpose();
    Ok(Some(Reading {
        records: stored.into_iter().map(record).collect::<Result<_, _>>()?,
        now,
    }))
}

/// A part of a listing, and the prefix from which to continue.
pub(super) struct Part {
    pub(super) heads: Vec<Head>,
    pub(super) next: Option<u64>,
}

/// Heads in the order of their ids, from a prefix on: as many as requested, or fewer if that would
/// take long.
pub(super) fn list(
    rows: Rows<'_>,
    index: &Index,
    query: &ListQuery,
    from: u64,
    now: Timestamp,
) -> Result<Part, StoreError> {
    let mut part = Part {
        heads: Vec::new(),
        next: Some(from),
    };
    let mut seen = 0;
    while let Some(from) = part.next
        && part.heads.len() < query.limit
        && seen < LIST_ROWS
    {
        let (entries, next) = index.page(from);
        part.next = next;
        // Entries with the same prefix are in no order, so they are read together.
        for alike in entries.chunk_by(|a, b| a.prefix == b.prefix) {
            if part.heads.len() >= query.limit || seen >= LIST_ROWS {
                part.next = Some(alike[0].prefix);
                break;
            }
            seen += alike.len();
            part.heads
                .extend(read_alike(rows, index, alike, query, now)?);
        }
    }
    part.heads.truncate(query.limit);
    Ok(part)
}

/// Reads the records of one prefix, and retries until none of them is being moved.
fn read_alike(
    rows: Rows<'_>,
    index: &Index,
    alike: &[Entry],
    query: &ListQuery,
    now: Timestamp,
) -> Result<Vec<Head>, StoreError> {
    let mut alike = alike.to_vec();
    for _ in 0..MOVES_MAX {
        match try_alike(rows, &alike, query, now)? {
            Some(heads) => return Ok(heads),
            None => std::thread::yield_now(),
        }
        let prefix = alike[0].prefix;
        alike = index
            .page(prefix)
            .0
            .into_iter()
            .take_while(|entry| entry.prefix == prefix)
            .collect();
        if alike.is_empty() {
            return Ok(Vec::new());
        }
    }
    Err(missing())
}

fn try_alike(
    rows: Rows<'_>,
    alike: &[Entry],
    query: &ListQuery,
    now: Timestamp,
) -> Result<Option<Vec<Head>>, StoreError> {
    let mut heads = Vec::new();
    for entry in alike.iter().filter(|entry| may_be(query.state, entry)) {
        let Some(stored) = rows.read(entry.row_number)? else {
            return Ok(None);
        };
        let head = (*stored.head).clone().at(now);
        let is_asked_for = query.after.is_none_or(|after| head.id > after)
            && query.state.is_none_or(|filter| filter.matches(head.state));
        if is_asked_for {
            heads.push(head);
        }
    }
    heads.sort_unstable_by_key(|head| head.id);
    Ok(Some(heads))
}

/// Whether a record in this row can be in this state: running and unknown records are in the open
/// queue.
fn may_be(state: Option<StateFilter>, entry: &Entry) -> bool {
    match state {
        Some(StateFilter::Running | StateFilter::Unknown | StateFilter::Open) => {
            entry.row_number.is_open()
        }
        Some(StateFilter::Completed | StateFilter::Failed | StateFilter::Retryable) => {
            !entry.row_number.is_open()
        }
        Some(StateFilter::Expired) | None => true,
    }
}
