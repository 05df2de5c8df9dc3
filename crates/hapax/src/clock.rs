//! The clock of an embedded store: anchored to the wall clock once, then driven by time since boot.
//!
//! So neither setting the wall clock nor suspending the machine changes the length of a lease.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use hapax_core::{Clock, Timestamp};
use tokio::time::Instant;

/// Wall time at the moment of anchoring, plus the time elapsed since.
#[derive(Clone, Copy, Debug)]
pub struct BootClock {
    wall: Timestamp,
    boot: Duration,
}

impl BootClock {
    /// A clock that starts at the current wall time, or at `at_least` if that is later: a store's
    /// clock does not run backwards over a restart.
    pub fn anchored(at_least: Timestamp) -> Self {
        BootClock {
            wall: Timestamp::from_system_time(SystemTime::now()).max(at_least),
            boot: since_boot(),
        }
    }
}

/// The clock that judges what a node keeps in memory: cached answers, rates of new keys.
///
/// It is tokio's clock plus the time that a test has skipped. A test that advances the store's
/// clock advances this one too, so that memory and store agree about what has expired.
#[derive(Debug, Default)]
pub(crate) struct NodeClock {
    skipped_micros: AtomicU64,
}

impl NodeClock {
    pub(crate) fn now(&self) -> Instant {
        Instant::now() + self.skipped()
    }

    /// The wall clock's time.
    pub(crate) fn wall(&self) -> Timestamp {
        Timestamp::from_system_time(SystemTime::now()).after(self.skipped())
    }

    fn skipped(&self) -> Duration {
        Duration::from_micros(self.skipped_micros.load(Ordering::Relaxed))
    }

    #[cfg(feature = "testing")]
    pub(crate) fn skip(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.skipped_micros.fetch_add(micros, Ordering::Relaxed);
    }
}

/// The state that a store saves of its clock, so that a later process or an outside reader can
/// continue it.
#[cfg(feature = "sqlite")]
impl BootClock {
    /// A clock that another process anchored during this boot.
    pub(crate) fn resumed(wall: Timestamp, boot: Duration) -> Self {
        BootClock { wall, boot }
    }

    /// The wall time and the time since boot at the moment of anchoring.
    pub(crate) fn anchor(&self) -> (Timestamp, Duration) {
        (self.wall, self.boot)
    }
}

impl Default for BootClock {
    fn default() -> Self {
        BootClock::anchored(Timestamp::ZERO)
    }
}

impl Clock for BootClock {
    fn now(&self) -> Timestamp {
        self.wall.after(since_boot().saturating_sub(self.boot))
    }
}

/// Time since boot, sleep included.
#[cfg(target_os = "linux")]
fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

/// On other systems, time since the first call in this process.
#[cfg(not(target_os = "linux"))]
fn since_boot() -> Duration {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed()
}

/// An id of the current boot of this machine.
#[cfg(feature = "sqlite")]
pub(crate) fn boot_id() -> String {
    // On other systems every process counts as its own boot, so no process takes a lease of another
    // process for live.
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_or_else(
        |_| uuid::Uuid::new_v4().to_string(),
        |id| id.trim().to_owned(),
    )
}
