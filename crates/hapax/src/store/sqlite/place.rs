//! Places: which row of the file a record or an answer is in.
//!
//! Rows are only ever appended, in *lanes*. A lane is a queue: what is behind falls due no earlier
//! than what is in front, so that whatever time has used up is removed from the front, many
//! neighbours at once, and nothing is searched for. A row's number is its lane and its turn in it.

use hapax_core::time::Timestamp;

/// Turns in a lane: more than will ever be written.
pub(super) const TURN_BITS: u32 = 48;

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place(i64);

impl Place {
    pub(super) fn new(lane: u16, turn: u64) -> Place {
        assert!(
            lane < 1 << 15 && turn < 1 << TURN_BITS,
            "a lane has 2^48 turns"
        );
        Place(i64::from(lane) << TURN_BITS | turn as i64)
    }

    pub(super) fn from_row(row: i64) -> Place {
        Place(row)
    }

    pub(super) fn row(self) -> i64 {
        self.0
    }

    pub(super) fn lane(self) -> u16 {
        (self.0 >> TURN_BITS) as u16
    }

    pub(super) fn turn(self) -> u64 {
        self.0 as u64 & ((1 << TURN_BITS) - 1)
    }

    /// Whether time never removes what is here.
    pub(super) fn is_open(self) -> bool {
        self.lane() == OPEN
    }
}

/// Where records wait that no time removes: running, and lost without anybody knowing. They leave
/// one by one.
pub(super) const OPEN: u16 = 0;
/// As many lanes as there are lifetimes in use, up to this. With more of them some rows wait behind
/// later ones.
const LANES_MAX: u16 = 64;

/// The first row of a lane, and the first after it.
pub(super) fn bounds(lane: u16) -> (i64, i64) {
    (
        i64::from(lane) << TURN_BITS,
        (i64::from(lane) + 1) << TURN_BITS,
    )
}

/// Where the next row of each lane goes.
#[derive(Debug, Default)]
pub(super) struct Lanes(Vec<Lane>);

#[derive(Clone, Copy, Debug)]
struct Lane {
    number: u16,
    next: u64,
    last_due: Timestamp,
}

impl Lanes {
    /// Takes note of a lane that is in the file, with the place after its end.
    pub(super) fn found(&mut self, next: Place, last_due: Timestamp) {
        self.0.push(Lane {
            number: next.lane(),
            next: next.turn(),
            last_due,
        });
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = u16> {
        self.0.iter().map(|lane| lane.number)
    }

    /// A new place among what falls due at the same time: in the lane whose end is closest before
    /// it.
    ///
    /// Turns are not taken back when a write fails; a gap costs nothing.
    pub(super) fn append(&mut self, due: Timestamp) -> Place {
        let lanes = || self.0.iter().enumerate();
        let fitting = lanes()
            .filter(|(_, lane)| lane.last_due <= due)
            .max_by_key(|(_, lane)| lane.last_due);
        let at = match fitting {
            Some((at, _)) => at,
            None if self.0.len() < usize::from(LANES_MAX) => self.open(),
            None => {
                lanes()
                    .min_by_key(|(_, lane)| lane.last_due)
                    .expect("there are lanes")
                    .0
            }
        };
        let lane = &mut self.0[at];
        lane.last_due = lane.last_due.max(due);
        let place = Place::new(lane.number, lane.next);
        lane.next += 1;
        place
    }

    fn open(&mut self) -> usize {
        let number = (OPEN + 1..)
            .find(|number| self.numbers().all(|used| used != *number))
            .expect("fewer than there are numbers");
        self.0.push(Lane {
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
    fn a_row_is_its_lane_and_turn() {
        let place = Place::new(7, 123_456_789);
        assert_eq!((place.lane(), place.turn()), (7, 123_456_789));
        assert_eq!(Place::from_row(place.row()), place);
        assert!((bounds(7).0..bounds(7).1).contains(&place.row()) && !place.is_open());
    }

    #[test]
    fn as_many_lanes_as_lifetimes_and_each_in_order() {
        let mut lanes = Lanes::default();
        let mut ends = std::collections::BTreeMap::new();
        for now in 0..1_000 {
            for lifetime in [10, 5_000, 300] {
                let due = at(now + lifetime);
                let place = lanes.append(due);
                let last = ends.insert(place.lane(), (place.turn(), due));
                assert!(
                    last.is_none_or(|(turn, before)| turn + 1 == place.turn() && before <= due)
                );
            }
        }
        assert_eq!(ends.len(), 3);
    }

    #[test]
    fn too_many_lifetimes_share_lanes() {
        let mut lanes = Lanes::default();
        for lifetime in (0..1_000).rev() {
            assert!(lanes.append(at(lifetime)).lane() <= LANES_MAX);
        }
        assert_eq!(lanes.numbers().count(), usize::from(LANES_MAX));
    }
}
