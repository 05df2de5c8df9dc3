//! Whether the database is still the one that acknowledged what we wrote.
//!
//! A standby that took over is on a new timeline; a restored copy may be another system. Either may
//! lack commits that were acknowledged, and then keys that have run may run again. What is lost is
//! the end of the history, so whoever remembers the last writes that it saw acknowledged can tell:
//! it looks for them. A restore need not show in identifier or timeline, but nobody restores under
//! an open connection: so whoever connects anew looks for the latest of them. Where it is told to,
//! a process also keeps them in a file, see `high_water`, and looks for them when it is started
//! again.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hapax_core::operation::Secret;
use hapax_core::record::Head;
use hapax_core::scope::RecordId;
use hapax_core::store::{StoreError, StoreInfo};
use hapax_core::time::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::error::{Failure, Fault, OpenError};
use super::high_water::{Mark, Witness};
use super::pipeline::Link;
use super::shared::Shared;
use super::{ConnectOptions, row, schema};
use crate::hash::Ids;
use crate::store::codec;

/// Acknowledged writes that are remembered: enough to tell, as what a failover loses is the end of
/// the history.
const REMEMBERED_MAX: usize = 1024;
/// Until how long before the latest one.
const REMEMBERED_FOR: Duration = Duration::from_secs(10);
/// A record that will go by itself before this is over is no witness.
const STAYS: Duration = Duration::from_secs(60 * 60);

/// A database and a point from which its history goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Timeline {
    system_identifier: i64,
    timeline: i32,
}

/// What the database says of itself.
pub(super) struct ServerInfo {
    pub(super) store: StoreInfo,
    line: Timeline,
    /// What the last node that noticed a change took note of.
    known: Timeline,
    schema: u32,
    oldest: u32,
}

impl ServerInfo {
    pub(super) const SQL: &str = "SELECT now, epoch, secret, system_identifier, timeline, known_system_identifier, known_timeline, \
                                  schema, oldest, hapax.lives_since() FROM hapax.pulse()";

    pub(super) fn read(rows: &[Row]) -> Result<ServerInfo, StoreError> {
        let row = rows
            .first()
            .ok_or_else(|| StoreError::corrupt("the database has nothing to say of itself"))?;
        let line = |first| {
            Ok::<_, StoreError>(Timeline {
                system_identifier: row::get(row, first)?,
                timeline: row::get(row, first + 1)?,
            })
        };
        let secret = Secret::from_bytes(row::array(row::get(row, 2)?)?);
        Ok(ServerInfo {
            store: StoreInfo {
                now: row::time(row, 0)?,
                epoch: row::number(row, 1)?,
                secret,
                lives_since: row::time(row, 9)?,
                counts: None,
            },
            line: line(3)?,
            known: line(5)?,
            schema: row::get::<i32>(row, 7)?.unsigned_abs(),
            oldest: row::get::<i32>(row, 8)?.unsigned_abs(),
        })
    }

    /// Whether this process can use the database as it is: the schema, and the store in it, by its
    /// secret.
    pub(super) fn check(
        &self,
        database: &ConnectOptions,
        secret: &Secret,
    ) -> Result<(), OpenError> {
        if self.store.secret != *secret {
            return Err(OpenError::AnotherStore {
                database: database.to_string(),
            });
        }
        check_schema(database, self.schema, self.oldest)
    }
}

/// Whether this program can use a schema of this version, which serves programs from that version
/// on.
pub(super) fn check_schema(
    database: &ConnectOptions,
    found: u32,
    oldest: u32,
) -> Result<(), OpenError> {
    let (database, needed) = (database.to_string(), schema::VERSION);
    if found < needed {
        return Err(OpenError::TooOld {
            database,
            found,
            needed,
        });
    }
    if oldest > needed {
        Err(OpenError::TooNew {
            database,
            found,
            oldest,
            needed,
        })
    } else {
        Ok(())
    }
}

/// What this process knows of the database's history.
#[derive(Default)]
pub(super) struct ServerHistory {
    seen: Mutex<Option<Timeline>>,
    acknowledged: Mutex<VecDeque<Acknowledged>>,
    /// The highest version of any write that was ever acknowledged: no fence may be given again up
    /// to here.
    highest: AtomicU64,
    /// Told of every write that is remembered.
    changed: Arc<Notify>,
    /// Held while somebody looks: one is enough, and nobody writes on before it is done. Since when
    /// it was last known how things are.
    looking: tokio::sync::Mutex<Option<Instant>>,
}

/// A write that the database said it has.
struct Acknowledged {
    at: Instant,
    id: RecordId,
    version: u64,
    /// From when on it proves nothing that the record is gone.
    stays_until: Timestamp,
}

impl ServerHistory {
    /// Remembers a write for a while.
    pub(super) fn remember(&self, head: &Head, now: Timestamp) {
        self.highest
            .fetch_max(head.version.max(head.fence.as_u64()), Ordering::Relaxed);
        let hour = now.after(STAYS);
        // One that goes soon takes the place of what was remembered of the same record.
        let stays_until = match head.state.is_open() {
            true => hour,
            false if head.tombstone_until < hour => Timestamp::ZERO,
            false => head.tombstone_until,
        };
        let mut acknowledged = self.acknowledged.lock();
        let at = Instant::now();
        while acknowledged.front().is_some_and(|oldest| {
            acknowledged.len() >= REMEMBERED_MAX || oldest.at + REMEMBERED_FOR < at
        }) {
            acknowledged.pop_front();
        }
        acknowledged.push_back(Acknowledged {
            at,
            id: head.id,
            version: head.version,
            stays_until,
        });
        drop(acknowledged);
        self.changed.notify_one();
    }

    /// Remembers what a process of this store before us had seen acknowledged.
    pub(super) fn recall(&self, mark: &Mark) {
        self.highest.fetch_max(mark.highest, Ordering::Relaxed);
        let at = Instant::now();
        let recalled = mark.writes.iter().map(
            |&Witness {
                 id,
                 version,
                 stays_until,
             }| Acknowledged {
                at,
                id,
                version,
                stays_until,
            },
        );
        self.acknowledged.lock().extend(recalled);
    }

    /// What to remember beyond the end of this process.
    pub(super) fn mark(&self, secret: &Secret) -> Mark {
        let acknowledged = self.acknowledged.lock();
        let mut met = HashSet::with_hasher(Ids::default());
        let last = acknowledged
            .iter()
            .rev()
            .filter(|write| met.insert(write.id) && write.stays_until > Timestamp::ZERO);
        let witness = |write: &Acknowledged| Witness {
            id: write.id,
            version: write.version,
            stays_until: write.stays_until,
        };
        let mut writes: Vec<_> = last.take(LATEST).map(witness).collect();
        writes.reverse();
        Mark::new(secret, self.highest.load(Ordering::Relaxed), writes)
    }

    pub(super) fn changed(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    /// Compares the database with what was known of it. If it has changed, looks whether anything
    /// is missing, sounds the alarm if so, and has every node take note.
    pub(super) async fn watch(
        &self,
        info: &ServerInfo,
        link: &Link,
        shared: &Shared,
    ) -> Result<(), Failure> {
        if self.is_known(info) {
            return Ok(());
        }
        let mut looked = self.looking.lock().await;
        if !self.is_known(info) {
            let begun = Instant::now();
            self.take_note(info, link, shared).await?;
            *looked = Some(begun);
        }
        Ok(())
    }

    /// The same on a connection that was begun at that moment: there the latest writes are looked
    /// for also if nothing seems to have changed, unless somebody has done so since.
    pub(super) async fn meet(
        &self,
        since: Instant,
        info: &ServerInfo,
        link: &Link,
        shared: &Shared,
    ) -> Result<(), Failure> {
        let mut looked = self.looking.lock().await;
        let is_known = self.is_known(info);
        if is_known && *looked > Some(since) {
            return Ok(());
        }
        let begun = Instant::now();
        if !is_known || self.lacks_the_latest(info, link, shared).await? {
            self.take_note(info, link, shared).await?;
        }
        *looked = Some(begun);
        Ok(())
    }

    fn is_known(&self, info: &ServerInfo) -> bool {
        *self.seen.lock() == Some(info.line) && info.known == info.line
    }

    /// Looks for all that is remembered, and acts on what is found.
    async fn take_note(
        &self,
        info: &ServerInfo,
        link: &Link,
        shared: &Shared,
    ) -> Result<(), Failure> {
        let seen = *self.seen.lock();
        let before = seen.unwrap_or(info.known);
        let has_changed = before != info.line;
        let expected = self.witnesses(info.store.now);
        let mut missing = 0;
        for page in expected.chunks(PAGE) {
            missing += missing_of(page, link, shared).await?;
        }
        if has_changed || missing > 0 {
            // It may not have been told what it was told before.
            shared.policies.forget_sent();
            shared.terms.forget_sent();
        }
        if has_changed || missing > 0 || info.known != info.line {
            // Every node says how far it had come, whoever was first: no fence that any of them was
            // given is given again.
            let highest = codec::bigint(self.highest.load(Ordering::Relaxed));
            link.ask(
                "SELECT hapax.adopt($1)",
                &[(&highest, Type::INT8)],
                shared.options.statement_timeout,
            )
            .await?;
        }
        *self.seen.lock() = Some(info.line);
        shared
            .counters
            .failovers
            .fetch_add(u64::from(has_changed), Ordering::Relaxed);
        shared
            .counters
            .commits_lost
            .fetch_add(missing, Ordering::Relaxed);
        if seen.is_none() && missing > 0 {
            shared.counters.restored.store(true, Ordering::Relaxed);
        }
        tell(before, info.line, missing, expected.len());
        if has_changed || missing > 0 {
            // What is gone is told once.
            self.acknowledged.lock().clear();
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Whether the end of what is remembered is not there. What a restore loses is the end of the
    /// history, so a few are enough.
    async fn lacks_the_latest(
        &self,
        info: &ServerInfo,
        link: &Link,
        shared: &Shared,
    ) -> Result<bool, Failure> {
        let mut latest = self.witnesses(info.store.now);
        latest.drain(..latest.len().saturating_sub(LATEST));
        Ok(!latest.is_empty() && missing_of(&latest, link, shared).await? > 0)
    }

    /// What must be there at this time: the last write of every record that is remembered, the
    /// latest at the end.
    fn witnesses(&self, now: Timestamp) -> Vec<(RecordId, u64)> {
        let acknowledged = self.acknowledged.lock();
        let mut met = HashSet::with_hasher(Ids::default());
        let last = acknowledged
            .iter()
            .rev()
            .filter(|write| met.insert(write.id) && write.stays_until > now);
        let mut witnesses: Vec<_> = last.map(|write| (write.id, write.version)).collect();
        witnesses.reverse();
        witnesses
    }
}

/// Whoever waits for a write finds that there will be none.
impl Drop for ServerHistory {
    fn drop(&mut self) {
        self.changed.notify_one();
    }
}

fn tell(before: Timeline, after: Timeline, missing: u64, looked_for: usize) {
    if missing > 0 {
        tracing::error!(
            missing,
            looked_for,
            ?before,
            ?after,
            "ALARM: the database goes on without writes that it had acknowledged, after a failover or a restore; keys of that time may run again"
        );
    } else if before.system_identifier != after.system_identifier {
        tracing::error!(
            looked_for,
            ?before,
            ?after,
            "ALARM: the database is another system than before, restored or replaced; keys of the time since it was copied may run again"
        );
    } else if before != after {
        tracing::warn!(
            looked_for,
            ?before,
            ?after,
            "the database has failed over; nothing that this process remembers is missing"
        );
    }
}

/// Looked for on every new connection: one statement, and a small one.
const LATEST: usize = 64;
const PAGE: usize = 256;

/// Without the answers, which may be large.
const VERSIONS: &str = "SELECT id, CASE WHEN state IS NOT NULL THEN version END FROM hapax.get($1)";

/// How many of these records are not there, or only as they were before.
async fn missing_of(
    expected: &[(RecordId, u64)],
    link: &Link,
    shared: &Shared,
) -> Result<u64, Failure> {
    let ids: Vec<&[u8]> = expected.iter().map(|(id, _)| &id.as_bytes()[..]).collect();
    let rows = link
        .ask(
            VERSIONS,
            &[(&ids, Type::BYTEA_ARRAY)],
            shared.options.statement_timeout,
        )
        .await?;
    let broken = |error| Failure {
        fault: Fault::Server,
        error,
    };
    let mut found = HashMap::with_hasher(Ids::default());
    for row in &rows {
        let id = row::get(row, 0)
            .and_then(row::array)
            .map(RecordId::from_bytes)
            .map_err(broken)?;
        found.insert(
            id,
            row::get::<Option<i64>>(row, 1)
                .map_err(broken)?
                .map(i64::unsigned_abs),
        );
    }
    // What has no row is being changed at this moment, so it is there.
    let is_missing = |(id, version): &&(RecordId, u64)| {
        found.get(id).is_some_and(|found| *found < Some(*version))
    };
    Ok(expected.iter().filter(is_missing).count() as u64)
}
