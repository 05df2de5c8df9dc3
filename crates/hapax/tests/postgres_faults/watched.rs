//! A store that is watched: what its callers got while faults struck.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hapax::store::postgres::Stats;
use hapax::{Postgres, Store};
use hapax_core::record::State;
use hapax_core::store::{Change, Put, Reply, Seen, StoreError, Written};

pub(crate) struct Watched {
    store: Postgres,
    sight: Arc<Sight>,
}

/// What was seen.
#[derive(Default)]
pub(crate) struct Sight {
    /// How many faults there have been.
    faults: AtomicU64,
    claims_in_flight: AtomicUsize,
    /// The faults under which a claim was in flight that failed.
    in_claims: Mutex<BTreeSet<u64>>,
    /// Writes that were in flight when a fault came, and failed.
    struck: AtomicU64,
    /// Claims that were there already with the claimant's own token: their first reply was lost
    /// after the commit.
    adopted: AtomicU64,
    /// Ends of attempts that were written already: likewise.
    written_before: AtomicU64,
    failed: AtomicU64,
    slowest_us: AtomicU64,
}

impl Watched {
    pub(crate) fn new(store: Postgres) -> (Arc<Watched>, Arc<Sight>) {
        let sight = Arc::new(Sight::default());
        (Watched::by(store, &sight), sight)
    }

    /// Watched together with others.
    pub(crate) fn by(store: Postgres, sight: &Arc<Sight>) -> Arc<Watched> {
        Arc::new(Watched {
            store,
            sight: sight.clone(),
        })
    }

    pub(crate) fn stats(&self) -> Stats {
        self.store.stats()
    }

    async fn put(&self, put: Put) -> Result<Written, StoreError> {
        let _counted = matches!(put.change, Change::Claim(_))
            .then(|| Counted::one(&self.sight.claims_in_flight));
        let (before, begun) = (self.sight.faults(), Instant::now());
        let written = self.store.put_if(put.clone()).await;
        self.sight.slowest_us.fetch_max(
            u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
        match &written {
            Err(_) => self.sight.note_failed(&put, before),
            Ok(Written::Lost(seen)) => self.sight.note_lost(&put, seen),
            Ok(Written::Won(_)) => {}
        }
        written
    }
}

/// One more for as long as it lives: whoever asks may not wait for the end.
struct Counted<'a>(&'a AtomicUsize);

impl Counted<'_> {
    fn one(count: &AtomicUsize) -> Counted<'_> {
        count.fetch_add(1, Ordering::SeqCst);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Sight {
    /// Claims that were asked for and are not decided.
    pub(crate) fn claims_in_flight(&self) -> usize {
        self.claims_in_flight.load(Ordering::SeqCst)
    }

    /// A fault comes now.
    pub(crate) fn fault(&self) {
        self.faults.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn faults(&self) -> u64 {
        self.faults.load(Ordering::SeqCst)
    }

    /// How many faults came while a claim was in flight, and made it fail.
    pub(crate) fn faults_in_claims(&self) -> usize {
        self.in_claims.lock().unwrap().len()
    }

    pub(crate) fn struck(&self) -> u64 {
        self.struck.load(Ordering::Relaxed)
    }

    pub(crate) fn adopted(&self) -> u64 {
        self.adopted.load(Ordering::Relaxed)
    }

    pub(crate) fn written_before(&self) -> u64 {
        self.written_before.load(Ordering::Relaxed)
    }

    pub(crate) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// The longest that a write took, to whatever end.
    pub(crate) fn slowest(&self) -> Duration {
        Duration::from_micros(self.slowest_us.load(Ordering::Relaxed))
    }

    fn note_failed(&self, put: &Put, before: u64) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        let now = self.faults();
        if now == before {
            return;
        }
        self.struck.fetch_add(1, Ordering::Relaxed);
        if matches!(put.change, Change::Claim(_)) {
            self.in_claims.lock().unwrap().extend(before + 1..=now);
        }
    }

    fn note_lost(&self, put: &Put, seen: &Seen) {
        let Some(head) = seen.record.as_ref().map(|record| &record.head) else {
            return;
        };
        match &put.change {
            Change::Claim(claim) if head.token == claim.token && head.state == State::Running => {
                self.adopted.fetch_add(1, Ordering::Relaxed);
            }
            Change::Finish(finish) if head.state == finish.state => {
                self.written_before.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

impl Store for Watched {
    fn put_if(&self, put: Put) -> Reply<'_, Written> {
        Box::pin(self.put(put))
    }

    hapax_core::forward_store!(
        self => self.store;
        get, renew, list, sweep, info, remember, knows, log, note, joins
    );
}
