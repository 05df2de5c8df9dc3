//! One write transaction: judges, writes, and remembers the changes of the writer state until they
//! are durable.

mod import;

use std::collections::HashMap;
use std::sync::Arc;

use hapax_core::audit::{LogEntry, Note};
use hapax_core::fingerprint::FingerprintPolicy;
use hapax_core::guard::{self, Due};
use hapax_core::record::{Head, State};
use hapax_core::scope::RecordId;
use hapax_core::store::{
    Change, KnownPrincipal, Lifetime, Put, Reading, Renewal, Seen, StoreError, StoreErrorKind,
    Swept, Won, Written,
};
use hapax_core::time::{Clock, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};

use super::index::{Move, Running, To};
use super::index_snapshot;
use super::policies::Policies;
use super::principals;
use super::row::{self, Leases, Rows, Stored, queries};
use super::row_number::{RowNumber, bounds};
use super::schema::Meta;
use super::seal::{self, Sealed, Seals};
use super::writer_state::{Kind, WriterState};
use crate::hash::Ids;
use crate::store::codec::micros;
use crate::store::sqlite_kit::audit;
use crate::store::sqlite_kit::error::{is_damage, is_suspect, store_error};
use crate::store::sqlite_kit::row::get;

/// How often the clock is saved at least, so that it does not start much earlier after a restart on
/// a machine that lost its own time.
const CLOCK_STEP: std::time::Duration = std::time::Duration::from_secs(10);

/// One open transaction.
pub(super) struct WriteTransaction<'a> {
    rows: Rows<'a>,
    incarnation: i64,
    clock: &'a dyn Clock,
    writer_state: &'a mut WriterState,
    /// The store-wide values, and whether they have changed.
    meta: Meta,
    is_meta_changed: bool,
    seals: Seals,
    /// Whether the latest write removed an answer without a seal, whose bytes may therefore be
    /// left.
    is_left_open: bool,
    /// Records that this transaction has changed, in their new state, which the writer state does
    /// not have yet.
    changed: HashMap<RecordId, Option<Stored>, Ids>,
    pending: Pending,
    failure: Option<Failure>,
}

/// The changes of the writer state, applied when the transaction is durable.
#[derive(Default)]
struct Pending {
    moves: Vec<Move>,
    snapshotted: Vec<u16>,
    policies: Vec<(Arc<FingerprintPolicy>, i64)>,
    /// The expiry of refused records, and whether each was added or removed.
    refused: Vec<(Timestamp, bool)>,
}

/// The due rows at the front of a queue.
#[derive(Clone, Copy)]
struct Front {
    last: RowNumber,
    count: usize,
}

/// A failed write, which fails the whole transaction: it may have been applied in part.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) error: StoreError,
    /// Whether the connection can no longer be trusted.
    pub(super) is_suspect: bool,
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        let is_suspect = is_suspect(&error);
        let error = match store_error(error) {
            // Other callers in this transaction have sound records: for them the store is
            // unavailable.
            error if error.kind() != StoreErrorKind::Unavailable => StoreError::unavailable(
                "a write failed on a damaged part of the store file: restore a backup",
            )
            .because(error),
            error => error,
        };
        Failure { error, is_suspect }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Failure {
            error,
            is_suspect: false,
        }
    }
}

impl<'a> WriteTransaction<'a> {
    pub(super) fn open(
        connection: &'a Connection,
        policies: &'a Policies,
        incarnation: i64,
        clock: &'a dyn Clock,
        writer_state: &'a mut WriterState,
    ) -> Result<WriteTransaction<'a>, Failure> {
        connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let rows = Rows {
            connection,
            policies,
            leases: Leases::Of(incarnation),
        };
        let (seals, changed, pending, meta) = (
            Seals::default(),
            HashMap::default(),
            Pending::default(),
            writer_state.meta.clone(),
        );
        let mut transaction = WriteTransaction {
            rows,
            incarnation,
            clock,
            writer_state,
            meta,
            is_meta_changed: false,
            seals,
            is_left_open: false,
            changed,
            pending,
            failure: None,
        };
        if let Err(failure) = transaction.begin() {
            transaction.roll_back();
            return Err(failure);
        }
        Ok(transaction)
    }

    fn begin(&mut self) -> Result<(), Failure> {
        // The owner's lock can be lost with its file, so the incarnation in the store file is
        // checked too.
        let owner: i64 = self
            .rows
            .connection
            .prepare_cached("SELECT incarnation FROM meta")?
            .query_row([], |row| row.get(0))?;
        if owner != self.incarnation {
            let error = StoreError::unavailable(
                "another process has opened the store file since: this one must stop",
            );
            return Err(Failure {
                error,
                is_suspect: false,
            });
        }
        self.pending.snapshotted = self.writer_state.snapshot.write(self.rows.connection)?;
        Ok(())
    }

    /// Why this transaction cannot be committed, if it cannot.
    pub(super) fn failure(&mut self) -> Option<&Failure> {
        // On a full disk SQLite rolls the whole transaction back by itself. Each later statement
        // would then be committed alone.
        if self.failure.is_none() && self.rows.connection.is_autocommit() {
            let error = StoreError::unavailable("the store file could not be written");
            self.failure = Some(Failure {
                error,
                is_suspect: true,
            });
        }
        self.failure.as_ref()
    }

    /// Makes everything durable, then applies it to the writer state.
    pub(super) fn commit(mut self) -> Result<(), Failure> {
        if let Some(failure) = self.failure().cloned() {
            self.roll_back();
            return Err(failure);
        }
        let result = if self.is_meta_changed {
            self.meta.write(self.rows.connection)
        } else {
            Ok(())
        };
        if let Err(error) = result
            .and_then(|()| self.rows.connection.prepare_cached("COMMIT"))
            .and_then(|mut commit| commit.execute([]))
        {
            self.roll_back();
            return Err(error.into());
        }
        self.writer_state.meta = self.meta;
        self.writer_state
            .snapshot
            .take_off(&self.pending.snapshotted);
        self.pending
            .policies
            .iter()
            .for_each(|(policy, number)| self.rows.policies.remember(policy, *number));
        self.pending
            .moves
            .into_iter()
            .for_each(|moved| self.writer_state.apply(moved));
        for (until, is_refused) in self.pending.refused {
            self.writer_state.index.count_refused(until, is_refused);
        }
        Ok(())
    }

    fn roll_back(&self) {
        if !self.rows.connection.is_autocommit()
            && let Err(error) = self.rows.connection.execute_batch("ROLLBACK")
        {
            tracing::error!(%error, "a failed write could not be taken back");
        }
    }

    /// Remembers the failure of a write.
    fn written<T>(&mut self, result: rusqlite::Result<T>) -> Result<T, StoreError> {
        result.map_err(|error| {
            let failure = Failure::from(error);
            self.failure = Some(failure.clone());
            failure.error
        })
    }

    fn find(&self, id: &RecordId) -> Result<Option<Stored>, StoreError> {
        if let Some(stored) = self.changed.get(id) {
            return Ok(stored.clone());
        }
        self.rows
            .look_up(id, self.writer_state.index.find(id))?
            .settled()
    }

    pub(super) fn get(&self, ids: &[RecordId]) -> Result<Reading, StoreError> {
        let now = self.clock.now();
        let record = |id| {
            self.find(id)?
                .map(|stored| self.rows.record(stored, now))
                .transpose()
        };
        Ok(Reading {
            records: ids.iter().map(record).collect::<Result<_, StoreError>>()?,
            now,
        })
    }

    /// `answer` is the encoded and sealed answer of the change.
    pub(super) fn put_if(
        &mut self,
        put: &Put,
        answer: Option<&mut Sealed>,
    ) -> Result<Written, StoreError> {
        self.is_left_open = false;
        let current = self.find(&put.id)?;
        let now = self.clock.now();
        match guard::judge(
            current.as_ref().map(|stored| &*stored.head),
            put,
            now,
            self.meta.floor,
        ) {
            Err(guard::Refused) => {
                let record = current
                    .map(|stored| self.rows.record(stored, now))
                    .transpose()?;
                Ok(Written::Lost(Seen { record, now }))
            }
            Ok(head) => {
                let entry = LogEntry::of(
                    put,
                    current.as_ref().map(|stored| &*stored.head),
                    &head,
                    now,
                );
                let result = self.write(current.as_ref(), head.clone(), answer);
                self.written(result)?;
                if let Some(entry) = entry {
                    self.log(entry)?;
                }
                if matches!(put.change, Change::Forget(..)) {
                    self.meta.epoch += 1;
                    self.is_meta_changed = true;
                }
                Ok(Written::Won(Won { head, now }))
            }
        }
    }

    /// Whether the latest write removed an answer without a seal.
    pub(super) fn is_left_open(&self) -> bool {
        self.is_left_open
    }

    pub(super) fn remember(&mut self, principals: &[KnownPrincipal]) -> Result<(), StoreError> {
        let result = principals::remember(self.rows.connection, principals);
        self.written(result)
    }

    pub(super) fn note(&mut self, note: Note) -> Result<LogEntry, StoreError> {
        self.log(LogEntry::noted(note, self.clock.now()))
    }

    fn log(&mut self, entry: LogEntry) -> Result<LogEntry, StoreError> {
        let result = audit::OWN.write(self.rows.connection, entry);
        self.written(result)
    }

    pub(super) fn renew(&mut self, renewals: &[Renewal]) -> Result<Vec<bool>, StoreError> {
        let mut renewed = Vec::with_capacity(renewals.len());
        for renewal in renewals {
            let current = self.find(&renewal.id)?;
            let now = self.clock.now();
            let judged = guard::renew(current.as_ref().map(|stored| &*stored.head), renewal, now);
            renewed.push(judged.is_ok());
            if let Ok(head) = judged {
                let result = self.write(current.as_ref(), head, None);
                self.written(result)?;
            }
        }
        Ok(renewed)
    }

    pub(super) fn sweep(&mut self, limit: usize) -> Result<Swept, StoreError> {
        let now = self.clock.now();
        self.writer_state.has_swept = true;
        let mut swept = Swept::default();
        for id in self.writer_state.index.lapsed(now, limit) {
            // This batch may have renewed or ended it.
            let Some(stored) = self.find(&id)? else {
                continue;
            };
            if let Some(Due::Lost(head)) = guard::due(&stored.head, Lifetime::default(), now) {
                swept.lost += 1;
                let result = self.write(Some(&stored), *head, None);
                self.written(result)?;
            }
        }
        swept.buried = self.sweep_queues(Kind::Answers, now, limit - swept.total())?;
        swept.removed = self.sweep_queues(Kind::Heads, now, limit - swept.total())?;
        let result = audit::OWN.remove_old(self.rows.connection, now, limit - swept.total());
        swept.unlogged = self.written(result)?;
        let result = principals::remove_unknown(self.rows.connection, now, limit);
        self.written(result)?;
        if swept.total() > 0 || now >= self.writer_state.meta.clock.after(CLOCK_STEP) {
            // Save the floor and the time, so that after a restart the clock does not start before
            // this.
            self.meta = self.meta.at(now);
            self.is_meta_changed = true;
        }
        Ok(swept)
    }

    /// Removes the due rows from the front of every queue. A damaged queue is skipped, because its
    /// rows cannot be trusted to be due; the others are swept.
    fn sweep_queues(
        &mut self,
        kind: Kind,
        now: Timestamp,
        limit: usize,
    ) -> Result<usize, StoreError> {
        let mut swept = 0;
        for queue in self.writer_state.queues(kind).numbers().collect::<Vec<_>>() {
            if self.writer_state.damaged.contains(&(kind, queue)) {
                continue;
            }
            let due = match kind {
                Kind::Answers => self.due_answers(queue, now, limit - swept),
                Kind::Heads => self.due_heads(queue, now, limit - swept),
            };
            match due {
                Ok(None) => {}
                Ok(Some(due)) => {
                    swept += due.count;
                    let result = self.remove(kind, due);
                    self.written(result)?;
                }
                Err(error) if error.kind() == StoreErrorKind::Unavailable && !is_damage(&error) => {
                    return Err(error);
                }
                Err(error) => {
                    tracing::error!(%error, ?kind, queue, "a part of the store file is damaged and is no longer swept: restore a backup");
                    self.writer_state.damaged.insert((kind, queue));
                }
            }
        }
        Ok(swept)
    }

    fn due_answers(
        &self,
        queue: u16,
        now: Timestamp,
        limit: usize,
    ) -> Result<Option<Front>, StoreError> {
        let sql = "SELECT row, due FROM answers WHERE row >= ?1 AND row < ?2 ORDER BY row LIMIT ?3";
        let (start, end) = bounds(queue);
        let mut front: Option<Front> = None;
        queries(self.rows.connection).each(sql, params![start, end, limit as i64], |row| {
            let is_due = get::<i64>(row, 1)? <= micros(now);
            if is_due {
                front = Some(Front {
                    last: RowNumber::from_row(get(row, 0)?),
                    count: front.map_or(0, |front| front.count) + 1,
                });
            }
            Ok(is_due)
        })?;
        Ok(front)
    }

    fn due_heads(
        &mut self,
        queue: u16,
        now: Timestamp,
        limit: usize,
    ) -> Result<Option<Front>, StoreError> {
        let mut due = Vec::new();
        self.rows
            .front(queue, limit, |row_number, id, fence, until| {
                let is_due = until <= now;
                if is_due {
                    due.push((row_number, id, fence));
                }
                is_due
            })?;
        let Some((last, ..)) = due.last().copied() else {
            return Ok(None);
        };
        let count = due.len();
        for (row_number, id, fence) in due {
            self.meta.floor = self.meta.floor.max(fence);
            self.changed.insert(id, None);
            self.pending.moves.push(Move {
                id,
                from: Some(row_number),
                to: To::Nowhere,
            });
        }
        Ok(Some(Front { last, count }))
    }

    fn remove(&mut self, kind: Kind, Front { last, .. }: Front) -> rusqlite::Result<()> {
        let connection = self.rows.connection;
        let (start, _) = bounds(last.queue());
        match kind {
            Kind::Answers => {
                connection
                    .prepare_cached("DELETE FROM answers WHERE row >= ?1 AND row <= ?2")?
                    .execute([start, last.row()])?;
                self.seals.erase_through(connection, last)
            }
            Kind::Heads => {
                connection
                    .prepare_cached("DELETE FROM heads WHERE row >= ?1 AND row <= ?2")?
                    .execute([start, last.row()])?;
                index_snapshot::pass(connection, last)
            }
        }
    }

    /// Writes a head and its answer. The head gets a new row, unless it was and stays in the open
    /// queue. Its previous answer is removed and erased.
    fn write(
        &mut self,
        before: Option<&Stored>,
        head: Head,
        answer: Option<&mut Sealed>,
    ) -> rusqlite::Result<()> {
        let connection = self.rows.connection;
        let policy = self.policy(&head)?;
        let answer = answer
            .map(|answer| self.append_answer(&head, answer))
            .transpose()?;
        if let Some(before) = before
            && let Some(old) = before.answer
        {
            // Matched by its time too: the expired answer may be gone already, and its row used
            // again.
            let sql =
                "DELETE FROM answers WHERE row = ?1 AND due = ?2 RETURNING substr(content, 1, 1)";
            let columns = [old.row(), micros(before.head.expires_at)];
            let removed: Option<Vec<u8>> = connection
                .prepare_cached(sql)?
                .query_row(columns, |row| row.get(0))
                .optional()?;
            if let Some(first) = removed {
                self.seals.erase(connection, old)?;
                self.is_left_open |= seal::is_open(&first);
            }
        }
        let row_number = match before {
            Some(before) if before.row_number.is_open() && head.state.is_open() => {
                before.row_number
            }
            Some(before) => {
                self.leave(before.row_number)?;
                self.writer_state.row_number(&head)
            }
            None => self.writer_state.row_number(&head),
        };
        let stored = Stored {
            row_number,
            head: Arc::new(head),
            answer,
        };
        row::write(connection, &stored, policy, self.incarnation)?;
        self.moved(before, stored);
        Ok(())
    }

    fn leave(&self, row_number: RowNumber) -> rusqlite::Result<()> {
        let connection = self.rows.connection;
        connection
            .prepare_cached("DELETE FROM heads WHERE row = ?1")?
            .execute([row_number.row()])?;
        if !row_number.is_open()
            && self
                .writer_state
                .snapshot
                .names(row_number, &self.pending.snapshotted)
        {
            index_snapshot::vacate(connection, row_number)?;
        }
        Ok(())
    }

    fn append_answer(&mut self, head: &Head, answer: &mut Sealed) -> rusqlite::Result<RowNumber> {
        let row_number = self.writer_state.answers.append(head.expires_at);
        let seal = self.seals.take(self.rows.connection, row_number)?;
        let mut statement = self
            .rows
            .connection
            .prepare_cached("INSERT INTO answers (row, due, content) VALUES (?1, ?2, ?3)")?;
        statement.execute(params![
            row_number.row(),
            micros(head.expires_at),
            answer.under(&seal)
        ])?;
        Ok(row_number)
    }

    fn policy(&mut self, head: &Head) -> rusqlite::Result<Option<i64>> {
        let Some(fingerprint) = &head.fingerprint else {
            return Ok(None);
        };
        let number = self
            .rows
            .policies
            .number(self.rows.connection, &fingerprint.policy)?;
        if !number.is_known {
            self.pending
                .policies
                .push((fingerprint.policy.clone(), number.number));
        }
        Ok(Some(number.number))
    }

    fn moved(&mut self, before: Option<&Stored>, stored: Stored) {
        for (head, is_now) in before
            .map(|before| (&before.head, false))
            .into_iter()
            .chain([(&stored.head, true)])
        {
            if head.is_refused() {
                self.pending.refused.push((head.tombstone_until, is_now));
            }
        }
        let to = match stored.head.state {
            State::Running => To::Running(Running {
                row_number: stored.row_number,
                head: stored.head.clone(),
            }),
            _ => To::Row(stored.row_number),
        };
        let id = stored.head.id;
        self.pending.moves.push(Move {
            id,
            from: before.map(|before| before.row_number),
            to,
        });
        self.changed.insert(id, Some(stored));
    }
}
