//! The store as the engine sees it: the store itself, and a count of who has how much in it.
//!
//! The store is reachable only through this wrapper, so that no write goes uncounted. While no
//! quota is set nothing is counted, and a write costs one more check.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use hapax_core::record::{Head, Record};
use hapax_core::scope::{Principal, RecordId, Scope};
use hapax_core::store::{ListQuery, Put, Reply, Store, StoreError, Written};
use hapax_core::time::Timestamp;
use parking_lot::{Mutex, MutexGuard};

use super::engine::{Engine, Limits};
use super::usage::{Filling, Ledger, Reserved, Usage};
use crate::background;

/// Heads read at a time when counting begins.
const HEADS_BATCH: usize = 256;
/// Answers read at a time, for their length.
const ANSWERS_BATCH: usize = 16;
/// Rest after the store failed.
const PAUSE: Duration = Duration::from_secs(1);
/// No quota.
const ANY: u64 = u64::MAX;

/// How many records there may be. See [`Limits`], which has the first of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Quotas {
    /// Records whose retention is not over.
    pub records_per_principal_max: Option<u64>,
    /// Bytes of their answers.
    pub bytes_per_principal_max: Option<u64>,
    /// Records in the store.
    pub records_max: Option<u64>,
    /// Of these, such as are kept only because their caller was refused.
    pub refused_records_max: Option<u64>,
}

impl From<&Limits> for Quotas {
    fn from(limits: &Limits) -> Self {
        let &Limits {
            records_per_principal_max,
            bytes_per_principal_max,
            records_max,
            refused_records_max,
            ..
        } = limits;
        Quotas {
            records_per_principal_max,
            bytes_per_principal_max,
            records_max,
            refused_records_max,
        }
    }
}

pub(crate) struct QuotaStore {
    store: Arc<dyn Store>,
    records_max: AtomicU64,
    bytes_max: AtomicU64,
    ledger: Mutex<Ledger>,
}

/// Over the quota.
pub(crate) struct Over;

impl QuotaStore {
    pub(crate) fn new(store: Arc<dyn Store>, quotas: Quotas) -> Self {
        let counted = QuotaStore {
            store,
            records_max: AtomicU64::new(ANY),
            bytes_max: AtomicU64::new(ANY),
            ledger: Mutex::default(),
        };
        counted.set_quotas(quotas);
        counted
    }

    pub(crate) fn set_quotas(&self, quotas: Quotas) {
        let Quotas {
            records_per_principal_max,
            bytes_per_principal_max,
            ..
        } = quotas;
        let mut ledger = self.ledger();
        self.records_max
            .store(records_per_principal_max.unwrap_or(ANY), Ordering::Relaxed);
        let counted_bytes = self
            .bytes_max
            .swap(bytes_per_principal_max.unwrap_or(ANY), Ordering::Relaxed)
            != ANY;
        if !self.is_counting() {
            *ledger = Ledger::default();
        } else if !counted_bytes && bytes_per_principal_max.is_some() {
            // The lengths of answers were not read so far.
            ledger.recount();
        }
    }

    pub(crate) fn is_counting(&self) -> bool {
        self.records_max.load(Ordering::Relaxed) != ANY
            || self.bytes_max.load(Ordering::Relaxed) != ANY
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }

    /// Notes what was written past us, in a transaction of the work's own.
    pub(crate) fn note_joined(&self, record: &Record, now: Timestamp) {
        if self.is_counting() {
            self.ledger().wrote(&record.head, length(record), now);
        }
    }

    /// Room for one more record of this principal, as long as the result lives.
    pub(crate) fn reserve_record(&self, scope: &Scope) -> Result<Option<Reserved>, Over> {
        if !self.is_counting() {
            return Ok(None);
        }
        let (records, bytes) = (
            self.records_max.load(Ordering::Relaxed),
            self.bytes_max.load(Ordering::Relaxed),
        );
        self.ledger()
            .reserve_record(scope, records, bytes)
            .map(Some)
            .ok_or(Over)
    }

    /// Room for an answer of so many bytes, as long as the result lives.
    pub(crate) fn reserve_bytes(
        &self,
        scope: &Scope,
        bytes: usize,
    ) -> Result<Option<Reserved>, Over> {
        match self.bytes_max.load(Ordering::Relaxed) {
            ANY => Ok(None),
            bytes_max => self
                .ledger()
                .reserve_bytes(scope, bytes as u64, bytes_max)
                .map(Some)
                .ok_or(Over),
        }
    }

    pub(crate) fn usage(&self, namespace: &Arc<str>, principal: &Principal) -> Option<Usage> {
        self.is_counting()
            .then(|| self.ledger().usage(namespace, principal))
    }

    /// The store's time, as it was just told.
    pub(crate) fn learn(&self, now: Timestamp) {
        if self.is_counting() {
            self.ledger().learn(now);
        }
    }

    /// The store has changed records by itself, and does not say which: all are read again, after a
    /// rest.
    pub(crate) fn count_again(&self) {
        if self.is_counting() {
            self.ledger().filling = Filling::Due;
        }
    }

    /// Whether what was there before has to be read; it is the caller's to read it then.
    fn take_on_filling(&self) -> bool {
        self.is_counting() && self.ledger().begin_filling()
    }

    /// Reads one batch of what is there; says where to go on.
    async fn fill(&self, after: Option<RecordId>) -> Result<Option<RecordId>, StoreError> {
        let heads = self
            .store
            .list(ListQuery {
                state: None,
                after,
                limit: HEADS_BATCH,
            })
            .await?;
        let now = self.store.info().await?.now;
        let last = heads.last().map(|head| head.id);
        let (kept, others): (Vec<Head>, Vec<Head>) = heads
            .into_iter()
            .partition(|head| head.kept && self.bytes_max.load(Ordering::Relaxed) != ANY);
        self.note_all(others.iter().map(|head| (head, 0)), now);
        for batch in kept.chunks(ANSWERS_BATCH) {
            let records = self.read(batch).await?;
            self.note_all(
                records.iter().map(|record| (&record.head, length(record))),
                now,
            );
        }
        Ok(last)
    }

    /// Records with their answers. One whose answer cannot be read counts without: that is for
    /// whoever wants the answer to hear of.
    async fn read(&self, heads: &[Head]) -> Result<Vec<Record>, StoreError> {
        let ids = heads.iter().map(|head| head.id).collect();
        if let Ok(reading) = self.store.get(ids).await {
            return Ok(reading.records.into_iter().flatten().collect());
        }
        let mut records = Vec::new();
        for head in heads {
            match self.store.get(vec![head.id]).await {
                Ok(reading) => records.extend(reading.records.into_iter().flatten()),
                Err(error) if error.kind() == hapax_core::store::StoreErrorKind::Corrupt => {
                    records.push(Record {
                        head: head.clone(),
                        answer: None,
                    });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(records)
    }

    fn note_all<'a>(&self, records: impl Iterator<Item = (&'a Head, u64)>, now: Timestamp) {
        let mut ledger = self.ledger();
        // Counting may have ended meanwhile; then there is nothing to add to.
        if self.is_counting() {
            records.for_each(|(head, bytes)| ledger.read(head, bytes, now));
        }
    }
}

/// Writes are counted; everything else is the store's own.
impl Store for QuotaStore {
    fn put_if(&self, put: Put) -> Reply<'_, Written> {
        if !self.is_counting() {
            return self.store.put_if(put);
        }
        Box::pin(async move {
            let bytes = put
                .change
                .answer()
                .map_or(0, |answer| answer.encoded_len() as u64);
            let written = self.store.put_if(put).await?;
            match &written {
                Written::Won(won) => self.ledger().wrote(&won.head, bytes, won.now),
                // Perhaps by an earlier try, whose reply nobody heard.
                Written::Lost(seen) => {
                    if let Some(record) = &seen.record {
                        self.ledger().read(&record.head, length(record), seen.now);
                    }
                }
            }
            Ok(written)
        })
    }

    hapax_core::forward_store!(
        self => self.store;
        get, renew, list, sweep, info, remember, knows, log, note, joins, wakes
    );
}

fn length(record: &Record) -> u64 {
    record
        .answer
        .as_ref()
        .map_or(0, |answer| answer.encoded_len() as u64)
}

impl Engine {
    /// Reads what was there before counting began, in the background, unless that is done or under
    /// way.
    pub(super) fn start_counting(self: &Arc<Self>) {
        if self.store.take_on_filling() {
            let engine = Arc::downgrade(self);
            background::spawn(fill(engine.clone()), move || {
                if let Some(engine) = engine.upgrade() {
                    engine.store.count_again();
                }
            });
        }
    }
}

async fn fill(engine: Weak<Engine>) {
    let mut after = None;
    loop {
        let Some(engine) = engine.upgrade() else {
            return;
        };
        match engine.store.fill(after).await {
            Ok(None) => return engine.store.ledger().end_filling(),
            Ok(last) => after = last,
            Err(error) => {
                engine.store_failed(&error);
                drop(engine);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
