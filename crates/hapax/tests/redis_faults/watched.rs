//! A Redis store that is watched: which of its writes failed, and how long that took.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hapax::Store;
use hapax::store::redis::{Options, Redis, Stats};
use hapax_core::store::{Put, Reply, StoreError, Written};

pub(crate) struct Watched {
    store: Redis,
    /// How many faults there have been.
    faults: AtomicU64,
    /// Writes that were in flight when a fault came, and failed.
    struck: AtomicU64,
    failed: AtomicU64,
    slowest_failure_us: AtomicU64,
}

impl Watched {
    pub(crate) async fn open(url: &str) -> Arc<Watched> {
        Watched::open_with(Options::best_effort(url).expect("an address")).await
    }

    pub(crate) async fn open_with(options: Options) -> Arc<Watched> {
        let store = Redis::open(options).await;
        Arc::new(Watched {
            store: store.unwrap_or_else(|error| panic!("{error}")),
            faults: AtomicU64::new(0),
            struck: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            slowest_failure_us: AtomicU64::new(0),
        })
    }

    pub(crate) fn stats(&self) -> Stats {
        self.store.stats()
    }

    /// A fault comes now.
    pub(crate) fn fault(&self) {
        self.faults.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn struck(&self) -> u64 {
        self.struck.load(Ordering::SeqCst)
    }

    pub(crate) fn failed(&self) -> u64 {
        self.failed.load(Ordering::SeqCst)
    }

    /// The longest time after which a write failed.
    pub(crate) fn slowest_failure(&self) -> Duration {
        Duration::from_micros(self.slowest_failure_us.load(Ordering::SeqCst))
    }

    async fn put(&self, put: Put) -> Result<Written, StoreError> {
        let faults = self.faults.load(Ordering::SeqCst);
        let begun = Instant::now();
        let written = self.store.put_if(put).await;
        if written.is_err() {
            let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.slowest_failure_us.fetch_max(took, Ordering::SeqCst);
            self.failed.fetch_add(1, Ordering::SeqCst);
            if self.faults.load(Ordering::SeqCst) > faults {
                self.struck.fetch_add(1, Ordering::SeqCst);
            }
        }
        written
    }
}

impl Store for Watched {
    fn put_if(&self, put: Put) -> Reply<'_, Written> {
        Box::pin(self.put(put))
    }

    hapax_core::forward_store!(
        self => self.store;
        get, renew, list, sweep, info, remember, knows, log, note, joins, wakes
    );
}
