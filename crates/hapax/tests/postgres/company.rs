//! Concurrent writes of others that share a statement and change nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use hapax_core::store::{Change, Reading, Reply, StoreError, Written};
use hapax_core::{Condition, Fence, Put, RecordId, Store};

/// A store in which no write is sent alone: before and after each one, another call writes to a
/// record that does not exist. One of the two may be sent before the write itself, and then the
/// other still shares its statement.
pub(crate) struct Batched<S>(pub(crate) S);

impl<S: Store> Batched<S> {
    async fn read(&self, ids: Vec<RecordId>) -> Result<Reading, StoreError> {
        let (first, read, last) = tokio::join!(
            self.0.get(vec![unused_id(0)]),
            self.0.get(ids),
            self.0.get(vec![unused_id(u8::MAX)])
        );
        for unrelated_put in [first, last] {
            assert_eq!(unrelated_put?.records, [None], "unused_id was ever there");
        }
        read
    }

    async fn put(&self, put: Put) -> Result<Written, StoreError> {
        let (Some(first), Some(last)) = (unrelated_put(&put, 0), unrelated_put(&put, u8::MAX))
        else {
            return self.0.put_if(put).await;
        };
        let (first, written, last) = tokio::join!(
            self.0.put_if(first),
            self.0.put_if(put),
            self.0.put_if(last)
        );
        for unrelated_put in [first?, last?] {
            assert!(
                matches!(&unrelated_put, Written::Lost(seen) if seen.record.is_none()),
                "unused_id was ever there: {unrelated_put:?}"
            );
        }
        written
    }
}

/// The same write to a record that does not exist. `None` if such writes are not batched.
fn unrelated_put(put: &Put, edge: u8) -> Option<Put> {
    let fence = Fence::from_u64(1);
    let condition = match &put.change {
        Change::Claim(_) => Condition::Lapsed { fence },
        Change::Finish(_) => Condition::Held { fence },
        _ => return None,
    };
    Some(Put {
        id: unused_id(edge),
        condition,
        change: put.change.clone(),
    })
}

/// An id that no record has, at this end of the id range. Each call returns another id, because a
/// statement does not write to one record twice.
fn unused_id(edge: u8) -> RecordId {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut id = [edge; 32];
    id[24..].copy_from_slice(&COUNT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    RecordId::from_bytes(id)
}

impl<S: Store> Store for Batched<S> {
    fn get(&self, ids: Vec<RecordId>) -> Reply<'_, Reading> {
        Box::pin(self.read(ids))
    }

    fn put_if(&self, put: Put) -> Reply<'_, Written> {
        Box::pin(self.put(put))
    }

    hapax_core::forward_store!(
        self => self.0;
        renew, list, sweep, info, remember, knows, log, note
    );
}
