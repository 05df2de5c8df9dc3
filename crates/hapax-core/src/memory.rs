//! The reference store: the contract in the fewest lines. Forgets everything when it is dropped.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::guard::{self, Due};
use crate::operation::Secret;
use crate::record::{Fence, Head, Record};
use crate::scope::RecordId;
use crate::store::{Change, Lifetime, ListQuery, Pulse, Put, Reading, Renewal, Reply, Seen, Store, Swept, Won, Written};
use crate::time::{Clock, Timestamp};

/// Records in memory. For tests, for the model, and for services that can bear to forget.
pub struct Memory {
    clock: Arc<dyn Clock>,
    secret: Secret,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    records: BTreeMap<RecordId, Record>,
    /// The highest fence of any removed record.
    floor: Fence,
    epoch: u64,
}

impl Memory {
    /// An empty store. Time and randomness come from outside, as this crate has neither.
    pub fn new(clock: Arc<dyn Clock>, secret: Secret) -> Self {
        Memory { clock, secret, inside: Mutex::default() }
    }

    /// The mutex makes every step atomic; the clock is read under it, so that time never runs backwards between two steps.
    fn lock(&self) -> (MutexGuard<'_, Inside>, Timestamp) {
        let inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        (inside, self.clock.now())
    }
}

impl Store for Memory {
    fn get(&self, ids: Vec<RecordId>) -> Reply<'_, Reading> {
        Box::pin(async move {
            let (inside, now) = self.lock();
            Ok(Reading { records: ids.iter().map(|id| inside.read(id, now)).collect(), now })
        })
    }

    fn put_if(&self, put: Put) -> Reply<'_, Written> {
        Box::pin(async move {
            let (mut inside, now) = self.lock();
            Ok(inside.put_if(&put, now))
        })
    }

    fn renew(&self, renewals: Vec<Renewal>) -> Reply<'_, Vec<bool>> {
        Box::pin(async move {
            let (mut inside, now) = self.lock();
            Ok(renewals.iter().map(|renewal| inside.renew(renewal, now)).collect())
        })
    }

    fn list(&self, query: ListQuery) -> Reply<'_, Vec<Head>> {
        Box::pin(async move {
            let (inside, now) = self.lock();
            let from = query.after.map_or(Bound::Unbounded, Bound::Excluded);
            let heads = inside.records.range((from, Bound::Unbounded)).map(|(_, record)| record.head.clone().at(now));
            Ok(heads.filter(|head| query.state.is_none_or(|word| head.state.is_called(word))).take(query.limit).collect())
        })
    }

    fn sweep(&self, limit: usize) -> Reply<'_, Swept> {
        Box::pin(async move {
            let (mut inside, now) = self.lock();
            Ok(inside.sweep(limit, now))
        })
    }

    fn pulse(&self) -> Reply<'_, Pulse> {
        Box::pin(async move {
            let (inside, now) = self.lock();
            Ok(Pulse { now, epoch: inside.epoch, secret: self.secret })
        })
    }
}

impl Inside {
    fn read(&self, id: &RecordId, now: Timestamp) -> Option<Record> {
        let Record { head, answer } = self.records.get(id)?.clone();
        let head = head.at(now);
        Some(Record { answer: answer.filter(|_| head.kept), head })
    }

    fn put_if(&mut self, put: &Put, now: Timestamp) -> Written {
        let current = self.records.get(&put.id);
        match guard::judge(current.map(|record| &record.head), put, now, self.floor) {
            Err(guard::Refused) => Written::Lost(Seen { record: self.read(&put.id, now), now }),
            Ok(head) => {
                self.records.insert(put.id, Record { head: head.clone(), answer: put.change.answer().cloned() });
                self.epoch += u64::from(matches!(put.change, Change::Forget(_)));
                Written::Won(Won { head, now })
            }
        }
    }

    fn renew(&mut self, renewal: &Renewal, now: Timestamp) -> bool {
        let Some(record) = self.records.get_mut(&renewal.id) else { return false };
        match guard::renew(Some(&record.head), renewal, now) {
            Ok(head) => {
                record.head = head;
                true
            }
            Err(guard::Refused) => false,
        }
    }

    fn sweep(&mut self, limit: usize, now: Timestamp) -> Swept {
        // In the order in which they fell due, as a store with an index would find them.
        let mut due: Vec<_> = self
            .records
            .values()
            .filter_map(|record| Some((guard::due_at(&record.head)?, record.head.id)))
            .filter(|(at, _)| *at <= now)
            .collect();
        due.sort_unstable();
        let mut swept = Swept::default();
        for (_, id) in due.into_iter().take(limit) {
            let head = self.records[&id].head.clone();
            let Some(due) = guard::due(&head, Lifetime::default(), now) else { continue };
            swept.count(&due);
            let left = match due {
                Due::Lost(lost) => Some(*lost),
                Due::Buried => Some(Head { kept: false, ..head }),
                Due::Removed => {
                    self.floor = self.floor.max(head.fence);
                    None
                }
            };
            match left {
                Some(head) => self.records.insert(id, Record { head, answer: None }),
                None => self.records.remove(&id),
            };
        }
        swept
    }
}
