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
use super::{Redis, lose, micros, reply, scripts, together};
use crate::store::random_secret;

/// Heads that are read at once.
const PAGE: usize = 256;

/// What a sweep finds in a partition.
pub(super) struct Due {
    /// Attempts whose lease is over, and when it was.
    lapsed: Vec<(Timestamp, RecordId)>,
    /// Records whose tombstone is over.
    ended: Vec<(Timestamp, RecordId)>,
    counts: Counts,
    has_log: bool,
    /// Records that are stored as running, and those of them with a live lease.
    pub(super) running: u64,
    pub(super) live: u64,
    pub(super) floor: u64,
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
            let listed = match query.state {
                Some(StateFilter::Running | StateFilter::Unknown | StateFilter::Open) => {
                    self.list_open(partition, &query, &mut heads).await?
                }
                _ => self.list_all(partition, &query, &mut heads).await?,
            };
            if listed.is_break() {
                break;
            }
        }
        Ok(heads)
    }

    /// From the index of all ids, page by page.
    async fn list_all(
        &self,
        partition: Partition,
        query: &ListQuery,
        heads: &mut Vec<Head>,
    ) -> Result<ControlFlow<()>, StoreError> {
        let mut after = query.after;
        loop {
            let ids = self.ids_after(partition, after, PAGE).await?;
            let is_last = ids.len() < PAGE;
            after = ids.last().copied().or(after);
            if self.take_heads(ids, query, heads).await?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            if is_last {
                return Ok(ControlFlow::Continue(()));
            }
        }
    }

    /// From the indexes of leases and of unknown records, which are small.
    async fn list_open(
        &self,
        partition: Partition,
        query: &ListQuery,
        heads: &mut Vec<Head>,
    ) -> Result<ControlFlow<()>, StoreError> {
        let mut ids = Vec::new();
        for index in ["leases", "unknown"] {
            let command = Command::plain("ZRANGE", partition.key(index))
                .number(0)
                .arg("-1");
            for id in reply::array(self.topology.call(partition, command).await?)? {
                ids.push(reply::id(id)?);
            }
        }
        ids.retain(|id| query.after.is_none_or(|after| *id > after));
        ids.sort_unstable();
        ids.dedup();
        for page in ids.chunks(PAGE) {
            if self
                .take_heads(page.to_vec(), query, heads)
                .await?
                .is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Reads these heads and adds those that are asked for, until there are enough.
    async fn take_heads(
        &self,
        ids: Vec<RecordId>,
        query: &ListQuery,
        heads: &mut Vec<Head>,
    ) -> Result<ControlFlow<()>, StoreError> {
        if heads.len() >= query.limit {
            return Ok(ControlFlow::Break(()));
        }
        let found = together(ids.into_iter().map(|id| self.read_head(id))).await?;
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
        let partition = Partition::of(&id);
        let keys = vec![
            partition::head(&id),
            partition::answer(&id),
            partition.clock(),
        ];
        let command = Command::script(&scripts::READ, keys).arg("0");
        let reply = self.topology.call(partition, command).await?;
        reply::stored_head(id, reply, &self.shared.policies)
    }

    /// Ids of a partition in their order.
    pub(super) async fn ids_after(
        &self,
        partition: Partition,
        after: Option<RecordId>,
        limit: usize,
    ) -> Result<Vec<RecordId>, StoreError> {
        let from = match after {
            Some(after) => [b"(", &after.as_bytes()[..]].concat(),
            None => b"-".to_vec(),
        };
        let command = Command::plain("ZRANGEBYLEX", partition.key("ids"))
            .arg(from)
            .arg("+")
            .arg("LIMIT")
            .number(0)
            .number(limit as u64);
        let ids = reply::array(self.topology.call(partition, command).await?)?;
        ids.into_iter().map(reply::id).collect()
    }

    pub(super) async fn due(&self, partition: Partition, limit: usize) -> Result<Due, StoreError> {
        let command =
            Command::script(&scripts::DUE, partition_keys(partition)).number(limit as u64);
        let reply = reply::array(self.topology.call(partition, command).await?)?;
        let [
            lapsed,
            ended,
            records,
            refused,
            log,
            running,
            live,
            floor,
            _now,
        ] = <[Value; 9]>::try_from(reply).map_err(|_| reply::unexpected())?;
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
                Command::script(&scripts::REMOVE, record_keys(&id)).arg(*id.as_bytes())
            };
            let reply = self.topology.call(Partition::of(&id), command).await?;
            let has_changed = match reply {
                Value::Array(parts) => reply::integer(parts.first().unwrap_or(&Value::Nil))?,
                reply => reply::integer(&reply)?,
            };
            Ok((is_lapsed, usize::from(has_changed == 1)))
        }))
        .await?;
        let mut swept = Swept::default();
        for (is_lapsed, count) in changed {
            *if is_lapsed {
                &mut swept.lost
            } else {
                &mut swept.removed
            } += count;
        }
        swept.unlogged = self.sweep_log(limit - swept.total().min(limit)).await?;
        self.write_counts(counts).await?;
        Ok(swept)
    }

    /// Removes up to `limit` records of a partition whose tombstone is over. Returns how many were
    /// looked at.
    pub(super) async fn remove_ended(
        &self,
        partition: Partition,
        limit: usize,
    ) -> Result<usize, StoreError> {
        let ended = self.due(partition, limit).await?.ended;
        let removed = ended.iter().map(async |(_, id)| {
            let command = Command::script(&scripts::REMOVE, record_keys(id)).arg(*id.as_bytes());
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
        let keys = vec![key.clone(), key, partition.clock()];
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
        scored.push((Timestamp::from_micros(score as u64), reply::id(member)?));
    }
    Ok(scored)
}
