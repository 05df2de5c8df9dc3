//! Moving the content of the reference store.

use std::ops::Bound;

use super::{Inside, Memory};
use crate::audit::{LogEntry, LogQuery, PAGE_MAX};
use crate::record::{Record, State};
use crate::scope::RecordId;
use crate::store::{Reply, Store};
use crate::time::Timestamp;
use crate::transfer::{
    Account, CopyId, Left, Page, Passage, Position, Shipment, Standing, Survey, Transfer,
    out_of_turn, shipped,
};

impl Transfer for Memory {
    fn survey(&self) -> Reply<'_, Survey> {
        Box::pin(async move {
            let (inside, now) = self.lock();
            Ok(inside.survey(now))
        })
    }

    fn leave(&self, copy: Passage) -> Reply<'_, Left> {
        Box::pin(async move {
            let (mut inside, now) = self.lock();
            if !matches!(inside.standing, Standing::Live | Standing::Leaving(_)) {
                return Err(out_of_turn());
            }
            let live = inside
                .records
                .values()
                .filter(|record| record.head.state_at(now) == State::Running)
                .count();
            if live > 0 {
                return Ok(Left::Busy(live as u64));
            }
            inside.standing = Standing::Leaving(copy);
            Ok(Left::Left)
        })
    }

    fn export(&self, after: Option<RecordId>, page: Page) -> Reply<'_, Vec<Record>> {
        Box::pin(async move {
            let (inside, now) = self.lock();
            let from = after.map_or(Bound::Unbounded, Bound::Excluded);
            let (mut records, mut bytes) = (Vec::new(), 0);
            for (_, record) in inside.records.range((from, Bound::Unbounded)) {
                if !records.is_empty() && (records.len() >= page.records || bytes >= page.bytes) {
                    break;
                }
                let record = shipped(record.clone(), now);
                bytes += record
                    .answer
                    .as_ref()
                    .map_or(0, |answer| answer.encoded_len());
                records.push(record);
            }
            Ok(records)
        })
    }

    fn entries(&self, after: u64) -> Reply<'_, Vec<LogEntry>> {
        self.log(LogQuery::after(after, PAGE_MAX))
    }

    fn moved(&self, copy: CopyId) -> Reply<'_, ()> {
        Box::pin(async move {
            let (mut inside, _) = self.lock();
            match &inside.standing {
                Standing::Leaving(passage) | Standing::Moved(passage) if passage.copy == copy => {
                    inside.standing = Standing::Moved(passage.clone());
                    Ok(())
                }
                _ => Err(out_of_turn()),
            }
        })
    }

    fn give_up(&self) -> Reply<'_, ()> {
        Box::pin(async move {
            let (mut inside, _) = self.lock();
            match inside.standing {
                Standing::Moved(_) => return Err(out_of_turn()),
                Standing::Arriving(..) => inside.clear(),
                Standing::Live | Standing::Leaving(_) => {}
            }
            inside.standing = Standing::Live;
            Ok(())
        })
    }

    fn arrive(&self, copy: Passage, account: Account) -> Reply<'_, bool> {
        Box::pin(async move {
            let (mut inside, now) = self.lock();
            if !inside.survey(now).is_outlived(&account.secret) {
                return Ok(false);
            }
            inside.clear();
            inside.secret = account.secret;
            inside.lives_since = account.lives_since;
            inside.standing = Standing::Arriving(copy, Position::default());
            Ok(true)
        })
    }

    fn import(&self, copy: CopyId, shipment: Shipment) -> Reply<'_, ()> {
        Box::pin(async move {
            let (mut inside, _) = self.lock();
            let Standing::Arriving(passage, position) = &mut inside.standing else {
                return Err(out_of_turn());
            };
            if passage.copy != copy {
                return Err(out_of_turn());
            }
            *position = shipment.position;
            for record in shipment.records {
                inside.take_in(record);
            }
            for entry in shipment.log {
                if entry.sequence > inside.logged {
                    inside.logged = entry.sequence;
                    inside.log.push_back(entry);
                }
            }
            Ok(())
        })
    }

    fn settle_in(&self, copy: CopyId, account: Account) -> Reply<'_, ()> {
        Box::pin(async move {
            let (mut inside, _) = self.lock();
            match &inside.standing {
                Standing::Arriving(passage, _) if passage.copy == copy => {}
                _ => return Err(out_of_turn()),
            }
            inside.epoch = inside.epoch.max(account.epoch);
            inside.floor = inside.floor.max(account.floor);
            inside.logged = inside.logged.max(account.logged);
            inside.standing = Standing::Live;
            Ok(())
        })
    }
}

impl Inside {
    fn survey(&self, now: Timestamp) -> Survey {
        let running = self
            .records
            .values()
            .filter(|record| record.head.state == State::Running)
            .count();
        Survey {
            standing: self.standing.clone(),
            account: Account {
                secret: self.secret,
                lives_since: self.lives_since,
                epoch: self.epoch,
                floor: self.floor,
                logged: self.logged,
                now,
            },
            records: self.records.len() as u64,
            running: running as u64,
        }
    }

    fn take_in(&mut self, record: Record) {
        self.floor = self.floor.max(record.head.fence);
        let here = self.records.get(&record.head.id);
        if here.is_none_or(|here| here.head.version < record.head.version) {
            self.records.insert(record.head.id, record);
        }
    }

    /// Removes everything except the floor for fences.
    fn clear(&mut self) {
        self.records.clear();
        self.log.clear();
        self.logged = 0;
    }
}
