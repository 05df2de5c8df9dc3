//! The index snapshot: the ids in each queue, stored compactly, so that the index can be loaded
//! soon after a start.
//!
//! Heads are wide, and reading all of them for their ids would take minutes with millions of
//! records. So whenever a queue has gained [`PIECE_ROWS`] rows, the prefixes of their ids are
//! written as one piece, in the order of the rows. A start reads these pieces, and only the few
//! heads after the last one.
//!
//! The snapshot must not omit a row that exists: its key would run twice. So each piece has a
//! checksum, and where a piece is missing or damaged, the heads themselves are read. Nor may a row
//! that it names be missing, unless it is recorded as vacated.

use std::collections::{BTreeSet, HashMap, HashSet};

use hapax_core::store::StoreError;
use rusqlite::{Connection, params};

use super::index::{Entry, Index, prefix};
use super::row::{Rows, queries};
use super::row_number::{POSITION_BITS, RowNumber, bounds};
use crate::store::sqlite_kit::error::store_error;
use crate::store::sqlite_kit::row::{blob, get};

/// Rows in one piece: few enough to be written along with a batch.
const PIECE_ROWS: usize = 16 * 1024;
/// Entries that are sorted together before they are added to the index.
const SORTED: usize = 1 << 20;
/// Stands for a row that was never written. A real prefix can be zero too, so a zero is looked up
/// in the heads.
const NONE: u64 = 0;

/// The part that has not been written yet.
#[derive(Debug, Default)]
pub(super) struct IndexSnapshot(HashMap<u16, Tail>);

/// The end of a queue: the prefixes of all rows from `start` on.
#[derive(Debug, Default)]
struct Tail {
    start: u64,
    prefixes: Vec<u64>,
}

impl IndexSnapshot {
    /// Adds a durable row.
    pub(super) fn add(&mut self, row_number: RowNumber, prefix: u64) {
        let tail = self.0.entry(row_number.queue()).or_insert_with(|| Tail {
            start: row_number.position(),
            prefixes: Vec::new(),
        });
        let at = (row_number.position() - tail.start) as usize;
        if at >= tail.prefixes.len() {
            tail.prefixes.resize(at + 1, NONE);
        }
        tail.prefixes[at] = prefix;
    }

    /// Marks a row as vacated. Rows already in the file are vacated there, see
    /// [`IndexSnapshot::names`].
    pub(super) fn vacate(&mut self, row_number: RowNumber) {
        let tail = self.0.get_mut(&row_number.queue());
        let prefix = tail.and_then(|tail| {
            tail.prefixes
                .get_mut(usize::try_from(row_number.position().checked_sub(tail.start)?).ok()?)
        });
        prefix.into_iter().for_each(|prefix| *prefix = NONE);
    }

    /// Whether the file names this row, considering the pieces that were just written for the
    /// queues in `written`.
    pub(super) fn names(&self, row_number: RowNumber, written: &[u16]) -> bool {
        let more = if written.contains(&row_number.queue()) {
            PIECE_ROWS as u64
        } else {
            0
        };
        self.0
            .get(&row_number.queue())
            .is_none_or(|tail| row_number.position() < tail.start + more)
    }

    /// Writes one piece for each tail that is long enough. Call `take_off` once that is durable.
    pub(super) fn write(&self, connection: &Connection) -> rusqlite::Result<Vec<u16>> {
        let long = self
            .0
            .iter()
            .filter(|(_, tail)| tail.prefixes.len() >= PIECE_ROWS);
        let mut written = Vec::new();
        for (queue, tail) in long {
            let piece: Vec<u8> = tail.prefixes[..PIECE_ROWS]
                .iter()
                .flat_map(|prefix| prefix.to_be_bytes())
                .collect();
            let row_number = RowNumber::new(*queue, tail.start);
            // Replaces a damaged piece, whose rows were read from the heads.
            let mut statement = connection.prepare_cached(
                "INSERT OR REPLACE INTO roll (row, prefixes, checksum) VALUES (?1, ?2, ?3)",
            )?;
            statement.execute(params![
                row_number.row(),
                piece,
                checksum(row_number, &piece)
            ])?;
            written.push(*queue);
        }
        Ok(written)
    }

    pub(super) fn take_off(&mut self, queues: &[u16]) {
        for queue in queues {
            let tail = self.0.get_mut(queue).expect("it was written");
            tail.prefixes.drain(..PIECE_ROWS);
            tail.start += PIECE_ROWS as u64;
        }
    }
}

/// Records that a queue was removed up to a row, and removes the pieces without remaining rows.
pub(super) fn pass(connection: &Connection, last: RowNumber) -> rusqlite::Result<()> {
    let (start, _) = bounds(last.queue());
    connection
        .prepare_cached("INSERT OR REPLACE INTO fronts (lane, row) VALUES (?1, ?2)")?
        .execute((last.queue(), last.row()))?;
    connection
        .prepare_cached("DELETE FROM vacated WHERE row >= ?1 AND row <= ?2")?
        .execute([start, last.row()])?;
    let mut statement =
        connection.prepare_cached("DELETE FROM roll WHERE row >= ?1 AND row <= ?2")?;
    statement
        .execute([start, last.row() + 1 - PIECE_ROWS as i64])
        .map(drop)
}

/// Records in the file that a row it names was vacated.
pub(super) fn vacate(connection: &Connection, row_number: RowNumber) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO vacated (row) VALUES (?1)")?
        .execute([row_number.row()])
        .map(drop)
}

/// Rows that the index snapshot names and that were vacated.
fn vacated(connection: &Connection, queue: u16) -> Result<HashSet<i64>, StoreError> {
    let (start, end) = bounds(queue);
    let sql = "SELECT row FROM vacated WHERE row >= ?1 AND row < ?2";
    queries(connection).all(sql, [start, end], |row| get::<i64>(row, 0))
}

/// All queues in the file, including empty ones.
pub(super) fn queues(connection: &Connection) -> Result<BTreeSet<u16>, StoreError> {
    let sql = format!("SELECT lane FROM fronts UNION SELECT row >> {POSITION_BITS} FROM roll");
    queries(connection).all(&sql, [], |row| get::<u16>(row, 0))
}

/// Reads one queue into the index, and its tail into the index snapshot. Returns the position at
/// which the queue continues: after everything that was ever written, so that an entry of the
/// snapshot never applies to another row.
pub(super) fn load(
    rows: Rows<'_>,
    queue: u16,
    index: &mut Loader<'_>,
    snapshot: &mut IndexSnapshot,
) -> Result<RowNumber, StoreError> {
    let connection = rows.connection;
    let (start, end) = bounds(queue);
    let vacated = vacated(connection, queue)?;
    let front = "SELECT row FROM fronts WHERE lane = ?1";
    let front: Option<i64> = queries(connection).first(front, [queue], |row| get(row, 0))?;
    let first = RowNumber::from_row(front.map_or(start, |row| row + 1));
    // Vacated rows and rows before the front must not exist: a wrong number would hide a record.
    let is_hiding = vacated
        .iter()
        .any(|row| exists(connection, RowNumber::from_row(*row)).unwrap_or(true))
        || connection
            .query_row(
                "SELECT EXISTS (SELECT 1 FROM heads WHERE row >= ?1 AND row < ?2)",
                [start, first.row()],
                |row| row.get(0),
            )
            .map_err(store_error)?;
    if is_hiding {
        return Err(super::row::missing());
    }
    let (mut at, mut next) = (first, first);
    let sql = "SELECT row, prefixes, checksum FROM roll WHERE row >= ?1 AND row < ?2 ORDER BY row";
    let mut pieces = connection.prepare_cached(sql).map_err(store_error)?;
    let mut pieces = pieces.query([start, end]).map_err(store_error)?;
    while let Some(piece) = pieces.next().map_err(store_error)? {
        let begin = RowNumber::from_row(get(piece, 0)?);
        let end = RowNumber::from_row(begin.row() + PIECE_ROWS as i64);
        next = next.max(end);
        let prefixes = blob(piece, 1)?;
        let is_sound = piece
            .get::<_, u32>(2)
            .is_ok_and(|sum| sum == checksum(begin, prefixes))
            && prefixes.len() == PIECE_ROWS * 8;
        if !is_sound {
            tracing::warn!(
                row = begin.row(),
                "a piece of the index snapshot is damaged: its records are read one by one"
            );
            continue;
        }
        rows.ids(at, begin, |row_number, id| {
            index.push(Entry {
                prefix: prefix(&id),
                row_number,
            });
        })?;
        for (number, prefix) in prefixes.as_chunks().0.iter().enumerate() {
            let row_number = RowNumber::from_row(begin.row() + number as i64);
            let prefix = u64::from_be_bytes(*prefix);
            let is_there = || {
                if prefix == NONE {
                    exists(connection, row_number)
                } else {
                    Ok(!vacated.contains(&row_number.row()))
                }
            };
            if row_number >= at && is_there()? {
                index.push(Entry { prefix, row_number });
            }
        }
        at = at.max(end);
    }
    snapshot.0.insert(
        queue,
        Tail {
            start: at.position(),
            prefixes: Vec::new(),
        },
    );
    rows.ids(at, RowNumber::from_row(end), |row_number, id| {
        snapshot.add(row_number, prefix(&id));
        index.push(Entry {
            prefix: prefix(&id),
            row_number,
        });
        next = next.max(RowNumber::from_row(row_number.row() + 1));
    })?;
    Ok(next)
}

fn exists(connection: &Connection, row_number: RowNumber) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM heads WHERE row = ?1";
    let found = queries(connection).first(sql, [row_number.row()], |_| Ok(()))?;
    Ok(found.is_some())
}

fn checksum(row_number: RowNumber, prefixes: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&row_number.row().to_be_bytes());
    sum.update(prefixes);
    sum.finalize()
}

/// Fills an index in sorted batches.
pub(super) struct Loader<'a> {
    index: &'a Index,
    entries: Vec<Entry>,
}

impl<'a> Loader<'a> {
    pub(super) fn new(index: &'a Index) -> Self {
        Loader {
            index,
            entries: Vec::new(),
        }
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
