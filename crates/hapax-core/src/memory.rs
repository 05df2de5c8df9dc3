//! The reference store: the contract in the fewest lines. It keeps nothing when it is dropped.

mod transfer;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::audit::{self, LogEntry, LogQuery, Note, Start};
use crate::guard::{self, Due};
use crate::operation::Secret;
use crate::record::{Fence, Head, Record};
use crate::scope::{PrincipalId, RecordId};
use crate::store::{
    Change, Counts, KnownPrincipal, Lifetime, ListQuery, Put, Reading, Renewal, Reply, Seen, Store,
    StoreInfo, Swept, Won, Written,
};
use crate::time::{Clock, Timestamp};
use crate::transfer::Standing;

/// A store in memory. For tests, for the model, and for services that can afford to lose records.
pub struct Memory {
    clock: Arc<dyn Clock>,
    inside: Mutex<Inside>,
}

struct Inside {
    secret: Secret,
    lives_since: Timestamp,
    /// Only transfers look at it: a store in memory is gone when its process ends.
    standing: Standing,
    records: BTreeMap<RecordId, Record>,
    /// The highest fence of any removed record.
    floor: Fence,
    epoch: u64,
    /// Until when each principal is remembered.
    principals: BTreeMap<PrincipalId, Timestamp>,
    /// The audit log, oldest first, and the number of its last entry.
    log: VecDeque<LogEntry>,
    logged: u64,
}

impl Memory {
    /// An empty store. The caller provides time and randomness, which this crate does not have.
    pub fn new(clock: Arc<dyn Clock>, secret: Secret) -> Self {
        let inside = Inside {
            secret,
            lives_since: Timestamp::ZERO,
            standing: Standing::Live,
            records: BTreeMap::new(),
            floor: Fence::ZERO,
            epoch: 0,
            principals: BTreeMap::new(),
            log: VecDeque::new(),
            logged: 0,
        };
        Memory {
            clock,
            inside: Mutex::new(inside),
        }
    }

    /// The mutex makes every step atomic. The clock is read while it is held, so time never runs
    /// backwards between two steps.
    fn lock(&self) -> (MutexGuard<'_, Inside>, Timestamp) {
        let inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        (inside, self.clock.now())
    }
}

impl Store for Memory {
    fn get(&self, ids: Vec<RecordId>) -> Reply<'_, Reading> {
        Box::pin(async move {
            let (inside, now) = self.lock();
            Ok(Reading {
                records: ids.iter().map(|id| inside.read(id, now)).collect(),
                now,
            })
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
            Ok(renewals
                .iter()
                .map(|renewal| inside.renew(renewal, now))
                .collect())
        })
    }

    fn list(&self, query: ListQuery) -> Reply<'_, Vec<Head>> {
        Box::pin(async move {
            let (inside, now) = self.lock();
            let from = query.after.map_or(Bound::Unbounded, Bound::Excluded);
            let heads = inside
                .records
                .range((from, Bound::Unbounded))
                .map(|(_, record)| record.head.clone().at(now));
            Ok(heads
                .filter(|head| query.state.is_none_or(|filter| filter.matches(head.state)))
                .take(query.limit)
                .collect())
        })
    }

    fn sweep(&self, limit: usize) -> Reply<'_, Swept> {
        Box::pin(async move {
            let (mut inside, now) = self.lock();
            Ok(inside.sweep(limit, now))
        })
    }

    fn info(&self) -> Reply<'_, StoreInfo> {
        Box::pin(async move {
            let (inside, now) = self.lock();
            Ok(StoreInfo {
                now,
                epoch: inside.epoch,
                secret: inside.secret,
                lives_since: inside.lives_since,
                counts: Some(inside.count(now)),
            })
        })
    }

    fn remember(&self, principals: Vec<KnownPrincipal>) -> Reply<'_, ()> {
        Box::pin(async move {
            let (mut inside, _) = self.lock();
            for KnownPrincipal { id, until } in principals {
                let known = inside.principals.entry(id).or_insert(until);
                *known = until.max(*known);
            }
            Ok(())
        })
    }

    fn knows(&self, principal: PrincipalId) -> Reply<'_, bool> {
        Box::pin(async move {
            let (inside, now) = self.lock();
            Ok(inside
                .principals
                .get(&principal)
                .is_some_and(|until| *until > now))
        })
    }

    fn log(&self, query: LogQuery) -> Reply<'_, Vec<LogEntry>> {
        Box::pin(async move {
            let (inside, _) = self.lock();
            Ok(inside.read_log(&query))
        })
    }

    fn note(&self, note: Note) -> Reply<'_, LogEntry> {
        Box::pin(async move {
            let (mut inside, now) = self.lock();
            Ok(inside.write_log(LogEntry::noted(note, now)))
        })
    }
}

impl Inside {
    fn read(&self, id: &RecordId, now: Timestamp) -> Option<Record> {
        let Record { head, answer } = self.records.get(id)?.clone();
        let head = head.at(now);
        Some(Record {
            answer: answer.filter(|_| head.kept),
            head,
        })
    }

    fn put_if(&mut self, put: &Put, now: Timestamp) -> Written {
        let current = self.records.get(&put.id);
        match guard::judge(current.map(|record| &record.head), put, now, self.floor) {
            Err(guard::Refused) => Written::Lost(Seen {
                record: self.read(&put.id, now),
                now,
            }),
            Ok(head) => {
                let entry = LogEntry::of(put, current.map(|record| &record.head), &head, now);
                entry
                    .into_iter()
                    .for_each(|entry| drop(self.write_log(entry)));
                self.records.insert(
                    put.id,
                    Record {
                        head: head.clone(),
                        answer: put.change.answer().cloned(),
                    },
                );
                self.epoch += u64::from(matches!(put.change, Change::Forget(..)));
                Written::Won(Won { head, now })
            }
        }
    }

    fn count(&self, now: Timestamp) -> Counts {
        let live = || {
            self.records
                .values()
                .map(|record| &record.head)
                .filter(|head| !head.is_gone(now))
        };
        Counts {
            records: live().count() as u64,
            refused: live().filter(|head| head.is_refused()).count() as u64,
        }
    }

    fn write_log(&mut self, entry: LogEntry) -> LogEntry {
        self.logged += 1;
        let entry = LogEntry {
            sequence: self.logged,
            ..entry
        };
        self.log.push_back(entry.clone());
        entry
    }

    fn read_log(&self, query: &LogQuery) -> Vec<LogEntry> {
        let is_asked_for = |entry: &&LogEntry| {
            query.record.is_none_or(|id| {
                entry
                    .touched
                    .as_ref()
                    .is_some_and(|touched| touched.id == id)
            }) && match query.from {
                Start::After(sequence) => entry.sequence > sequence,
                Start::Before(sequence) => entry.sequence < sequence,
                Start::End => true,
            }
        };
        let entries = self.log.iter().filter(is_asked_for);
        match query.from {
            Start::After(_) => entries.take(query.rows()).cloned().collect(),
            Start::Before(_) | Start::End => entries.rev().take(query.rows()).cloned().collect(),
        }
    }

    fn renew(&mut self, renewal: &Renewal, now: Timestamp) -> bool {
        let Some(record) = self.records.get_mut(&renewal.id) else {
            return false;
        };
        match guard::renew(Some(&record.head), renewal, now) {
            Ok(head) => {
                record.head = head;
                true
            }
            Err(guard::Refused) => false,
        }
    }

    fn sweep(&mut self, limit: usize, now: Timestamp) -> Swept {
        // In the order in which they became due, as a store with an index would find them.
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
            let Some(due) = guard::due(&head, Lifetime::default(), now) else {
                continue;
            };
            swept.count(&due);
            let left = match due {
                Due::Lost(lost) => Some(*lost),
                Due::Buried => Some(Head {
                    kept: false,
                    ..head
                }),
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
        while swept.total() < limit
            && self
                .log
                .front()
                .is_some_and(|entry| entry.at.after(audit::KEPT_FOR) <= now)
        {
            self.log.pop_front();
            swept.unlogged += 1;
        }
        self.principals.retain(|_, until| *until > now);
        swept
    }
}
