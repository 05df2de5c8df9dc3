//! Waiting for a lock that somebody else holds. SQLite's own way sleeps for milliseconds from the
//! start; most transactions are over sooner.

use std::time::Duration;

const FIRST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(5);

/// Rests, longer each time.
pub(super) struct Rest(Duration);

impl Default for Rest {
    fn default() -> Self {
        Rest(FIRST)
    }
}

impl Rest {
    pub(super) fn take(&mut self) {
        std::thread::sleep(self.0);
        self.0 = (self.0 * 2).min(LONGEST);
    }
}
