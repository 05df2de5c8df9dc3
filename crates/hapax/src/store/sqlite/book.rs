//! The book: what the writer knows of the file without reading it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use hapax_core::record::{Head, State};
use hapax_core::store::StoreError;
use hapax_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension};

use super::index::{Index, Move, Running, To, prefix};
use super::place::{Lanes, OPEN, Place, bounds};
use super::policies::Policies;
use super::roll::{self, Loader, Roll};
use super::row::{Leases, Rows, Stored};
use super::schema::Meta;
use crate::store::sqlite_kit::error::store_error;

/// The two tables that have lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Heads,
    Answers,
}

/// What the writer knows of the file.
pub(super) struct Book {
    pub(super) index: Arc<Index>,
    pub(super) heads: Lanes,
    pub(super) answers: Lanes,
    /// The next turn among the records that no time removes.
    pub(super) open_next: u64,
    pub(super) roll: Roll,
    /// What the store says of itself, as last written down.
    pub(super) meta: Meta,
    /// Lanes that could not be swept because the file is damaged there.
    pub(super) damaged: HashSet<(Kind, u16)>,
    /// Whether a sweep was made since the file's size was looked after.
    pub(super) has_swept: bool,
}

impl Book {
    /// Reads all there is to know.
    pub(super) fn load(
        connection: &Connection,
        policies: &Policies,
        leases: Leases,
    ) -> Result<Book, StoreError> {
        let meta = Meta::read(connection)?;
        let index = Arc::new(Index::default());
        let mut book = Book {
            index,
            heads: Lanes::default(),
            answers: Lanes::default(),
            open_next: 0,
            roll: Roll::default(),
            meta,
            damaged: HashSet::new(),
            has_swept: false,
        };
        for lane in lanes(connection, "answers", "due")? {
            book.answers.found(lane.next(), lane.last_due);
        }
        let rows = Rows {
            connection,
            policies,
            leases,
        };
        book.load_heads(rows)?;
        book.load_open(rows)?;
        Ok(book)
    }

    fn load_heads(&mut self, rows: Rows<'_>) -> Result<(), StoreError> {
        let found = lanes(rows.connection, "heads", "tombstone_until")?;
        let count: u64 = found
            .iter()
            .map(|lane| (lane.last.turn() + 1).saturating_sub(lane.first.turn()))
            .sum();
        // A lane has few gaps, but a file that says otherwise must not make us reserve what is not
        // there.
        self.index
            .reserve(usize::try_from(count).unwrap_or(usize::MAX).min(1 << 26));
        let mut due: BTreeMap<u16, Timestamp> = found
            .into_iter()
            .map(|lane| (lane.last.lane(), lane.last_due))
            .collect();
        for lane in roll::lanes(rows.connection)? {
            due.entry(lane).or_insert(Timestamp::ZERO);
        }
        let index = self.index.clone();
        let mut loader = Loader::new(&index);
        for (lane, last_due) in due {
            let next = roll::load(rows, lane, &mut loader, &mut self.roll)?;
            self.heads.found(next, last_due);
        }
        loader.flush();
        Ok(())
    }

    fn load_open(&mut self, rows: Rows<'_>) -> Result<(), StoreError> {
        for (place, id, stored) in rows.open()? {
            self.open_next = self.open_next.max(place.turn() + 1);
            let to = match stored {
                Some(Stored { head, .. }) if head.state == State::Running => {
                    To::Running(Running { place, head })
                }
                // One that cannot be read is found all the same, and reading it is an error each
                // time.
                _ => To::Row(place),
            };
            self.index.apply(Move { id, from: None, to });
        }
        Ok(())
    }

    pub(super) fn lanes(&self, kind: Kind) -> &Lanes {
        match kind {
            Kind::Heads => &self.heads,
            Kind::Answers => &self.answers,
        }
    }

    /// Where a head goes: among what no time removes, or among what goes when it does.
    pub(super) fn place(&mut self, head: &Head) -> Place {
        if !head.state.is_open() {
            return self.heads.append(head.tombstone_until);
        }
        self.open_next += 1;
        Place::new(OPEN, self.open_next - 1)
    }

    /// Takes note of what has become durable.
    pub(super) fn apply(&mut self, moved: Move) {
        moved
            .from
            .into_iter()
            .for_each(|from| self.roll.vacate(from));
        let place = match &moved.to {
            To::Row(place) if !place.is_open() => Some(*place),
            _ => None,
        };
        if let Some(place) = place {
            self.roll.note(place, prefix(&moved.id));
        }
        self.index.apply(moved);
    }
}

/// A lane as the file has it.
struct Found {
    first: Place,
    last: Place,
    last_due: Timestamp,
}

/// The lanes of a table, the open one left out.
fn lanes(connection: &Connection, table: &str, due: &str) -> Result<Vec<Found>, StoreError> {
    let mut lanes = Vec::new();
    let (mut from, _) = bounds(OPEN + 1);
    let first_sql = format!("SELECT min(row) FROM {table} WHERE row >= ?1");
    let last_sql =
        format!("SELECT row, {due} FROM {table} WHERE row < ?1 ORDER BY row DESC LIMIT 1");
    let first = |from: i64| {
        connection
            .query_row(&first_sql, [from], |row| row.get::<_, Option<i64>>(0))
            .map_err(store_error)
    };
    while let Some(row) = first(from)? {
        let first = Place::from_row(row);
        let (_, end) = bounds(first.lane());
        let last = connection
            .query_row(&last_sql, [end], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()
            .map_err(store_error)?;
        let (last, last_due): (i64, i64) =
            last.ok_or_else(|| StoreError::corrupt("a lane ends before it begins"))?;
        lanes.push(Found {
            first,
            last: Place::from_row(last),
            last_due: Timestamp::from_micros(last_due.unsigned_abs()),
        });
        from = end;
    }
    Ok(lanes)
}

impl Found {
    fn next(&self) -> Place {
        Place::from_row(self.last.row() + 1)
    }
}
