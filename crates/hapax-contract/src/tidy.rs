//! Cleans up after the contract, for runs on a store that others use.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hapax_core::audit::{LogEntry, Note, Signed};
use hapax_core::record::{Head, Last};
use hapax_core::store::{Change, Finish, Lifetime, Reading, Reply, StoreError, Written};
use hapax_core::{Condition, Put, RecordId, State, Store, Timestamp};

/// A wrapper around a store that remembers which records were made through it.
pub struct Tidy {
    store: Arc<dyn Store>,
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    records: BTreeSet<RecordId>,
    entries: usize,
    /// Claims that were sent and have no reply yet.
    under_way: usize,
    /// Claims whose future was dropped before the reply: they may still take place.
    cut_off: Vec<Put>,
    /// Cases that go on in the background may claim nothing more.
    is_closed: bool,
}

/// What could not be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Left {
    /// Records that a sweep removes once their tombstones are over.
    pub tombstones: usize,
    /// When the last of these tombstones is over.
    pub until: Timestamp,
    /// Tombstones of forgotten unknowns. They are never removed: that would turn "unknown" into
    /// "never happened".
    pub for_good: usize,
    /// Entries of the audit log, which stay for [`KEPT_FOR`](hapax_core::audit::KEPT_FOR).
    pub entries: usize,
}

impl Tidy {
    /// Wraps the store and remembers everything that is made through the wrapper.
    pub fn new(store: Arc<dyn Store>) -> Tidy {
        Tidy {
            store,
            made: Mutex::default(),
        }
    }

    /// Ends running and unknown attempts, forgets all other records, sweeps, and returns what is
    /// left.
    pub async fn clear(&self) -> Result<Left, StoreError> {
        self.made().is_closed = true;
        self.settle_claims().await?;
        let records: Vec<RecordId> = self.made().records.iter().copied().collect();
        for ids in records.chunks(PAGE) {
            let Reading { records, now } = self.store.get(ids.to_vec()).await?;
            for head in records.into_iter().flatten().map(|record| record.head) {
                self.end(head, now).await?;
            }
        }
        for _ in 0..SWEEPS_MAX {
            if self.store.sweep(PAGE).await?.total() == 0 {
                break;
            }
        }
        self.left(&records).await
    }

    /// Waits for claims that are under way, and sends those again that were cut off: a store takes
    /// them in the order in which they came, so that none of the first can follow.
    async fn settle_claims(&self) -> Result<(), StoreError> {
        let ended = async {
            while self.made().under_way > 0 {
                tokio::task::yield_now().await;
            }
        };
        drop(tokio::time::timeout(CLAIM_TIME_MAX, ended).await);
        let cut_off = std::mem::take(&mut self.made().cut_off);
        for put in cut_off {
            self.store.put_if(put).await?;
        }
        Ok(())
    }

    /// Takes one record as close to removal as the guard allows.
    async fn end(&self, head: Head, now: Timestamp) -> Result<(), StoreError> {
        let Head { fence, version, .. } = head;
        match head.state_at(now) {
            // The owner of a fence may end the attempt as retryable, with a lifetime that leaves no
            // tombstone.
            State::Running | State::Unknown | State::Expired(Last::Unknown)
                if head.fingerprint.is_some() =>
            {
                let finish = Finish {
                    state: State::Retryable,
                    status: None,
                    answer: None,
                    lifetime: AT_ONCE,
                };
                self.put(head.id, Condition::Held { fence }, Change::Finish(finish))
                    .await
            }
            State::Expired(_) => Ok(()),
            _ => {
                let signed = Signed::new("the contract", "clearing up").expect("both are said");
                self.put(
                    head.id,
                    Condition::Version { version },
                    Change::Forget(AT_ONCE, signed),
                )
                .await
            }
        }
    }

    /// A lost write is fine: another process has changed the record.
    async fn put(
        &self,
        id: RecordId,
        condition: Condition,
        change: Change,
    ) -> Result<(), StoreError> {
        self.put_if(Put {
            id,
            condition,
            change,
        })
        .await
        .map(drop)
    }

    async fn left(&self, records: &[RecordId]) -> Result<Left, StoreError> {
        let mut left = Left {
            entries: self.made().entries,
            ..Left::default()
        };
        for ids in records.chunks(PAGE) {
            let Reading { records, now } = self.store.get(ids.to_vec()).await?;
            for head in records.into_iter().flatten().map(|record| record.head) {
                match head.state_at(now) {
                    state if state.is_open() => left.for_good += 1,
                    _ => {
                        left.tombstones += 1;
                        left.until = left.until.max(head.tombstone_until);
                    }
                }
            }
        }
        Ok(left)
    }

    /// Notes a claim before it is sent: a cancelled write may still take place.
    fn begin(&self, claim: Put) -> Result<Claiming<'_>, StoreError> {
        let mut made = self.made();
        if made.is_closed {
            return Err(StoreError::unavailable("the contract is over"));
        }
        made.records.insert(claim.id);
        made.under_way += 1;
        Ok(Claiming {
            tidy: self,
            claim: Some(claim),
        })
    }

    fn made(&self) -> std::sync::MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A claim that was sent. Dropped without its end, it was cut off.
struct Claiming<'a> {
    tidy: &'a Tidy,
    claim: Option<Put>,
}

impl Claiming<'_> {
    fn end(mut self) {
        self.claim = None;
    }
}

impl Drop for Claiming<'_> {
    fn drop(&mut self) {
        let mut made = self.tidy.made();
        made.under_way -= 1;
        made.cut_off.extend(self.claim.take());
    }
}

impl Store for Tidy {
    fn put_if(&self, put: Put) -> Reply<'_, Written> {
        let is_by_hand = matches!(put.change, Change::Settle(..) | Change::Forget(..));
        let claim = matches!(put.change, Change::Claim(_)).then(|| put.clone());
        Box::pin(async move {
            let claiming = match claim {
                Some(claim) => Some(self.begin(claim)?),
                None => None,
            };
            let written = self.store.put_if(put).await;
            if let Some(claiming) = claiming {
                claiming.end();
            }
            let written = written?;
            if is_by_hand && matches!(written, Written::Won(_)) {
                self.made().entries += 1;
            }
            Ok(written)
        })
    }

    fn note(&self, note: Note) -> Reply<'_, LogEntry> {
        self.made().entries += 1;
        self.store.note(note)
    }

    hapax_core::forward_store!(
        self => self.store;
        get, renew, list, sweep, info, remember, knows, log, joins
    );
}

/// A claim that takes longer has failed.
const CLAIM_TIME_MAX: Duration = Duration::from_secs(10);
/// Records in one read, and changes in one sweep.
const PAGE: usize = 100;
/// The limit on sweeps: a store that others use always has something that is due.
const SWEEPS_MAX: usize = 20;
/// A lifetime that is over at once: the record counts as absent.
const AT_ONCE: Lifetime = Lifetime {
    retention: Duration::ZERO,
    tombstone: Duration::ZERO,
};
