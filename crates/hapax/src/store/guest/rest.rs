//! Waiting for a lock that somebody else holds. SQLite's own way sleeps for milliseconds from the
//! start; most transactions are over sooner.

use std::time::Duration;

use crate::backoff::Backoff;

const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// Pauses of a thread, longer each time.
pub(super) struct Rest(Backoff);

impl Default for Rest {
    fn default() -> Self {
        Rest(Backoff::new(PAUSE_MIN, PAUSE_MAX))
    }
}

impl Rest {
    pub(super) fn take(&mut self) {
        std::thread::sleep(self.0.next_pause());
    }
}
