//! The bench: the store under test, and how a test lets time pass for it.

use std::any::Any;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hapax_core::Store;
use hapax_core::store::{StoreInfo, Swept};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::subject::Subject;
use crate::ManualClock;

/// A store on the test bench.
#[derive(Clone)]
pub struct Bench {
    /// The store under test.
    pub store: Arc<dyn Store>,
    /// The manual clock of the store. `None` if the store has its own clock; then a test waits in
    /// real time.
    pub clock: Option<ManualClock>,
    /// Whether other cases use or have used the same store.
    pub is_shared: bool,
    /// Whether other processes use the store too, and sweep it.
    pub is_live: bool,
    /// Whether the store drops expired answers in bulk, at times of its choice, so that no sweep
    /// counts them.
    pub drops_in_bulk: bool,
    skipped: Arc<OnceLock<&'static str>>,
    _kept: Option<Arc<dyn Any + Send + Sync>>,
}

impl Bench {
    /// A store that takes its time from `clock`.
    pub fn by_hand(store: Arc<dyn Store>, clock: ManualClock) -> Self {
        Bench {
            clock: Some(clock),
            ..Bench::in_real_time(store)
        }
    }

    /// A store with its own clock.
    pub fn in_real_time(store: Arc<dyn Store>) -> Self {
        Bench {
            store,
            clock: None,
            is_shared: false,
            is_live: false,
            drops_in_bulk: false,
            skipped: Arc::default(),
            _kept: None,
        }
    }

    /// Keeps a value for as long as the bench is used: the directory of the store's file, for
    /// example.
    #[must_use]
    pub fn keeping(self, kept: impl Any + Send + Sync) -> Self {
        Bench {
            _kept: Some(Arc::new(kept)),
            ..self
        }
    }

    /// Marks this store as shared by several cases. Cases that sweep then wait until no other case
    /// of this process runs, and the counts of sweeps and the epoch are checked against lower
    /// bounds only. A shared store must not have a manual clock: one case would move the time of
    /// all.
    #[must_use]
    pub fn shared(self) -> Self {
        assert!(
            self.clock.is_none(),
            "a shared store with a hand-turned clock: its cases would end each other's leases"
        );
        Bench {
            is_shared: true,
            ..self
        }
    }

    /// Marks this store as in use: it may have any number of records, and others may sweep it at
    /// any moment. Cases then check no counts and do not read the whole store. A case that expects
    /// a lapsed lease to be unswept may fail because another process swept it: run it again.
    #[must_use]
    pub fn live(self) -> Self {
        Bench {
            is_live: true,
            ..self.shared()
        }
    }

    /// Marks this store as one that drops answers past their retention in bulk, at times of its
    /// choice, so that sweeps do not count them. Such an answer must still be invisible from the
    /// end of its retention on.
    #[must_use]
    pub fn dropping_in_bulk(self) -> Self {
        Bench {
            drops_in_bulk: true,
            ..self
        }
    }

    /// Why the case that ran on this bench checked nothing; `None` if it did check.
    pub fn skipped(&self) -> Option<&'static str> {
        self.skipped.get().copied()
    }

    /// Notes that this case cannot run on this bench.
    pub(super) fn skip(&self, why: &'static str) {
        let _ = self.skipped.set(why);
    }

    /// Lets this much of the store's time pass: advances its clock, or waits.
    pub async fn pass(&self, duration: Duration) {
        match &self.clock {
            Some(clock) => clock.advance(duration),
            None => tokio::time::sleep(duration + MARGIN).await,
        }
    }

    /// A record that is not claimed yet.
    pub(super) fn subject(&self) -> Subject {
        Subject::new(self.store.clone())
    }

    pub(super) async fn info(&self) -> StoreInfo {
        self.store.info().await.expect("info")
    }

    /// Sweeps until nothing is due, and returns the sum.
    pub(super) async fn sweep(&self) -> Swept {
        let mut sum = Swept::default();
        let enough = if self.is_live { SWEEP_LIMIT - 1 } else { 0 };
        for _ in 0..ROUNDS_MAX {
            let swept = self.store.sweep(SWEEP_LIMIT).await.expect("sweep");
            if swept.total() <= enough {
                sum += swept;
                return sum;
            }
            assert!(swept.total() <= SWEEP_LIMIT, "over the limit: {swept:?}");
            sum += swept;
        }
        panic!("{ROUNDS_MAX} sweeps of {SWEEP_LIMIT} and still not done: {sum:?}");
    }

    /// Sweeps until nothing is due and checks the counts. A shared store may have more that is due.
    pub(super) async fn sweep_expecting(&self, expected: Swept) {
        let expected = self.counted(expected);
        let swept = self.sweep().await;
        if self.is_live {
            // Another process may have swept first.
        } else if self.is_shared {
            let has_all = swept.lost >= expected.lost
                && swept.buried >= expected.buried
                && swept.removed >= expected.removed;
            assert!(has_all, "{swept:?} is less than {expected:?}");
        } else {
            assert_eq!(swept, expected);
        }
    }

    /// The part of `due` that a sweep of this store counts.
    pub(super) fn counted(&self, due: Swept) -> Swept {
        Swept {
            buried: if self.drops_in_bulk { 0 } else { due.buried },
            ..due
        }
    }

    /// Waits until this case may run. On a shared store a case that sweeps runs alone, because it
    /// would change records of other cases.
    pub(super) async fn turn(&self, sweeps: bool) -> Turn {
        match (self.is_shared, sweeps) {
            (false, _) => Turn::Free,
            (true, false) => Turn::Among {
                _others: TURNS.read().await,
            },
            (true, true) => Turn::Alone {
                _nobody: TURNS.write().await,
            },
        }
    }
}

/// Held while a case runs.
pub(super) enum Turn {
    Free,
    Among {
        _others: RwLockReadGuard<'static, ()>,
    },
    Alone {
        _nobody: RwLockWriteGuard<'static, ()>,
    },
}

/// A random number that no other process or run has, and a counter within this process.
pub(super) fn unique() -> (u64, u64) {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // The standard library seeds its hashers at random, which gives randomness without a
    // dependency.
    (RandomState::new().hash_one(count), count)
}

static TURNS: RwLock<()> = RwLock::const_new(());

/// Allowance for differences between the store's clock and the clock of the test.
const MARGIN: Duration = Duration::from_millis(5);
const SWEEP_LIMIT: usize = 100;
const ROUNDS_MAX: usize = 1_000;
