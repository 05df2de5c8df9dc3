//! Row numbers: the row of the file that contains a record or an answer.
//!
//! Rows are only appended, to *expiry queues*. A row never falls due before the rows in front of
//! it, so expired rows are removed from the front, many adjacent ones at once and without a search.
//! A row number is a queue and a position in it.

use hapax_core::time::Timestamp;

/// Bits of a position: more positions than will ever be written.
pub(super) const POSITION_BITS: u32 = 48;

/// The number of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct RowNumber(i64);

impl RowNumber {
    pub(super) fn new(queue: u16, position: u64) -> RowNumber {
        assert!(
            queue < 1 << 15 && position < 1 << POSITION_BITS,
            "a queue has 2^48 positions"
        );
        RowNumber(i64::from(queue) << POSITION_BITS | position as i64)
    }

    pub(super) fn from_row(row: i64) -> RowNumber {
        RowNumber(row)
    }

    pub(super) fn row(self) -> i64 {
        self.0
    }

    pub(super) fn queue(self) -> u16 {
        (self.0 >> POSITION_BITS) as u16
    }

    pub(super) fn position(self) -> u64 {
        self.0 as u64 & ((1 << POSITION_BITS) - 1)
    }

    /// Whether the row is in the open queue, from which nothing expires.
    pub(super) fn is_open(self) -> bool {
        self.queue() == OPEN
    }
}

/// The queue of records that do not expire: running and unknown ones. They leave one by one.
pub(super) const OPEN: u16 = 0;
/// The most expiry queues. There is one for each lifetime in use; with more lifetimes than this,
/// some rows stay behind later ones.
const QUEUES_MAX: u16 = 64;

/// The first row of a queue, and the first row after it.
pub(super) fn bounds(queue: u16) -> (i64, i64) {
    (
        i64::from(queue) << POSITION_BITS,
        (i64::from(queue) + 1) << POSITION_BITS,
    )
}

/// The next row of each queue.
#[derive(Debug, Default)]
pub(super) struct ExpiryQueues(Vec<ExpiryQueue>);

#[derive(Clone, Copy, Debug)]
struct ExpiryQueue {
    number: u16,
    next: u64,
    last_due: Timestamp,
}

impl ExpiryQueues {
    /// Adds a queue that is in the file, with the position after its end.
    pub(super) fn found(&mut self, next: RowNumber, last_due: Timestamp) {
        self.0.push(ExpiryQueue {
            number: next.queue(),
            next: next.position(),
            last_due,
        });
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = u16> {
        self.0.iter().map(|queue| queue.number)
    }

    /// A new row for a record that falls due at `due`: in the queue whose last row falls due
    /// closest before it.
    ///
    /// The number is not given back when a write fails; a gap costs nothing.
    pub(super) fn append(&mut self, due: Timestamp) -> RowNumber {
        let queues = || self.0.iter().enumerate();
        let fitting = queues()
            .filter(|(_, queue)| queue.last_due <= due)
            .max_by_key(|(_, queue)| queue.last_due);
        let at = match fitting {
            Some((at, _)) => at,
            None if self.0.len() < usize::from(QUEUES_MAX) => self.open(),
            None => {
                queues()
                    .min_by_key(|(_, queue)| queue.last_due)
                    .expect("there are queues")
                    .0
            }
        };
        let queue = &mut self.0[at];
        queue.last_due = queue.last_due.max(due);
        let row_number = RowNumber::new(queue.number, queue.next);
        queue.next += 1;
        row_number
    }

    fn open(&mut self) -> usize {
        let number = (OPEN + 1..)
            .find(|number| self.numbers().all(|used| used != *number))
            .expect("fewer than there are numbers");
        self.0.push(ExpiryQueue {
            number,
            next: 0,
            last_due: Timestamp::ZERO,
        });
        self.0.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    #[test]
    fn a_row_is_its_queue_and_position() {
        let row_number = RowNumber::new(7, 123_456_789);
        assert_eq!(
            (row_number.queue(), row_number.position()),
            (7, 123_456_789)
        );
        assert_eq!(RowNumber::from_row(row_number.row()), row_number);
        assert!((bounds(7).0..bounds(7).1).contains(&row_number.row()) && !row_number.is_open());
    }

    #[test]
    fn as_many_queues_as_lifetimes_and_each_in_order() {
        let mut queues = ExpiryQueues::default();
        let mut ends = std::collections::BTreeMap::new();
        for now in 0..1_000 {
            for lifetime in [10, 5_000, 300] {
                let due = at(now + lifetime);
                let row_number = queues.append(due);
                let last = ends.insert(row_number.queue(), (row_number.position(), due));
                assert!(last.is_none_or(|(position, before)| position + 1
                    == row_number.position()
                    && before <= due));
            }
        }
        assert_eq!(ends.len(), 3);
    }

    #[test]
    fn too_many_lifetimes_share_queues() {
        let mut queues = ExpiryQueues::default();
        for lifetime in (0..1_000).rev() {
            assert!(queues.append(at(lifetime)).queue() <= QUEUES_MAX);
        }
        assert_eq!(queues.numbers().count(), usize::from(QUEUES_MAX));
    }
}
