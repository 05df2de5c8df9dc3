//! One write transaction. Every write is judged by the records that the transaction sees, and
//! reported only after the commit.

use hapax_core::audit::{LogEntry, Note};
use hapax_core::guard::{self, Due};
use hapax_core::record::Head;
use hapax_core::scope::RecordId;
use hapax_core::store::{Change, Lifetime, Put, Renewal, Seen, StoreError, Swept, Won, Written};
use hapax_core::time::{Clock, Timestamp};

use super::error::store_error;
use super::row::{self, Rows, Stored};
use super::schema::Meta;
use crate::store::sqlite_kit::audit;

pub(super) struct WriteTransaction<'a> {
    rows: Rows<'a>,
    now: Timestamp,
    meta: Meta,
    is_meta_changed: bool,
    /// A failed write fails the whole transaction, because it may have been applied in part.
    failure: Option<StoreError>,
}

impl<'a> WriteTransaction<'a> {
    /// Must be called inside an immediate transaction. The time is read here, when no other write
    /// can come in between.
    pub(super) fn new(
        rows: Rows<'a>,
        clock: &dyn Clock,
    ) -> Result<WriteTransaction<'a>, StoreError> {
        Ok(WriteTransaction {
            meta: Meta::read(rows.connection)?,
            rows,
            now: clock.now(),
            is_meta_changed: false,
            failure: None,
        })
    }

    /// Why this transaction cannot be committed.
    pub(super) fn failure(&self) -> Option<StoreError> {
        // After some errors SQLite rolls the transaction back by itself. Each later statement would
        // then be committed alone.
        let taken_back = || {
            self.rows
                .connection
                .is_autocommit()
                .then(|| StoreError::unavailable("the transaction was taken back"))
        };
        self.failure.clone().or_else(taken_back)
    }

    /// `content` is the encoded answer of the change.
    pub(super) fn put_if(
        &mut self,
        put: &Put,
        content: Option<&[u8]>,
    ) -> Result<Written, StoreError> {
        let (current, now) = (self.rows.find(&put.id)?, self.now);
        let before = current.as_ref().map(|current| &current.head);
        let Ok(head) = guard::judge(before, put, now, self.meta.floor) else {
            let record = current
                .map(|current| self.rows.record(current, now))
                .transpose()?;
            return Ok(Written::Lost(Seen { record, now }));
        };
        if let Some(entry) = LogEntry::of(put, before, &head, now) {
            let written = audit::GUEST.write(self.rows.connection, entry);
            self.written(written)?;
        }
        if matches!(put.change, Change::Forget(..)) {
            self.meta.epoch += 1;
            self.is_meta_changed = true;
        }
        self.replace(current.as_ref(), &head, content)?;
        Ok(Written::Won(Won { head, now }))
    }

    pub(super) fn renew(&mut self, renewals: &[Renewal]) -> Result<Vec<bool>, StoreError> {
        renewals
            .iter()
            .map(|renewal| self.renew_one(renewal))
            .collect()
    }

    fn renew_one(&mut self, renewal: &Renewal) -> Result<bool, StoreError> {
        let Some(current) = self.rows.find(&renewal.id)? else {
            return Ok(false);
        };
        let Ok(head) = guard::renew(Some(&current.head), renewal, self.now) else {
            return Ok(false);
        };
        let written = row::write(self.rows.connection, &head, current.answer);
        self.written(written)?;
        Ok(true)
    }

    pub(super) fn sweep(&mut self, limit: usize) -> Result<Swept, StoreError> {
        let mut swept = Swept::default();
        for current in self.rows.due(self.now, limit)? {
            let Some(due) = guard::due(&current.head, Lifetime::default(), self.now) else {
                continue;
            };
            swept.count(&due);
            match due {
                Due::Lost(head) => self.replace(Some(&current), &head, None)?,
                Due::Buried => self.replace(
                    Some(&current),
                    &Head {
                        kept: false,
                        ..current.head.clone()
                    },
                    None,
                )?,
                Due::Removed => self.remove(&current)?,
            }
        }
        let unlogged =
            audit::GUEST.remove_old(self.rows.connection, self.now, limit - swept.total());
        swept.unlogged = self.written(unlogged)?;
        Ok(swept)
    }

    pub(super) fn note(&mut self, note: Note) -> Result<LogEntry, StoreError> {
        let written = audit::GUEST.write(self.rows.connection, LogEntry::noted(note, self.now));
        self.written(written)
    }

    /// Writes the changed store-wide values, unless the transaction has failed.
    pub(super) fn close(mut self) -> Result<(), StoreError> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        if self.is_meta_changed || self.meta.is_behind(self.now) {
            let written = self.meta.write(self.rows.connection, self.now);
            self.written(written)?;
        }
        Ok(())
    }

    fn replace(
        &mut self,
        before: Option<&Stored>,
        head: &Head,
        content: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        let connection = self.rows.connection;
        let replace = || {
            before
                .and_then(|before| before.answer)
                .map_or(Ok(()), |answer| row::remove_answer(connection, answer))?;
            let answer = content
                .map(|content| row::write_answer(connection, content))
                .transpose()?;
            row::write(connection, head, answer)
        };
        self.written(replace())
    }

    fn remove(&mut self, current: &Stored) -> Result<(), StoreError> {
        self.meta.floor = self.meta.floor.max(current.head.fence);
        self.is_meta_changed = true;
        let (connection, id): (_, &RecordId) = (self.rows.connection, &current.head.id);
        let removed = current
            .answer
            .map_or(Ok(()), |answer| row::remove_answer(connection, answer));
        self.written(removed.and_then(|()| row::remove(connection, id)))
    }

    fn written<T>(&mut self, result: rusqlite::Result<T>) -> Result<T, StoreError> {
        result.map_err(|error| {
            let error = store_error(error);
            self.failure.get_or_insert(error).clone()
        })
    }
}
