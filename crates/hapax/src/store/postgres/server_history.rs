//! Detects whether the database is still the one that acknowledged our writes.
//!
//! A standby that took over is on a new timeline; a restored copy may be another system. Either may
//! lack acknowledged commits, and then keys that have run may run again. A failover or restore
//! loses the end of the history. So a process that remembers its last acknowledged writes can
//! detect the loss by looking for them. A restore need not change the system identifier or the
//! timeline, but it closes all connections: so every new connection looks for the latest writes. If
//! configured, a process also keeps them in a file (see `high_water`) and looks for them after a
//! restart.

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

/// The number of acknowledged writes that are remembered. A failover loses the end of the history,
/// so this is enough to detect it.
const REMEMBERED_MAX: usize = 1024;
/// How long a write is remembered, counted back from the latest one.
const REMEMBERED_FOR: Duration = Duration::from_secs(10);
/// A record that will be removed within this time proves nothing.
const STAYS: Duration = Duration::from_secs(60 * 60);

/// A database and a branch of its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Timeline {
    system_identifier: i64,
    timeline: i32,
}

/// The database's information about itself.
pub(super) struct ServerInfo {
    pub(super) store: StoreInfo,
    line: Timeline,
    /// The timeline that was recorded by the last node that noticed a change.
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

    /// Checks that this process can use the database: the version of its schema, and the store in
    /// it, by its secret.
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

/// Checks that this program can use a schema of version `found`, which supports programs from
/// version `oldest` on.
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

/// This process's knowledge of the database's history.
#[derive(Default)]
pub(super) struct ServerHistory {
    seen: Mutex<Option<Timeline>>,
    acknowledged: Mutex<VecDeque<Acknowledged>>,
    /// The highest version of any acknowledged write: no fence up to here may be assigned again.
    highest: AtomicU64,
    /// Notified of every remembered write.
    changed: Arc<Notify>,
    /// Held while a task looks for missing writes, so that only one does, and new connections wait
    /// for it. Contains when the last look began.
    looking: tokio::sync::Mutex<Option<Instant>>,
}

/// A write that the database has acknowledged.
struct Acknowledged {
    at: Instant,
    id: RecordId,
    version: u64,
    /// After this time, a missing record proves nothing.
    stays_until: Timestamp,
}

impl ServerHistory {
    /// Remembers a write for a while.
    pub(super) fn remember(&self, head: &Head, now: Timestamp) {
        self.highest
            .fetch_max(head.version.max(head.fence.as_u64()), Ordering::Relaxed);
        let hour = now.after(STAYS);
        // A record that will be removed soon is remembered too, to replace its earlier entry.
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

    /// Remembers the acknowledged writes of an earlier process of this store.
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

    /// The writes to remember beyond the end of this process.
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

    /// Compares the database with its known history. If it has changed, looks for missing writes,
    /// raises an alarm if there are any, and records the change for all nodes.
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

    /// The same on a connection that was begun at `since`. It looks for the latest writes even if
    /// the history seems unchanged, unless another task has done so since.
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

    /// Looks for all remembered writes, and acts on the result.
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
            // The database may lack the policies and terms that were sent before.
            shared.policies.forget_sent();
            shared.terms.forget_sent();
        }
        if has_changed || missing > 0 || info.known != info.line {
            // Every node reports its highest fence, even if another node was first, so that no
            // fence of any node is assigned again.
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
            // A loss is reported once.
            self.acknowledged.lock().clear();
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Whether the latest remembered writes are missing. A restore loses the end of the history, so
    /// a few are enough.
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

    /// The writes that must be in the database at this time: the last one of every remembered
    /// record, in order.
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

/// Wakes the task that waits for writes, so that it ends.
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

/// Looked for on every new connection, in one small statement.
const LATEST: usize = 64;
const PAGE: usize = 256;

/// Selects no answers, which may be large.
const VERSIONS: &str = "SELECT id, CASE WHEN state IS NOT NULL THEN version END FROM hapax.get($1)";

/// The number of these records that are missing, or older than expected.
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
    // A record without a row is being changed at this moment, so it is not missing.
    let is_missing = |(id, version): &&(RecordId, u64)| {
        found.get(id).is_some_and(|found| *found < Some(*version))
    };
    Ok(expected.iter().filter(is_missing).count() as u64)
}
