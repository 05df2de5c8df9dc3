//! The hand-turned clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hapax_core::{Clock, Timestamp};

/// A clock that stands still until a test turns it. Clones are handles on the same clock.
///
/// ```
/// use std::time::Duration;
///
/// use hapax_contract::ManualClock;
///
/// let clock = ManualClock::new();
/// let before = clock.now();
/// clock.clone().advance(Duration::from_secs(10));
/// assert_eq!(clock.now(), before.after(Duration::from_secs(10)));
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock {
    micros: Arc<AtomicU64>,
}

/// The first second of 2030: fixed, so that failures repeat to the digit; plausible, so that
/// nothing takes it for zero.
const START: Duration = Duration::from_secs(1_893_456_000);

impl ManualClock {
    /// A clock of its own, standing at the beginning of 2030.
    pub fn new() -> Self {
        let start = Timestamp::ZERO.after(START);
        ManualClock {
            micros: Arc::new(AtomicU64::new(start.as_micros())),
        }
    }

    /// Turns the clock on. There is no way to turn it back: a store's clock does not run backwards.
    pub fn advance(&self, duration: Duration) {
        let micros =
            u64::try_from(duration.as_micros()).expect("a test does not outlive the calendar");
        self.micros.fetch_add(micros, Ordering::SeqCst);
    }

    /// The moment it shows.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.micros.load(Ordering::SeqCst))
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        ManualClock::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        ManualClock::now(self)
    }
}
