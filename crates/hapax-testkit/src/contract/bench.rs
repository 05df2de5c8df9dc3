//! The bench: the store under test, and how time is made to pass for it.

use std::any::Any;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hapax_core::Store;
use hapax_core::store::{Pulse, Swept};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::subject::Subject;
use crate::ManualClock;

/// A store on the test bench.
#[derive(Clone)]
pub struct Bench {
    /// The store under test.
    pub store: Arc<dyn Store>,
    /// The clock it was given. `None` if it has its own; then time passes by really waiting.
    pub clock: Option<ManualClock>,
    /// Whether other cases work on the same store, or have done so.
    pub is_shared: bool,
    _kept: Option<Arc<dyn Any + Send + Sync>>,
}

impl Bench {
    /// A store that takes its time from `clock`.
    pub fn by_hand(store: Arc<dyn Store>, clock: ManualClock) -> Self {
        Bench { store, clock: Some(clock), is_shared: false, _kept: None }
    }

    /// A store with a clock of its own.
    pub fn in_real_time(store: Arc<dyn Store>) -> Self {
        Bench { store, clock: None, is_shared: false, _kept: None }
    }

    /// Keeps something for as long as the bench is used: the directory of the store's file, for example.
    #[must_use]
    pub fn keeping(self, kept: impl Any + Send + Sync) -> Self {
        Bench { _kept: Some(Arc::new(kept)), ..self }
    }

    /// Says that this store is shared by several cases. Within one process, cases that sweep then wait until they are alone, and
    /// what sweeps count and what raises the epoch is held to lower bounds. A shared store must not have a hand-turned clock: one
    /// case would move the time of all.
    #[must_use]
    pub fn shared(self) -> Self {
        assert!(self.clock.is_none(), "a shared store with a hand-turned clock: its cases would end each other's leases");
        Bench { is_shared: true, ..self }
    }

    /// Lets this much of the store's time pass: by turning its clock, or else by waiting.
    pub async fn pass(&self, duration: Duration) {
        match &self.clock {
            Some(clock) => clock.advance(duration),
            None => tokio::time::sleep(duration + MARGIN).await,
        }
    }

    /// A record nobody has claimed.
    pub(super) fn subject(&self) -> Subject {
        Subject::new(self.store.clone())
    }

    pub(super) async fn pulse(&self) -> Pulse {
        self.store.pulse().await.expect("pulse")
    }

    /// Sweeps until nothing is due, and adds up.
    pub(super) async fn sweep(&self) -> Swept {
        let mut sum = Swept::default();
        for _ in 0..ROUNDS_MAX {
            let swept = self.store.sweep(SWEEP_LIMIT).await.expect("sweep");
            if swept.total() == 0 {
                return sum;
            }
            assert!(swept.total() <= SWEEP_LIMIT, "over the limit: {swept:?}");
            sum += swept;
        }
        panic!("{ROUNDS_MAX} sweeps of {SWEEP_LIMIT} and still not done: {sum:?}");
    }

    /// Sweeps until nothing is due and holds the counts to what was expected; more may be due in a store that is shared.
    pub(super) async fn sweep_expecting(&self, expected: Swept) {
        let swept = self.sweep().await;
        if self.is_shared {
            let has_all = swept.lost >= expected.lost && swept.buried >= expected.buried && swept.removed >= expected.removed;
            assert!(has_all, "{swept:?} is less than {expected:?}");
        } else {
            assert_eq!(swept, expected);
        }
    }

    /// Waits until this case may run: on a shared store one that sweeps runs alone, as it would change what others look at.
    pub(super) async fn turn(&self, sweeps: bool) -> Turn {
        match (self.is_shared, sweeps) {
            (false, _) => Turn::Free,
            (true, false) => Turn::Among { _others: TURNS.read().await },
            (true, true) => Turn::Alone { _nobody: TURNS.write().await },
        }
    }
}

/// Held while a case runs.
pub(super) enum Turn {
    Free,
    Among { _others: RwLockReadGuard<'static, ()> },
    Alone { _nobody: RwLockWriteGuard<'static, ()> },
}

/// A number no other process or run has drawn, and how many were drawn before it in this one.
pub(super) fn unique() -> (u64, u64) {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // The standard library seeds its hashers at random: the one source of randomness at hand without a dependency.
    (RandomState::new().hash_one(count), count)
}

static TURNS: RwLock<()> = RwLock::const_new(());

/// The store's clock and the one we wait by may tick apart by a little.
const MARGIN: Duration = Duration::from_millis(5);
const SWEEP_LIMIT: usize = 100;
const ROUNDS_MAX: usize = 1_000;
