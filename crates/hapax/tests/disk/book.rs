//! Records what callers were promised, to be checked against the store and the ledger.

use super::process::{Places, Process};
use super::service::{Answer, Order};

/// How many of the latest answers are replayed after each fault; at the end, all are.
const LATEST: usize = 4;
/// Repeats wait for a running attempt instead of being rejected as in flight.
const WAIT_S: u64 = 5;

#[derive(Default)]
pub struct Book {
    /// Acknowledged charges, in the order of their answers.
    acknowledged: Vec<(String, Answer)>,
    /// The number of keys whose outcome is unknown.
    pub unknown: usize,
    /// The number of keys that were charged only when they were sent again.
    pub run_on_retry: usize,
    pub replayed: usize,
}

impl Book {
    /// Records the answer to a request, which must be one of the documented answers. Returns
    /// whether it was a charge.
    pub fn note(&mut self, key: &str, answer: &Answer) -> bool {
        if answer.status == 201 {
            self.acknowledged.push((key.to_owned(), answer.clone()));
            return true;
        }
        assert!(
            answer.is_unavailable() || answer.is_unknown() || answer.is_in_flight(),
            "{key} got {answer:?}"
        );
        false
    }

    /// Charges a new key.
    pub fn charge(&mut self, process: &mut Process, key: &str, answer_bytes: usize) {
        let answer = process.send_until_definite(&Order {
            key: key.to_owned(),
            answer_bytes,
            wait_s: WAIT_S,
        });
        assert_eq!(answer.status, 201, "{key} is new, and got {answer:?}");
        self.note(key, &answer);
    }

    /// Sends a key that met a fault again, until it has a definite answer.
    pub fn retry(&mut self, process: &mut Process, key: &str, answer_bytes: usize) {
        let answer = process.send_until_definite(&Order {
            key: key.to_owned(),
            answer_bytes,
            wait_s: WAIT_S,
        });
        let earlier = self
            .acknowledged
            .iter()
            .find(|(acknowledged, _)| acknowledged == key);
        match (earlier, answer.status) {
            (Some((_, first)), _) => same(key, first, &answer),
            (None, 201) => {
                self.run_on_retry += usize::from(!answer.is_replay);
                self.acknowledged.push((key.to_owned(), answer.clone()));
            }
            (None, _) => {
                assert!(answer.is_unknown(), "{key} got {answer:?}");
                self.unknown += 1;
            }
        }
        self.replayed += usize::from(answer.is_replay);
    }

    /// Checks that the latest acknowledged answers are replayed unchanged.
    pub fn replay_latest(&mut self, process: &mut Process) {
        let first = self.acknowledged.len().saturating_sub(LATEST);
        self.replay_from(first, process);
    }

    /// Checks that every acknowledged answer is replayed unchanged.
    pub fn replay_all(&mut self, process: &mut Process) {
        self.replay_from(0, process);
    }

    fn replay_from(&mut self, first: usize, process: &mut Process) {
        for (key, first) in &self.acknowledged[first..] {
            let answer = process.send_until_definite(&Order {
                key: key.clone(),
                answer_bytes: 0,
                wait_s: WAIT_S,
            });
            same(key, first, &answer);
            self.replayed += 1;
        }
    }

    /// Checks the ledger: at most one effect for each key, exactly one for each that was
    /// acknowledged.
    pub fn judge(&self, places: &Places) {
        let effects = places.ledger().counts();
        for (key, count) in &effects {
            assert!(*count <= 1, "{key} had {count} effects");
        }
        for (key, _) in &self.acknowledged {
            assert_eq!(effects.get(key), Some(&1), "{key} was acknowledged");
        }
    }
}

fn same(key: &str, first: &Answer, again: &Answer) {
    let replay = Answer {
        is_replay: true,
        ..first.clone()
    };
    assert_eq!(*again, replay, "{key} was acknowledged");
}

/// Checks the file with SQLite's `integrity_check`.
pub fn check_file(places: &Places) {
    let connection = rusqlite::Connection::open(&places.store).unwrap();
    let word: String = connection
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(word, "ok", "{}", places.store.display());
}
