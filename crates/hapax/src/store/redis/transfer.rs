//! Copies everything from Redis into another store, or the reverse.
//!
//! A store that leaves or arrives takes no writes: the gate of each partition is closed, one after
//! the other, before its standing counts.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::audit::{LogEntry, LogQuery, PAGE_MAX};
use hapax_core::record::{Fence, Record};
use hapax_core::scope::RecordId;
use hapax_core::store::{Reply, StoreError, StoreErrorKind, StoreInfo};
use hapax_core::transfer::{
    Account, CopyId, Left, Page, Passage, Position, Shipment, Standing, Survey, Transfer,
    out_of_turn, shipped,
};
use parking_lot::Mutex;
use redis::Value;
use tokio::time::Instant;

use super::partition::{
    self, Partition, partition_keys, record_keys, record_log, store_keys, store_log,
};
use super::topology::Command;
use super::{OpenError, Options, Redis, audit, head, reply, scripts, together};
use crate::store::codec::not_copied;

/// A Redis as the source or target of a [copy](crate::store::copy), even if it is out of use.
pub struct Mover {
    store: Redis,
    /// When the store was taken out of use, at the latest.
    closed: Mutex<Instant>,
    /// The ids of the partition that is being exported.
    leaving: Mutex<Option<(Partition, Arc<[RecordId]>)>>,
}

/// How long a store is out of use at least before another one takes its place: nodes ask for the
/// store info once a second, and notice that the secret is another one.
const NOTICE: Duration = Duration::from_millis(1100);

/// Records that are removed at once.
const REMOVED_AT_ONCE: usize = 500;

/// The standing as it is stored: word, copy, other store, last record, last log entry.
type Fields = [Vec<u8>; 5];

impl Redis {
    pub(super) async fn standing(&self) -> Result<Standing, StoreError> {
        standing_of(&self.standing_fields().await?)
    }

    async fn standing_fields(&self) -> Result<Fields, StoreError> {
        let mut command = Command::plain("HMGET", partition::store());
        for field in ["standing", "copy", "other", "record", "entry"] {
            command = command.arg(field);
        }
        let fields = reply::array(self.topology.call(Partition::STORE, command).await?)?;
        let fields: Vec<_> = fields
            .into_iter()
            .map(|field| Ok(reply::bytes(field)?.unwrap_or_default()))
            .collect::<Result<_, StoreError>>()?;
        fields.try_into().map_err(|_| reply::unexpected())
    }
}

impl Mover {
    /// Connects to a Redis.
    pub async fn open(options: Options) -> Result<Mover, OpenError> {
        Ok(Mover {
            store: Redis::connect(options).await?,
            closed: Mutex::new(Instant::now()),
            leaving: Mutex::default(),
        })
    }

    /// Replaces the standing that was read, with further values of the store. Fails if another
    /// process was faster.
    async fn replace(
        &self,
        read: &Fields,
        standing: &Standing,
        values: &[(&str, Vec<u8>)],
    ) -> Result<(), StoreError> {
        let mut command = Command::script(&scripts::STANDING, store_keys());
        for field in read.iter().chain(&fields_of(standing)) {
            command = command.arg(field.clone());
        }
        for (name, value) in values {
            command = command.arg(*name).arg(value.clone());
        }
        let replaced = self.store.topology.call(Partition::STORE, command).await?;
        match reply::integer(&replaced)? {
            1 => Ok(()),
            _ => Err(out_of_turn()),
        }
    }

    /// Opens or closes all partitions of records. Clocks and floors only rise.
    async fn set_gates(&self, is_closed: bool, now: u64, floor: u64) -> Result<(), StoreError> {
        together(Partition::records().map(async |partition| {
            let command = Command::script(&scripts::GATE, partition_keys(partition))
                .number(is_closed.into())
                .number(now)
                .number(floor);
            self.store.topology.call(partition, command).await
        }))
        .await?;
        if is_closed {
            *self.closed.lock() = Instant::now();
        }
        Ok(())
    }

    async fn look(&self) -> Result<(Survey, Fields), StoreError> {
        let fields = self.store.standing_fields().await?;
        let StoreInfo {
            now,
            epoch,
            secret,
            lives_since,
            ..
        } = self.store.read_info().await?;
        let command = Command::plain("HGET", partition::store()).arg("logged");
        let logged = self.store.topology.call(Partition::STORE, command).await?;
        let (mut records, mut running, mut floor) = (0, 0, 0);
        let found = together(Partition::records().map(|partition| self.store.due(partition, 0)));
        for due in found.await? {
            records += due.counts.records;
            running += due.running;
            floor = floor.max(due.floor);
        }
        let account = Account {
            secret,
            lives_since,
            epoch,
            floor: Fence::from_u64(floor),
            logged: match logged {
                Value::Nil => 0,
                logged => reply::count(&logged)?,
            },
            now,
        };
        let survey = Survey {
            standing: standing_of(&fields)?,
            account,
            records,
            running,
        };
        Ok((survey, fields))
    }

    async fn leave_with(&self, copy: Passage) -> Result<Left, StoreError> {
        let fields = self.store.standing_fields().await?;
        let standing = standing_of(&fields)?;
        if !matches!(standing, Standing::Live | Standing::Leaving(_)) {
            return Err(out_of_turn());
        }
        // The standing first: of two copies one goes on, and one that is interrupted can be given up.
        let leaving = Standing::Leaving(copy);
        self.replace(&fields, &leaving, &[]).await?;
        self.set_gates(true, 0, 0).await?;
        *self.leaving.lock() = None;
        let found = together(Partition::records().map(|partition| self.store.due(partition, 0)));
        let live: u64 = found.await?.iter().map(|due| due.live).sum();
        if live > 0 {
            if standing == Standing::Live {
                self.set_gates(false, 0, 0).await?;
                self.replace(&fields_of(&leaving), &standing, &[]).await?;
            }
            return Ok(Left::Busy(live));
        }
        self.remove_ended().await?;
        // Whatever was done by hand is in the log before the log is copied.
        self.store.read_log(LogQuery::latest(1)).await?;
        Ok(Left::Left)
    }

    async fn export_page(
        &self,
        after: Option<RecordId>,
        page: Page,
    ) -> Result<Vec<Record>, StoreError> {
        let first = after.as_ref().map(Partition::of);
        let (mut records, mut bytes) = (Vec::new(), 0);
        for partition in Partition::records().filter(|partition| Some(*partition) >= first) {
            let ids = self.ids(partition).await?;
            let begin = after.map_or(0, |after| ids.partition_point(|id| *id <= after));
            for id in &ids[begin..] {
                let Some(record) = self.export_one(*id).await? else {
                    continue;
                };
                let answer = record.answer.as_ref();
                bytes += answer.map_or(0, |answer| answer.encoded_len());
                records.push(record);
                if records.len() >= page.records || bytes >= page.bytes {
                    return Ok(records);
                }
            }
        }
        Ok(records)
    }

    /// The ids of a partition. They are read once: while a store leaves, none is added.
    async fn ids(&self, partition: Partition) -> Result<Arc<[RecordId]>, StoreError> {
        if let Some((known, ids)) = &*self.leaving.lock()
            && *known == partition
        {
            return Ok(ids.clone());
        }
        let ids: Arc<[RecordId]> = self.store.ids(partition).await?.into();
        *self.leaving.lock() = Some((partition, ids.clone()));
        Ok(ids)
    }

    /// A record as it is stored; `None` if it has left since its id was read.
    async fn export_one(&self, id: RecordId) -> Result<Option<Record>, StoreError> {
        let (head, now) = self.store.read_head(id).await?;
        let Some(head) = head else {
            return Ok(None);
        };
        let seen = self.store.read_one(id).await;
        let seen = seen.map_err(|error| not_copied(id, error))?;
        let answer = seen.record.and_then(|record| record.answer);
        let record = shipped(Record { head, answer }, now);
        if record.head.kept && record.answer.is_none() {
            let missing = StoreError::corrupt("its answer is not where it was written");
            return Err(not_copied(id, missing));
        }
        Ok(Some(record))
    }

    async fn mark_moved(&self, copy: CopyId) -> Result<(), StoreError> {
        let fields = self.store.standing_fields().await?;
        match standing_of(&fields)? {
            Standing::Leaving(passage) if passage.copy == copy => {
                self.replace(&fields, &Standing::Moved(passage), &[]).await
            }
            Standing::Moved(passage) if passage.copy == copy => Ok(()),
            _ => Err(out_of_turn()),
        }
    }

    async fn abandon(&self) -> Result<(), StoreError> {
        let fields = self.store.standing_fields().await?;
        match standing_of(&fields)? {
            Standing::Moved(_) => return Err(out_of_turn()),
            Standing::Arriving(..) => self.clear().await?,
            Standing::Live | Standing::Leaving(_) => {}
        }
        // The gates first: until the standing has changed, this can be repeated.
        self.set_gates(false, 0, 0).await?;
        self.replace(&fields, &Standing::Live, &[]).await
    }

    /// Removes records whose tombstone is over: Redis would remove them while they are copied.
    async fn remove_ended(&self) -> Result<(), StoreError> {
        for partition in Partition::records() {
            while self.store.remove_ended(partition, REMOVED_AT_ONCE).await? > 0 {}
        }
        Ok(())
    }

    async fn arrive_with(&self, copy: Passage, account: Account) -> Result<bool, StoreError> {
        let (survey, fields) = self.look().await?;
        if !survey.is_outlived(&account.secret) {
            return Ok(false);
        }
        self.set_gates(true, 0, 0).await?;
        // A claim may have come between the look and the gate.
        if survey.standing == Standing::Live && !self.look().await?.0.is_empty() {
            self.set_gates(false, 0, 0).await?;
            return Ok(false);
        }
        let lives_since = account.lives_since.as_micros().to_string();
        let values = [
            ("secret", account.secret.to_bytes().to_vec()),
            ("lives_since", lives_since.into_bytes()),
            ("logged", b"0".to_vec()),
        ];
        // Under an id that no copy has until everything is cleared, so that a copy which is
        // interrupted in between begins again.
        let other = copy.other.clone();
        let nobodys = CopyId::from_bytes([0; 16]);
        let clearing = Standing::Arriving(
            Passage {
                copy: nobodys,
                other,
            },
            Position::default(),
        );
        self.replace(&fields, &clearing, &values).await?;
        self.clear().await?;
        let arriving = Standing::Arriving(copy, Position::default());
        self.replace(&fields_of(&clearing), &arriving, &[]).await?;
        Ok(true)
    }

    /// Removes everything but clocks and floors.
    async fn clear(&self) -> Result<(), StoreError> {
        for partition in Partition::records() {
            let ids = self.store.ids(partition).await?;
            for some in ids.chunks(REMOVED_AT_ONCE) {
                together(some.iter().map(async |id| {
                    let command = Command::script(&scripts::ERASE, record_keys(id));
                    self.store.topology.call(partition, command).await
                }))
                .await?;
            }
            let command = Command::script(&scripts::ERASE_LOG, vec![partition.log()]);
            self.store.topology.call(partition, command).await?;
        }
        self.clear_record_logs().await?;
        let command = Command::script(&scripts::ERASE_KEYS, vec![store_log()]);
        self.store.topology.call(Partition::STORE, command).await?;
        Ok(())
    }

    async fn clear_record_logs(&self) -> Result<(), StoreError> {
        let mut after = 0;
        loop {
            let entries = self
                .store
                .read_log(LogQuery::after(after, PAGE_MAX))
                .await?;
            let Some(last) = entries.last() else {
                return Ok(());
            };
            after = last.sequence;
            let touched = entries.iter().filter_map(|entry| entry.touched.as_ref());
            let keys: Vec<_> = touched.map(|touched| record_log(&touched.id)).collect();
            if !keys.is_empty() {
                let command = Command::script(&scripts::ERASE_KEYS, keys);
                self.store.topology.call(Partition::STORE, command).await?;
            }
        }
    }

    async fn take_in(&self, copy: CopyId, shipment: Shipment) -> Result<(), StoreError> {
        let fields = self.store.standing_fields().await?;
        let passage = match standing_of(&fields)? {
            Standing::Arriving(passage, _) if passage.copy == copy => passage,
            _ => return Err(out_of_turn()),
        };
        together(shipment.records.iter().map(async |record| {
            let id = record.head.id;
            let command =
                Command::script(&scripts::IMPORT, record_keys(&id)).arg(head::encode(&record.head));
            let command = match &record.answer {
                Some(answer) => command.arg(answer.encode(&id)),
                None => command,
            };
            self.store.topology.call(Partition::of(&id), command).await
        }))
        .await?;
        let kept_until = self.store.log_kept_until().await?;
        for entry in &shipment.log {
            let mut keys = vec![partition::store(), store_log()];
            keys.extend(
                entry
                    .touched
                    .as_ref()
                    .map(|touched| record_log(&touched.id)),
            );
            let command = Command::script(&scripts::LOG_IMPORT, keys)
                .number(entry.sequence)
                .arg(audit::encode(entry))
                .number(kept_until);
            self.store.topology.call(Partition::STORE, command).await?;
        }
        let arriving = Standing::Arriving(passage, shipment.position);
        self.replace(&fields, &arriving, &[]).await
    }

    async fn become_live(&self, copy: CopyId, account: Account) -> Result<(), StoreError> {
        let (survey, fields) = self.look().await?;
        match &survey.standing {
            Standing::Arriving(passage, _) if passage.copy == copy => {}
            _ => return Err(out_of_turn()),
        }
        let closed = *self.closed.lock();
        tokio::time::sleep_until(closed + NOTICE).await;
        let number = |number: u64| number.to_string().into_bytes();
        let values = [
            ("epoch", number(survey.account.epoch.max(account.epoch))),
            ("logged", number(survey.account.logged.max(account.logged))),
        ];
        let floor = account.floor.as_u64();
        // The gates first: until the standing has changed, this can be repeated.
        self.set_gates(false, account.now.as_micros(), floor)
            .await?;
        self.replace(&fields, &Standing::Live, &values).await
    }
}

fn standing_of(fields: &Fields) -> Result<Standing, StoreError> {
    let [word, copy, other, record, entry] = fields;
    if word.is_empty() {
        return Ok(Standing::Live);
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let passage = Passage {
        copy: CopyId::from_bytes(copy.as_slice().try_into().unwrap_or_default()),
        other: text(other),
    };
    let position = Position {
        record: record.as_slice().try_into().ok().map(RecordId::from_bytes),
        entry: text(entry).parse().unwrap_or(0),
    };
    Standing::of(&text(word), passage, position).ok_or_else(|| {
        let newer = "this store has a standing that this version does not know";
        StoreError::new(StoreErrorKind::Unsupported, newer)
    })
}

fn fields_of(standing: &Standing) -> Fields {
    let word = standing.word().as_bytes().to_vec();
    let empty = Vec::new;
    match standing {
        Standing::Live => [word, empty(), empty(), empty(), empty()],
        Standing::Leaving(passage) | Standing::Moved(passage) => {
            let copy = passage.copy.as_bytes().to_vec();
            [
                word,
                copy,
                passage.other.clone().into_bytes(),
                empty(),
                empty(),
            ]
        }
        Standing::Arriving(passage, position) => [
            word,
            passage.copy.as_bytes().to_vec(),
            passage.other.clone().into_bytes(),
            position.record.map_or(empty(), |id| id.as_bytes().to_vec()),
            position.entry.to_string().into_bytes(),
        ],
    }
}

impl Transfer for Mover {
    fn survey(&self) -> Reply<'_, Survey> {
        Box::pin(async move { Ok(self.look().await?.0) })
    }

    fn leave(&self, copy: Passage) -> Reply<'_, Left> {
        Box::pin(self.leave_with(copy))
    }

    fn export(&self, after: Option<RecordId>, page: Page) -> Reply<'_, Vec<Record>> {
        Box::pin(self.export_page(after, page))
    }

    fn entries(&self, after: u64) -> Reply<'_, Vec<LogEntry>> {
        Box::pin(self.store.read_log(LogQuery::after(after, PAGE_MAX)))
    }

    fn moved(&self, copy: CopyId) -> Reply<'_, ()> {
        Box::pin(self.mark_moved(copy))
    }

    fn give_up(&self) -> Reply<'_, ()> {
        Box::pin(self.abandon())
    }

    fn arrive(&self, copy: Passage, account: Account) -> Reply<'_, bool> {
        Box::pin(self.arrive_with(copy, account))
    }

    fn import(&self, copy: CopyId, shipment: Shipment) -> Reply<'_, ()> {
        Box::pin(self.take_in(copy, shipment))
    }

    fn settle_in(&self, copy: CopyId, account: Account) -> Reply<'_, ()> {
        Box::pin(self.become_live(copy, account))
    }
}
