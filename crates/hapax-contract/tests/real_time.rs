//! The suite also works without a manual clock and on a shared store: in real time, all cases at
//! once.

use std::sync::{Arc, LazyLock};
use std::time::{Instant, SystemTime};

use hapax_contract::{Bench, store_contract};
use hapax_core::{Clock, Memory, Secret, Store, Timestamp};

/// A clock that begins at the wall clock's time and then never runs backwards.
struct RealClock {
    start: Timestamp,
    since: Instant,
}

impl Clock for RealClock {
    fn now(&self) -> Timestamp {
        self.start.after(self.since.elapsed())
    }
}

static LIVE: LazyLock<Arc<dyn Store>> = LazyLock::new(|| {
    let clock = RealClock {
        start: Timestamp::from_system_time(SystemTime::now()),
        since: Instant::now(),
    };
    Arc::new(Memory::new(Arc::new(clock), Secret::from_bytes([7; 32])))
});

store_contract!(async || Bench::in_real_time(LIVE.clone()).shared());
