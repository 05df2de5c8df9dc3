//! The bench: the store under test, and how time is made to pass for it.

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
    /// The clock it was given. `None` if it has its own; then time passes by really waiting.
    pub clock: Option<ManualClock>,
    /// Whether other cases work on the same store, or have done so.
    pub is_shared: bool,
    /// Whether other processes work on it too, and sweep it.
    pub is_live: bool,
    /// Whether it drops answers that are over in bulk, in its own time, and no sweep counts them.
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

    /// A store with a clock of its own.
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

    /// Keeps something for as long as the bench is used: the directory of the store's file, for
    /// example.
    #[must_use]
    pub fn keeping(self, kept: impl Any + Send + Sync) -> Self {
        Bench {
            _kept: Some(Arc::new(kept)),
            ..self
        }
    }

    /// Says that this store is shared by several cases. Within one process, cases that sweep then
    /// wait until they are alone, and what sweeps count and what raises the epoch is held to lower
    /// bounds. A shared store must not have a hand-turned clock: one case would move the time of
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

    /// Says that this store is in use: it may hold any number of records, and others sweep it at
    /// any moment. Nothing is counted then, and nobody looks through all that there is. A case that
    /// takes a lapsed lease for one that nobody has written down yet may fail because somebody has:
    /// run it again.
    #[must_use]
    pub fn live(self) -> Self {
        Bench {
            is_live: true,
            ..self.shared()
        }
    }

    /// Says that this store drops answers past their retention in bulk, in its own time, so that a
    /// sweep counts none of them. That nobody sees such an answer any more is not touched by this:
    /// its time alone tells.
    #[must_use]
    pub fn dropping_in_bulk(self) -> Self {
        Bench {
            drops_in_bulk: true,
            ..self
        }
    }

    /// Why the case that ran on this bench looked at nothing, if so.
    pub fn skipped(&self) -> Option<&'static str> {
        self.skipped.get().copied()
    }

    /// This case cannot be tried here.
    pub(super) fn skip(&self, why: &'static str) {
        let _ = self.skipped.set(why);
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

    pub(super) async fn info(&self) -> StoreInfo {
        self.store.info().await.expect("info")
    }

    /// Sweeps until nothing is due, and adds up.
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

    /// Sweeps until nothing is due and holds the counts to what was expected; more may be due in a
    /// store that is shared.
    pub(super) async fn sweep_expecting(&self, expected: Swept) {
        let expected = self.counted(expected);
        let swept = self.sweep().await;
        if self.is_live {
            // Somebody else may have come first.
        } else if self.is_shared {
            let has_all = swept.lost >= expected.lost
                && swept.buried >= expected.buried
                && swept.removed >= expected.removed;
            assert!(has_all, "{swept:?} is less than {expected:?}");
        } else {
            assert_eq!(swept, expected);
        }
    }

    /// What a sweep of this store counts of what is due.
    pub(super) fn counted(&self, due: Swept) -> Swept {
        Swept {
            buried: if self.drops_in_bulk { 0 } else { due.buried },
            ..due
        }
    }

    /// Waits until this case may run: on a shared store one that sweeps runs alone, as it would
    /// change what others look at.
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

/// A number no other process or run has drawn, and how many were drawn before it in this one.
pub(super) fn unique() -> (u64, u64) {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // The standard library seeds its hashers at random: the one source of randomness at hand
    // without a dependency.
    (RandomState::new().hash_one(count), count)
}

static TURNS: RwLock<()> = RwLock::const_new(());

/// The store's clock and the one we wait by may tick apart by a little.
const MARGIN: Duration = Duration::from_millis(5);
const SWEEP_LIMIT: usize = 100;
const ROUNDS_MAX: usize = 1_000;
