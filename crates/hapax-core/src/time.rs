//! Time as a value: microseconds since the Unix epoch, by the clock of a store.

use std::fmt;
use std::time::{Duration, SystemTime};

/// A moment on a store's clock, in microseconds since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The beginning of time: before every lease and every retention.
    pub const ZERO: Timestamp = Timestamp(0);

    /// A moment that many microseconds after the epoch.
    pub const fn from_micros(micros: u64) -> Self {
        Timestamp(micros)
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The wall clock's reading, for callers who have one.
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

    /// This moment and then some; stays at the end of time rather than wrapping.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Timestamp(self.0.saturating_add(micros))
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}us", self.0)
    }
}

/// Where a store takes its time from.
///
/// A store's clock never runs backwards while the store is open. Production clocks live outside
/// this crate; tests turn one by hand.
pub trait Clock: Send + Sync + 'static {
    /// The moment it is now.
    fn now(&self) -> Timestamp;
}
