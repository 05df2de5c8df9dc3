//! Records that other transactions have locked. A write to one of them is sent alone from the
//! start, because it would delay everything in its batch.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use std::time::{Duration, Instant};

use hapax_core::scope::RecordId;
use parking_lot::Mutex;

use crate::hash::Ids;

/// How long a record is treated as locked after it was last found locked: about as long as callers
/// wait before they try to write it again.
const SUSPECTED_FOR: Duration = Duration::from_secs(2);
/// The most records that are remembered. A further locked record delays the batches it is in.
const SUSPECTS_MAX: usize = 1024;

#[derive(Default)]
pub(super) struct Locked {
    /// The size of `until`, mostly zero, which can be read without the mutex.
    count: AtomicUsize,
    until: Mutex<HashMap<RecordId, Instant, Ids>>,
}

impl Locked {
    /// Remembers these records as locked.
    pub(super) fn add(&self, ids: &[RecordId]) {
        let mut until = self.until.lock();
        let now = Instant::now();
        until.retain(|_, until| *until > now);
        for id in ids {
            if until.len() < SUSPECTS_MAX || until.contains_key(id) {
                until.insert(*id, now + SUSPECTED_FOR);
            }
        }
        self.count.store(until.len(), Ordering::Relaxed);
    }

    /// Whether one of these was recently found locked.
    pub(super) fn has_any(&self, ids: &[RecordId]) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut until = self.until.lock();
        let now = Instant::now();
        until.retain(|_, until| *until > now);
        self.count.store(until.len(), Ordering::Relaxed);
        ids.iter().any(|id| until.contains_key(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_locked_is_suspected_and_nothing_else() {
        let (locked, one, other) = (
            Locked::default(),
            [RecordId::from_bytes([1; 32])],
            [RecordId::from_bytes([2; 32])],
        );
        assert!(!locked.has_any(&one));
        locked.add(&one);
        assert_eq!(
            (locked.has_any(&one), locked.has_any(&other)),
            (true, false)
        );
    }
}
