//! Company: others whose writes go into the same statements, and come to nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use hapax_core::audit::{LogEntry, LogQuery, Note};
use hapax_core::scope::PrincipalId;
use hapax_core::store::{
    Change, KnownPrincipal, ListQuery, Reading, Renewal, Reply, StoreError, StoreInfo, Swept,
    Written,
};
use hapax_core::{Condition, Fence, Head, Put, RecordId, Store};

/// A store to which nobody writes alone: before and after each there is somebody who writes to a
/// record that does not exist. One of the two may be gone before the write itself is sent, and then
/// the other still waits for the same statement.
pub(crate) struct InCompany<S>(pub(crate) S);

impl<S: Store> InCompany<S> {
    async fn read(&self, ids: Vec<RecordId>) -> Result<Reading, StoreError> {
        let (first, read, last) = tokio::join!(
            self.0.get(vec![nobody(0)]),
            self.0.get(ids),
            self.0.get(vec![nobody(u8::MAX)])
        );
        for stranger in [first, last] {
            assert_eq!(stranger?.records, [None], "nobody was ever there");
        }
        read
    }

    async fn put(&self, put: Put) -> Result<Written, StoreError> {
        let (Some(first), Some(last)) = (stranger(&put, 0), stranger(&put, u8::MAX)) else {
            return self.0.put_if(put).await;
        };
        let (first, written, last) = tokio::join!(
            self.0.put_if(first),
            self.0.put_if(put),
            self.0.put_if(last)
        );
        for stranger in [first?, last?] {
            assert!(
                matches!(&stranger, Written::Lost(seen) if seen.record.is_none()),
                "nobody was ever there: {stranger:?}"
            );
        }
        written
    }
}

/// The same write to a record that does not exist. `None` if such writes do not go together.
fn stranger(put: &Put, edge: u8) -> Option<Put> {
    let fence = Fence::from_u64(1);
    let condition = match &put.change {
        Change::Claim(_) => Condition::Lapsed { fence },
        Change::Finish(_) => Condition::Held { fence },
        _ => return None,
    };
    Some(Put {
        id: nobody(edge),
        condition,
        change: put.change.clone(),
    })
}

/// An id that no record has, at this end of all ids. Never the same twice, as one record is not
/// written to twice in a statement.
fn nobody(edge: u8) -> RecordId {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut id = [edge; 32];
    id[24..].copy_from_slice(&COUNT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    RecordId::from_bytes(id)
}

impl<S: Store> Store for InCompany<S> {
    fn get(&self, ids: Vec<RecordId>) -> Reply<'_, Reading> {
        Box::pin(self.read(ids))
    }

    fn put_if(&self, put: Put) -> Reply<'_, Written> {
        Box::pin(self.put(put))
    }

    fn renew(&self, renewals: Vec<Renewal>) -> Reply<'_, Vec<bool>> {
        self.0.renew(renewals)
    }

    fn list(&self, query: ListQuery) -> Reply<'_, Vec<Head>> {
        self.0.list(query)
    }

    fn sweep(&self, limit: usize) -> Reply<'_, Swept> {
        self.0.sweep(limit)
    }

    fn info(&self) -> Reply<'_, StoreInfo> {
        self.0.info()
    }

    fn remember(&self, principals: Vec<KnownPrincipal>) -> Reply<'_, ()> {
        self.0.remember(principals)
    }

    fn knows(&self, principal: PrincipalId) -> Reply<'_, bool> {
        self.0.knows(principal)
    }

    fn log(&self, query: LogQuery) -> Reply<'_, Vec<LogEntry>> {
        self.0.log(query)
    }

    fn note(&self, note: Note) -> Reply<'_, LogEntry> {
        self.0.note(note)
    }
}
