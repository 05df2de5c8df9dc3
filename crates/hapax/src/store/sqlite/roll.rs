//! The roll: which ids are in which rows, packed tight, so that the index is back in memory soon after a start.
//!
//! Heads are wide, and reading all of them to learn their ids would take minutes where there are millions. So whenever a lane has
//! gained [`PAGE_ROWS`] rows, what the index keeps of their ids is written down in one piece, in the order of the rows. A start reads
//! these pieces and, of the heads, only the few that came after the last one.
//!
//! A piece may name rows that are gone: whoever finds a row compares its id. It must not leave out one that is there: then a key
//! would run twice. So each piece has a checksum, and wherever one is missing or damaged, the heads themselves are read.

use std::collections::HashMap;

use hapax_core::store::StoreError;
use rusqlite::{Connection, OptionalExtension, params};

use super::error::store_error;
use super::index::{Entry, Index, prefix};
use super::place::{Place, bounds};
use super::row::Rows;

/// Rows that one piece covers: small enough to be written in passing.
const PAGE_ROWS: usize = 16 * 1024;
/// Entries that are sorted together before they go into the index.
const SORTED: usize = 1 << 20;
/// In the place of a row that failed to be written. A real prefix can be zero too, so a zero is looked up.
const NONE: u64 = 0;

/// What has not been written down yet.
#[derive(Debug, Default)]
pub(super) struct Roll(HashMap<u16, Tail>);

/// The end of a lane: the prefixes of all rows from `start` on.
#[derive(Debug, Default)]
struct Tail {
    start: u64,
    prefixes: Vec<u64>,
}

impl Roll {
    /// Takes note of a row that is durable.
    pub(super) fn note(&mut self, place: Place, prefix: u64) {
        let tail = self.0.entry(place.lane()).or_insert_with(|| Tail { start: place.turn(), prefixes: Vec::new() });
        let at = (place.turn() - tail.start) as usize;
        if at >= tail.prefixes.len() {
            tail.prefixes.resize(at + 1, NONE);
        }
        tail.prefixes[at] = prefix;
    }

    /// Writes down the tails that are long enough, one piece each. To be taken off once that is durable.
    pub(super) fn write(&self, connection: &Connection) -> rusqlite::Result<Vec<u16>> {
        let long = self.0.iter().filter(|(_, tail)| tail.prefixes.len() >= PAGE_ROWS);
        let mut written = Vec::new();
        for (lane, tail) in long {
            let piece: Vec<u8> = tail.prefixes[..PAGE_ROWS].iter().flat_map(|prefix| prefix.to_be_bytes()).collect();
            let place = Place::new(*lane, tail.start);
            let mut statement = connection.prepare_cached("INSERT INTO roll (row, prefixes, checksum) VALUES (?1, ?2, ?3)")?;
            statement.execute(params![place.row(), piece, checksum(place, &piece)])?;
            written.push(*lane);
        }
        Ok(written)
    }

    pub(super) fn take_off(&mut self, lanes: &[u16]) {
        for lane in lanes {
            let tail = self.0.get_mut(lane).expect("it was written");
            tail.prefixes.drain(..PAGE_ROWS);
            tail.start += PAGE_ROWS as u64;
        }
    }
}

/// Removes the pieces of which every row is gone, given the last row that went.
pub(super) fn pass(connection: &Connection, last: Place) -> rusqlite::Result<()> {
    let (start, _) = bounds(last.lane());
    let mut statement = connection.prepare_cached("DELETE FROM roll WHERE row >= ?1 AND row <= ?2")?;
    statement.execute([start, last.row() + 1 - PAGE_ROWS as i64]).map(drop)
}

/// Reads one lane into the index, from its first row to its last, and its tail into the roll.
pub(super) fn load(rows: Rows<'_>, first: Place, last: Place, index: &mut Loader<'_>, roll: &mut Roll) -> Result<(), StoreError> {
    let mut at = first;
    let connection = rows.connection;
    let mut pieces = connection
        .prepare_cached("SELECT row, prefixes, checksum FROM roll WHERE row > ?1 AND row <= ?2 ORDER BY row")
        .map_err(store_error)?;
    // The first piece may begin before the first row that is left.
    let before = first.row() - PAGE_ROWS as i64;
    let mut pieces = pieces.query([before.max(bounds(first.lane()).0 - 1), last.row()]).map_err(store_error)?;
    while let Some(piece) = pieces.next().map_err(store_error)? {
        let start = Place::from_row(piece.get(0).map_err(store_error)?);
        let prefixes = piece.get_ref(1).and_then(|value| Ok(value.as_blob()?)).map_err(store_error)?;
        let is_sound = piece.get::<_, u32>(2).is_ok_and(|sum| sum == checksum(start, prefixes)) && prefixes.len() == PAGE_ROWS * 8;
        if !is_sound {
            tracing::warn!(row = start.row(), "a piece of the roll is damaged: its records are read one by one");
            continue;
        }
        rows.ids(at, start, |place, id| index.push(Entry { prefix: prefix(&id), place }))?;
        for (number, prefix) in prefixes.as_chunks().0.iter().enumerate() {
            let place = Place::new(start.lane(), start.turn() + number as u64);
            let prefix = u64::from_be_bytes(*prefix);
            if place >= at && (prefix != NONE || exists(connection, place)?) {
                index.push(Entry { prefix, place });
            }
        }
        at = at.max(Place::new(start.lane(), start.turn() + PAGE_ROWS as u64));
    }
    roll.0.insert(at.lane(), Tail { start: at.turn(), prefixes: Vec::new() });
    rows.ids(at, Place::from_row(last.row() + 1), |place, id| {
        roll.note(place, prefix(&id));
        index.push(Entry { prefix: prefix(&id), place });
    })
}

/// The place after the last row that is on the roll of a lane. What was written there once must not be taken for something else, so
/// that a lane goes on from there even if nothing is left of it.
pub(super) fn end(connection: &Connection, lane: u16) -> Result<Option<Place>, StoreError> {
    let (start, end) = bounds(lane);
    let mut statement = connection.prepare_cached("SELECT max(row) FROM roll WHERE row >= ?1 AND row < ?2").map_err(store_error)?;
    let last: Option<i64> = statement.query_row([start, end], |row| row.get(0)).map_err(store_error)?;
    Ok(last.map(|row| Place::from_row(row + PAGE_ROWS as i64)))
}

fn exists(connection: &Connection, place: Place) -> Result<bool, StoreError> {
    let mut statement = connection.prepare_cached("SELECT 1 FROM heads WHERE row = ?1").map_err(store_error)?;
    statement.query_row([place.row()], |_| Ok(())).optional().map(|found| found.is_some()).map_err(store_error)
}

fn checksum(place: Place, prefixes: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&place.row().to_be_bytes());
    sum.update(prefixes);
    sum.finalize()
}

/// Fills an index, sorted piece by sorted piece.
pub(super) struct Loader<'a> {
    index: &'a Index,
    entries: Vec<Entry>,
}

impl<'a> Loader<'a> {
    pub(super) fn new(index: &'a Index) -> Self {
        Loader { index, entries: Vec::new() }
    }

    fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
        if self.entries.len() == SORTED {
            self.flush();
        }
    }

    pub(super) fn flush(&mut self) {
        self.entries.sort_unstable();
        self.index.extend(&self.entries);
        self.entries.clear();
    }
}
