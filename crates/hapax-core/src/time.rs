//! Time as a value: microseconds since the Unix epoch, by the clock of a store.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// A moment on a store's clock, in microseconds since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The epoch: before every lease and every retention.
    pub const ZERO: Timestamp = Timestamp(0);

    /// The moment this many microseconds after the epoch.
    pub const fn from_micros(micros: u64) -> Self {
        Timestamp(micros)
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Converts a wall-clock time.
    pub fn from_system_time(time: SystemTime) -> Self {
        let since_epoch = time
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Timestamp::ZERO.after(since_epoch)
    }

    /// The same moment as a wall-clock time.
    pub fn to_system_time(self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_micros(self.0)
    }

    /// The moment `duration` later. Saturates instead of wrapping.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Timestamp(self.0.saturating_add(micros))
    }

    /// The time from `earlier` to this moment; zero if `earlier` is later.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}us", self.0)
    }
}

/// The source of a store's time.
///
/// A store's clock never runs backwards while the store is open. Production clocks are outside this
/// crate; tests set a manual one.
pub trait Clock: Send + Sync + 'static {
    /// The current time.
    fn now(&self) -> Timestamp;
}

/// A clock that stands still until a test advances it. Clones share the same clock.
///
/// ```
/// use std::time::Duration;
///
/// use hapax_core::time::ManualClock;
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

/// The first second of 2030. It is fixed, so that failures are reproducible, and plausible, so that
/// it is not mistaken for zero.
const START: Duration = Duration::from_secs(1_893_456_000);

impl ManualClock {
    /// A new clock at the beginning of 2030.
    pub fn new() -> Self {
        ManualClock::starting_at(Timestamp::ZERO.after(START))
    }

    /// A new clock at this time.
    pub fn starting_at(start: Timestamp) -> Self {
        ManualClock {
            micros: Arc::new(AtomicU64::new(start.as_micros())),
        }
    }

    /// Advances the clock. It cannot go back: a store's clock does not run backwards.
    pub fn advance(&self, duration: Duration) {
        let micros =
            u64::try_from(duration.as_micros()).expect("a test does not outlive the calendar");
        self.micros.fetch_add(micros, Ordering::SeqCst);
    }

    /// The current time of this clock.
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
