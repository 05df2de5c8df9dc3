//! Waiting for a lock of another connection. SQLite's own busy handler sleeps for milliseconds from
//! the start, but most transactions end sooner.

use std::time::Duration;

use crate::backoff::Backoff;

const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// Increasing pauses of a thread.
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
