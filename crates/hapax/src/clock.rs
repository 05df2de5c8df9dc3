//! The clock of an embedded store: anchored to the wall once, then driven by time since boot.
//!
//! Someone who sets the wall clock, or a machine that sleeps, neither shortens nor lengthens a
//! lease.

use std::time::{Duration, SystemTime};

use hapax_core::{Clock, Timestamp};

/// Wall time at the moment of anchoring, plus the time that has really passed since.
#[derive(Clone, Copy, Debug)]
pub struct BootClock {
    wall: Timestamp,
    boot: Duration,
}

impl BootClock {
    /// A clock that begins now, but not before `at_least`: a store's clock does not run backwards
    /// over a restart either.
    pub fn anchored(at_least: Timestamp) -> Self {
        BootClock {
            wall: Timestamp::from_system_time(SystemTime::now()).max(at_least),
            boot: since_boot(),
        }
    }
}

/// What a store writes down of its clock, so that a restart and a reader outside can go on from
/// there.
#[cfg(feature = "sqlite")]
impl BootClock {
    /// A clock that another process of this boot anchored.
    pub(crate) fn resumed(wall: Timestamp, boot: Duration) -> Self {
        BootClock { wall, boot }
    }

    /// Both readings at the moment of anchoring.
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

/// Where there is no such clock, time since this process first asked.
#[cfg(not(target_os = "linux"))]
fn since_boot() -> Duration {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed()
}

/// What tells this boot of this machine from every other.
#[cfg(feature = "sqlite")]
pub(crate) fn boot_id() -> String {
    // Elsewhere every process is its own boot: a lease is then never taken for live by a process
    // that cannot know.
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_or_else(
        |_| uuid::Uuid::new_v4().to_string(),
        |id| id.trim().to_owned(),
    )
}
