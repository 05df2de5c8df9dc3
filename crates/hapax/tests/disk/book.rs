//! The judge's book: what callers were promised, to be held against the store and the ledger.

use super::process::{Places, Process};
use super::service::{Answer, Order};

/// How many of the latest promises are looked at after each fault; all of them in the end.
const LATEST: usize = 4;
/// A repeat would rather wait for the attempt under way than be told to come back.
const WAIT_S: u64 = 5;

#[derive(Default)]
pub struct Book {
    /// Charges that a caller knows of, in the order in which they were answered.
    acknowledged: Vec<(String, Answer)>,
    /// Keys that are held as unknown.
    pub unknown: usize,
    /// Keys that were charged only when they were sent again.
    pub run_on_retry: usize,
    pub replayed: usize,
}

impl Book {
    /// Notes what a request was answered with, which has to be one of the documented answers; says
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

    /// Charges something nobody has charged before.
    pub fn charge(&mut self, process: &mut Process, key: &str, answer_bytes: usize) {
        let answer = process.send_until_definite(&Order {
            key: key.to_owned(),
            answer_bytes,
            wait_s: WAIT_S,
        });
        assert_eq!(answer.status, 201, "{key} is new, and got {answer:?}");
        self.note(key, &answer);
    }

    /// Sends a key again that met with a fault, until it has a definite answer.
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

    /// What was acknowledged lately is replayed as it was.
    pub fn replay_latest(&mut self, process: &mut Process) {
        let first = self.acknowledged.len().saturating_sub(LATEST);
        self.replay_from(first, process);
    }

    /// Everything that was ever acknowledged is replayed as it was.
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

    /// The ledger's word: at most one effect for each key, exactly one for each that was
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

/// The file is whole, by SQLite's own check.
pub fn check_file(places: &Places) {
    let connection = rusqlite::Connection::open(&places.store).unwrap();
    let word: String = connection
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(word, "ok", "{}", places.store.display());
}
