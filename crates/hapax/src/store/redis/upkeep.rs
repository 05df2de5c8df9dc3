//! The calls about many records: listing, sweeping, counting; and those about the store as a whole.

use std::ops::ControlFlow;

use hapax_core::audit::KEPT_FOR;
use hapax_core::operation::Secret;
use hapax_core::record::{Head, StateFilter};
use hapax_core::scope::{PrincipalId, RecordId};
use hapax_core::store::{
    Counts, KnownPrincipal, Lifetime, ListQuery, StoreError, StoreInfo, Swept,
};
use hapax_core::time::Timestamp;
use redis::Value;

use super::partition::{self, Partition, partition_keys, record_keys, store_keys};
use super::topology::Command;
use super::{Redis, lose, micros, read, reply, scripts, together};
use crate::store::random_secret;

/// Heads that are read at once.
const PAGE: usize = 256;

/// Entries of an index that Redis looks at in one step.
const SCANNED_AT_ONCE: u64 = 1_000;

/// What a sweep finds in a partition.
pub(super) struct Due {
    /// Attempts whose lease is over, and when it was.
    lapsed: Vec<(Timestamp, RecordId)>,
    /// Records whose answer or tombstone is over, and since when.
    ended: Vec<(Timestamp, RecordId)>,
    pub(super) counts: Counts,
    has_log: bool,
    /// Records that are stored as running, and those of them with a live lease.
    pub(super) running: u64,
    pub(super) live: u64,
    pub(super) floor: u64,
}

/// What a sweep did to a record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    None,
    Lost,
    Buried,
    Removed,
}

impl Redis {
    pub(super) async fn read_info(&self) -> Result<StoreInfo, StoreError> {
        let command = Command::script(&scripts::INFO, store_keys()).arg(random_secret().to_bytes());
        let reply = reply::array(self.topology.call(Partition::STORE, command).await?)?;
        let [
            secret,
            lives_since,
            epoch,
            _logged,
            records,
            refused,
            _format,
            now,
        ] = <[Value; 8]>::try_from(reply).map_err(|_| reply::unexpected())?;
        let secret = reply::bytes(secret)?.and_then(|bytes| bytes.try_into().ok());
        let counts = match (records, refused) {
            (Value::Nil, _) | (_, Value::Nil) => Counts::default(),
            (records, refused) => Counts {
                records: reply::count(&records)?,
                refused: reply::count(&refused)?,
            },
        };
        Ok(StoreInfo {
            now: reply::time(&now)?,
            epoch: reply::count(&epoch)?,
            secret: Secret::from_bytes(secret.ok_or_else(reply::unexpected)?),
            lives_since: reply::time(&lives_since)?,
            counts: Some(counts),
        })
    }

    pub(super) async fn list_heads(&self, query: ListQuery) -> Result<Vec<Head>, StoreError> {
        let mut heads = Vec::new();
        let first = query.after.as_ref().map(Partition::of);
        let partitions = Partition::records().filter(|partition| Some(*partition) >= first);
        for partition in partitions {
            let ids = self.ids_for(partition, &query).await?;
            for page in ids.chunks(PAGE) {
                if self.take_heads(page, &query, &mut heads).await?.is_break() {
                    return Ok(heads);
                }
            }
        }
        Ok(heads)
    }

    /// The ids of a partition's records that may be asked for, in their order.
    async fn ids_for(
        &self,
        partition: Partition,
        query: &ListQuery,
    ) -> Result<Vec<RecordId>, StoreError> {
        let mut ids = match query.state {
            Some(StateFilter::Running | StateFilter::Unknown | StateFilter::Open) => {
                self.open_ids(partition).await?
            }
            _ => self.ids(partition).await?,
        };
        ids.retain(|id| query.after.is_none_or(|after| *id > after));
        Ok(ids)
    }

    /// Running and unknown records: a part of the index, which is small.
    async fn open_ids(&self, partition: Partition) -> Result<Vec<RecordId>, StoreError> {
        let command = Command::plain("ZRANGEBYSCORE", partition.index_of_records())
            .number(0)
            .arg("+inf");
        let members = reply::array(self.topology.call(partition, command).await?)?;
        let ids = members.into_iter().map(reply::id);
        let mut ids: Vec<_> = ids.collect::<Result<_, _>>()?;
        ids.sort_unstable();
        Ok(ids)
    }

    /// All ids of a partition. The index is in the order of time, and read whole, bit by bit.
    pub(super) async fn ids(&self, partition: Partition) -> Result<Vec<RecordId>, StoreError> {
        let mut ids = Vec::new();
        let mut cursor = b"0".to_vec();
        loop {
            let command = Command::plain("ZSCAN", partition.index_of_records())
                .arg(cursor)
                .arg("COUNT")
                .number(SCANNED_AT_ONCE);
            let reply = reply::array(self.topology.call(partition, command).await?)?;
            let [next, members] = <[Value; 2]>::try_from(reply).map_err(|_| reply::unexpected())?;
            // Members and their scores take turns.
            for member in reply::array(members)?.into_iter().step_by(2) {
                ids.push(reply::id(member)?);
            }
            cursor = reply::bytes(next)?.ok_or_else(reply::unexpected)?;
            if cursor == b"0" {
                break;
            }
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// Reads these heads and adds those that are asked for, until there are enough.
    async fn take_heads(
        &self,
        ids: &[RecordId],
        query: &ListQuery,
        heads: &mut Vec<Head>,
    ) -> Result<ControlFlow<()>, StoreError> {
        if heads.len() >= query.limit {
            return Ok(ControlFlow::Break(()));
        }
        let found = together(ids.iter().map(|id| self.read_head(*id))).await?;
        for (head, now) in found {
            let Some(head) = head.map(|head| head.at(now)) else {
                continue;
            };
            if query.state.is_none_or(|filter| filter.matches(head.state)) {
                heads.push(head);
            }
            if heads.len() >= query.limit {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    pub(super) async fn read_head(
        &self,
        id: RecordId,
    ) -> Result<(Option<Head>, Timestamp), StoreError> {
        let reply = self
            .topology
            .call(Partition::of(&id), read(&id, false))
            .await?;
        reply::stored_head(id, reply, &self.shared.policies)
    }

    pub(super) async fn due(&self, partition: Partition, limit: usize) -> Result<Due, StoreError> {
        let command =
            Command::script(&scripts::DUE, partition_keys(partition)).number(limit as u64);
        let reply = reply::array(self.topology.call(partition, command).await?)?;
        let [lapsed, ended, records, refused, log, running, live, floor] =
            <[Value; 8]>::try_from(reply).map_err(|_| reply::unexpected())?;
        Ok(Due {
            lapsed: scored(lapsed)?,
            ended: scored(ended)?,
            counts: Counts {
                records: reply::count(&records)?,
                refused: reply::count(&refused)?,
            },
            // The counter of the log is always there once an entry was.
            has_log: reply::count(&log)? > 1,
            running: reply::count(&running)?,
            live: reply::count(&live)?,
            floor: reply::count(&floor)?,
        })
    }

    /// In all partitions, in the order in which changes became due.
    pub(super) async fn sweep_once(&self, limit: usize) -> Result<Swept, StoreError> {
        let found = together(
            Partition::records()
                .map(async |partition| Ok((partition, self.due(partition, limit).await?))),
        )
        .await?;
        let mut work = Vec::new();
        let mut counts = Counts::default();
        for (partition, due) in found {
            if due.has_log {
                self.hand_on_log(partition).await?;
            }
            counts.records += due.counts.records;
            counts.refused += due.counts.refused;
            work.extend(due.lapsed.into_iter().map(|(at, id)| (at, id, true)));
            work.extend(due.ended.into_iter().map(|(at, id)| (at, id, false)));
        }
        work.sort_unstable();
        work.truncate(limit);
        let changed = together(work.into_iter().map(async |(_, id, is_lapsed)| {
            let command = if is_lapsed {
                lose(&id, "", Lifetime::default(), self.topology.publish())
            } else {
                Command::script(&scripts::EXPIRE, record_keys(&id))
            };
            let reply = self.topology.call(Partition::of(&id), command).await?;
            match reply {
                Value::Array(parts) => {
                    reply::integer(parts.first().unwrap_or(&Value::Nil)).map(|has_won| {
                        if has_won == 1 {
                            Change::Lost
                        } else {
                            Change::None
                        }
                    })
                }
                reply => reply::integer(&reply).map(|change| match change {
                    2 => Change::Removed,
                    1 => Change::Buried,
                    _ => Change::None,
                }),
            }
        }))
        .await?;
        let count = |change| changed.iter().filter(|made| **made == change).count();
        let mut swept = Swept {
            lost: count(Change::Lost),
            buried: count(Change::Buried),
            removed: count(Change::Removed),
            ..Swept::default()
        };
        counts.records -= (swept.removed as u64).min(counts.records);
        swept.unlogged = self.sweep_log(limit - swept.total().min(limit)).await?;
        self.write_counts(counts).await?;
        Ok(swept)
    }

    /// Removes up to `limit` answers and tombstones of a partition that are over. Returns how many
    /// were looked at.
    pub(super) async fn remove_ended(
        &self,
        partition: Partition,
        limit: usize,
    ) -> Result<usize, StoreError> {
        let ended = self.due(partition, limit).await?.ended;
        let removed = ended.iter().map(async |(_, id)| {
            let command = Command::script(&scripts::EXPIRE, record_keys(id));
            self.topology.call(partition, command).await
        });
        together(removed).await.map(|removed| removed.len())
    }

    async fn sweep_log(&self, limit: usize) -> Result<usize, StoreError> {
        if limit == 0 {
            return Ok(0);
        }
        let command = Command::script(&scripts::LOG_SWEEP, store_keys())
            .number(micros(KEPT_FOR))
            .number(limit as u64);
        let removed = self.topology.call(Partition::STORE, command).await?;
        Ok(reply::count(&removed)? as usize)
    }

    async fn write_counts(&self, counts: Counts) -> Result<(), StoreError> {
        let command = Command::script(&scripts::COUNTS, store_keys())
            .number(counts.records)
            .number(counts.refused);
        self.topology.call(Partition::STORE, command).await?;
        Ok(())
    }

    pub(super) async fn remember_all(
        &self,
        principals: Vec<KnownPrincipal>,
    ) -> Result<(), StoreError> {
        together(
            principals
                .into_iter()
                .map(async |KnownPrincipal { id, until }| {
                    let (partition, key) = partition::principal(&id);
                    let until = until.as_micros().min((1 << 53) - 1);
                    let command = Command::script(&scripts::PRINCIPAL, vec![key]).number(until);
                    self.topology.call(partition, command).await
                }),
        )
        .await?;
        Ok(())
    }

    pub(super) async fn is_known(&self, principal: PrincipalId) -> Result<bool, StoreError> {
        let (partition, key) = partition::principal(&principal);
        let keys = vec![key, partition.clock()];
        let command = Command::script(&scripts::KNOWS, keys);
        let known = self.topology.call(partition, command).await?;
        reply::integer(&known).map(|known| known == 1)
    }
}

/// Members with their scores, which are times.
fn scored(value: Value) -> Result<Vec<(Timestamp, RecordId)>, StoreError> {
    let members = reply::array(value)?;
    let mut scored = Vec::with_capacity(members.len() / 2);
    let mut members = members.into_iter();
    while let (Some(member), Some(score)) = (members.next(), members.next()) {
        // A score is a floating point number, written as one.
        let score = reply::bytes(score)?.unwrap_or_default();
        let score: f64 = std::str::from_utf8(&score)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(reply::unexpected)?;
        // What has ended has a minus.
        let at = Timestamp::from_micros(score.abs() as u64);
        scored.push((at, reply::id(member)?));
    }
    Ok(scored)
}
