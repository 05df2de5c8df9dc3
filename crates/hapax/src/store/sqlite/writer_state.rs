//! The writer state: the writer's knowledge of the file.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use hapax_core::record::{Head, State};
use hapax_core::store::StoreError;
use hapax_core::time::Timestamp;
use rusqlite::Connection;

use super::index::{Index, Move, Running, To, prefix};
use super::index_snapshot::{self, IndexSnapshot, Loader};
use super::policies::Policies;
use super::row::{Leases, Rows, Stored, queries};
use super::row_number::{ExpiryQueues, OPEN, RowNumber, bounds};
use super::schema::Meta;
use crate::store::codec;
use crate::store::sqlite_kit::row::get;

/// The two tables with queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Heads,
    Answers,
}

/// The writer's knowledge of the file, so that it need not read.
pub(super) struct WriterState {
    pub(super) index: Arc<Index>,
    pub(super) heads: ExpiryQueues,
    pub(super) answers: ExpiryQueues,
    /// The next position in the open queue.
    pub(super) open_next: u64,
    pub(super) snapshot: IndexSnapshot,
    /// The store-wide values, as last saved.
    pub(super) meta: Meta,
    /// Queues that cannot be swept because the file is damaged there.
    pub(super) damaged: HashSet<(Kind, u16)>,
    /// Whether a sweep was made since the file's size was last checked.
    pub(super) has_swept: bool,
}

impl WriterState {
    /// Loads the state from the file.
    pub(super) fn load(
        connection: &Connection,
        policies: &Policies,
        leases: Leases,
    ) -> Result<WriterState, StoreError> {
        let meta = Meta::read(connection)?;
        let index = Arc::new(Index::default());
        let mut writer_state = WriterState {
            index,
            heads: ExpiryQueues::default(),
            answers: ExpiryQueues::default(),
            open_next: 0,
            snapshot: IndexSnapshot::default(),
            meta,
            damaged: HashSet::new(),
            has_swept: false,
        };
        for queue in queues(connection, "answers", "due")? {
            writer_state.answers.found(queue.next(), queue.last_due);
        }
        let rows = Rows {
            connection,
            policies,
            leases,
        };
        writer_state.load_heads(rows)?;
        writer_state.load_open(rows)?;
        Ok(writer_state)
    }

    fn load_heads(&mut self, rows: Rows<'_>) -> Result<(), StoreError> {
        let found = queues(rows.connection, "heads", "tombstone_until")?;
        let count: u64 = found
            .iter()
            .map(|queue| (queue.last.position() + 1).saturating_sub(queue.first.position()))
            .sum();
        // Queues have few gaps, so this is close to the number of rows. The cap keeps a damaged
        // file from reserving too much memory.
        self.index
            .reserve(usize::try_from(count).unwrap_or(usize::MAX).min(1 << 26));
        let mut due: BTreeMap<u16, Timestamp> = found
            .into_iter()
            .map(|queue| (queue.last.queue(), queue.last_due))
            .collect();
        for queue in index_snapshot::queues(rows.connection)? {
            due.entry(queue).or_insert(Timestamp::ZERO);
        }
        let index = self.index.clone();
        let mut loader = Loader::new(&index);
        for (queue, last_due) in due {
            let next = index_snapshot::load(rows, queue, &mut loader, &mut self.snapshot)?;
            self.heads.found(next, last_due);
        }
        loader.flush();
        Ok(())
    }

    fn load_open(&mut self, rows: Rows<'_>) -> Result<(), StoreError> {
        for (row_number, id, stored) in rows.open()? {
            self.open_next = self.open_next.max(row_number.position() + 1);
            let to = match stored {
                Some(Stored { head, .. }) if head.state == State::Running => {
                    To::Running(Running { row_number, head })
                }
                // An unreadable record is indexed too, so that reading it fails each time.
                _ => To::Row(row_number),
            };
            self.index.apply(Move { id, from: None, to });
        }
        Ok(())
    }

    pub(super) fn queues(&self, kind: Kind) -> &ExpiryQueues {
        match kind {
            Kind::Heads => &self.heads,
            Kind::Answers => &self.answers,
        }
    }

    /// The row of a head: in the open queue, or in the expiry queue for its time.
    pub(super) fn row_number(&mut self, head: &Head) -> RowNumber {
        if !head.state.is_open() {
            return self.heads.append(head.tombstone_until);
        }
        self.open_next += 1;
        RowNumber::new(OPEN, self.open_next - 1)
    }

    /// Applies a durable move.
    pub(super) fn apply(&mut self, moved: Move) {
        moved
            .from
            .into_iter()
            .for_each(|from| self.snapshot.vacate(from));
        let row_number = match &moved.to {
            To::Row(row_number) if !row_number.is_open() => Some(*row_number),
            _ => None,
        };
        if let Some(row_number) = row_number {
            self.snapshot.add(row_number, prefix(&moved.id));
        }
        self.index.apply(moved);
    }
}

/// A queue found in the file.
struct Found {
    first: RowNumber,
    last: RowNumber,
    last_due: Timestamp,
}

/// The queues of a table, without the open one.
fn queues(connection: &Connection, table: &str, due: &str) -> Result<Vec<Found>, StoreError> {
    let mut queues = Vec::new();
    let (mut from, _) = bounds(OPEN + 1);
    let first_sql = format!("SELECT min(row) FROM {table} WHERE row >= ?1");
    let last_sql =
        format!("SELECT row, {due} FROM {table} WHERE row < ?1 ORDER BY row DESC LIMIT 1");
    let first = |from: i64| {
        let row: Option<Option<i64>> =
            queries(connection).first(&first_sql, [from], |row| get(row, 0))?;
        Ok::<_, StoreError>(row.flatten())
    };
    while let Some(row) = first(from)? {
        let first = RowNumber::from_row(row);
        let (_, end) = bounds(first.queue());
        let last =
            queries(connection).first(&last_sql, [end], |row| Ok((get(row, 0)?, get(row, 1)?)))?;
        let (last, last_due): (i64, i64) =
            last.ok_or_else(|| StoreError::corrupt("a queue ends before it begins"))?;
        queues.push(Found {
            first,
            last: RowNumber::from_row(last),
            last_due: codec::time(last_due),
        });
        from = end;
    }
    Ok(queues)
}

impl Found {
    fn next(&self) -> RowNumber {
        RowNumber::from_row(self.last.row() + 1)
    }
}
