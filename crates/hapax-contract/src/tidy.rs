//! Clearing up after the contract: for whoever runs it on a store that others use.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hapax_core::audit::{LogEntry, LogQuery, Note, Signed};
use hapax_core::record::{Head, Last};
use hapax_core::scope::PrincipalId;
use hapax_core::store::{
    Change, Finish, Joins, KnownPrincipal, Lifetime, ListQuery, Reading, Renewal, Reply,
    StoreError, StoreInfo, Swept, Written,
};
use hapax_core::{Condition, Put, RecordId, State, Store, Timestamp};

/// A store around a store, which remembers what was made through it.
pub struct Tidy {
    store: Arc<dyn Store>,
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    records: BTreeSet<RecordId>,
    entries: usize,
}

/// What could not be taken away again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Left {
    /// Records that a sweep removes once their tombstones are over.
    pub tombstones: usize,
    /// When the last of these is over.
    pub until: Timestamp,
    /// Tombstones of forgotten unknowns. No time removes them: that would turn "nobody knows" into
    /// "never happened".
    pub for_good: usize,
    /// Entries of the audit log, which stay for [`KEPT_FOR`](hapax_core::audit::KEPT_FOR).
    pub entries: usize,
}

impl Tidy {
    /// Remembers from now on what is made in this store through the one that is returned.
    pub fn new(store: Arc<dyn Store>) -> Tidy {
        Tidy {
            store,
            made: Mutex::default(),
        }
    }

    /// Ends what is running, settles what is unknown, forgets what is kept, has it swept, and says
    /// what is left.
    pub async fn clear(&self) -> Result<Left, StoreError> {
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

    /// Takes one record as far as the guard lets it go.
    async fn end(&self, head: Head, now: Timestamp) -> Result<(), StoreError> {
        let Head { fence, version, .. } = head;
        match head.state_at(now) {
            // Whoever owns a fence may say that it came to nothing, and then nothing has to be
            // remembered of it.
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

    /// Losing is as good: then somebody else has changed it.
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

    fn made(&self) -> std::sync::MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Tidy {
    fn get(&self, ids: Vec<RecordId>) -> Reply<'_, Reading> {
        self.store.get(ids)
    }

    fn put_if(&self, put: Put) -> Reply<'_, Written> {
        let is_by_hand = matches!(put.change, Change::Settle(..) | Change::Forget(..));
        if matches!(put.change, Change::Claim(_)) {
            // Before it is sent: a write whose reply nobody waits for may happen all the same.
            self.made().records.insert(put.id);
        }
        Box::pin(async move {
            let written = self.store.put_if(put).await?;
            if is_by_hand && matches!(written, Written::Won(_)) {
                self.made().entries += 1;
            }
            Ok(written)
        })
    }

    fn renew(&self, renewals: Vec<Renewal>) -> Reply<'_, Vec<bool>> {
        self.store.renew(renewals)
    }

    fn list(&self, query: ListQuery) -> Reply<'_, Vec<Head>> {
        self.store.list(query)
    }

    fn sweep(&self, limit: usize) -> Reply<'_, Swept> {
        self.store.sweep(limit)
    }

    fn info(&self) -> Reply<'_, StoreInfo> {
        self.store.info()
    }

    fn remember(&self, principals: Vec<KnownPrincipal>) -> Reply<'_, ()> {
        self.store.remember(principals)
    }

    fn knows(&self, principal: PrincipalId) -> Reply<'_, bool> {
        self.store.knows(principal)
    }

    fn log(&self, query: LogQuery) -> Reply<'_, Vec<LogEntry>> {
        self.store.log(query)
    }

    fn note(&self, note: Note) -> Reply<'_, LogEntry> {
        self.made().entries += 1;
        self.store.note(note)
    }

    fn joins(&self) -> Option<&dyn Joins> {
        self.store.joins()
    }
}

/// Records in one question, and in one sweep.
const PAGE: usize = 100;
/// A store that others use always has something that is due.
const SWEEPS_MAX: usize = 20;
/// As good as absent from the moment on.
const AT_ONCE: Lifetime = Lifetime {
    retention: Duration::ZERO,
    tombstone: Duration::ZERO,
};
