//! One open transaction of the writer: judges, writes, and remembers what to put into the book once
//! it is durable.

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

use super::book::{Book, Kind};
use super::index::{Move, Running, To};
use super::place::{Place, bounds};
use super::policies::Policies;
use super::principals;
use super::roll;
use super::row::{self, Leases, Rows, Stored};
use super::schema::Meta;
use super::seal::{self, Sealed, Seals};
use crate::hash::Ids;
use crate::store::codec::micros;
use crate::store::sqlite_kit::audit;
use crate::store::sqlite_kit::error::{is_damage, is_suspect, store_error};

/// The clock is written down at least so often, so that it does not begin much earlier after a
/// restart on a machine that lost its own.
const CLOCK_STEP: std::time::Duration = std::time::Duration::from_secs(10);

/// One open transaction.
pub(super) struct Page<'a> {
    rows: Rows<'a>,
    incarnation: i64,
    clock: &'a dyn Clock,
    book: &'a mut Book,
    /// What the store says of itself, and whether that has changed.
    meta: Meta,
    is_meta_changed: bool,
    seals: Seals,
    /// Whether the latest write removed an answer that was not sealed, so that its bytes may be
    /// left.
    is_left_open: bool,
    /// Records that this transaction has changed, as they are now; the book does not know yet.
    changed: HashMap<RecordId, Option<Stored>, Ids>,
    noted: Noted,
    failure: Option<Failure>,
}

/// What the book learns when the transaction is durable.
#[derive(Default)]
struct Noted {
    moves: Vec<Move>,
    rolled: Vec<u16>,
    policies: Vec<(Arc<FingerprintPolicy>, i64)>,
    /// Until when a record is kept that was refused, and whether it is now or was before.
    refused: Vec<(Timestamp, bool)>,
}

/// The rows at the front of a lane that are due.
#[derive(Clone, Copy)]
struct Front {
    last: Place,
    count: usize,
}

/// A write failed, which dooms the whole transaction: it may have written half of what it meant to.
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
            // Others were in this transaction whose own records are sound: for them the store is
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

impl<'a> Page<'a> {
    pub(super) fn open(
        connection: &'a Connection,
        policies: &'a Policies,
        incarnation: i64,
        clock: &'a dyn Clock,
        book: &'a mut Book,
    ) -> Result<Page<'a>, Failure> {
        connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let rows = Rows {
            connection,
            policies,
            leases: Leases::Of(incarnation),
        };
        let (seals, changed, noted, meta) = (
            Seals::default(),
            HashMap::default(),
            Noted::default(),
            book.meta.clone(),
        );
        let mut page = Page {
            rows,
            incarnation,
            clock,
            book,
            meta,
            is_meta_changed: false,
            seals,
            is_left_open: false,
            changed,
            noted,
            failure: None,
        };
        if let Err(failure) = page.begin() {
            page.roll_back();
            return Err(failure);
        }
        Ok(page)
    }

    fn begin(&mut self) -> Result<(), Failure> {
        // The lock on a file beside can be lost with that file; what the store file itself says
        // cannot.
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
        self.noted.rolled = self.book.roll.write(self.rows.connection)?;
        Ok(())
    }

    /// Why nothing of this page will count, if so.
    pub(super) fn failure(&mut self) -> Option<&Failure> {
        // On a full disk SQLite gives up the whole transaction by itself; what came after would
        // commit one by one.
        if self.failure.is_none() && self.rows.connection.is_autocommit() {
            let error = StoreError::unavailable("the store file could not be written");
            self.failure = Some(Failure {
                error,
                is_suspect: true,
            });
        }
        self.failure.as_ref()
    }

    /// Makes everything durable, then known.
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
        self.book.meta = self.meta;
        self.book.roll.take_off(&self.noted.rolled);
        self.noted
            .policies
            .iter()
            .for_each(|(policy, number)| self.rows.policies.note(policy, *number));
        self.noted
            .moves
            .into_iter()
            .for_each(|moved| self.book.apply(moved));
        self.noted
            .refused
            .into_iter()
            .for_each(|(until, is_refused)| self.book.index.note_refused(until, is_refused));
        Ok(())
    }

    fn roll_back(&self) {
        if !self.rows.connection.is_autocommit()
            && let Err(error) = self.rows.connection.execute_batch("ROLLBACK")
        {
            tracing::error!(%error, "a failed write could not be taken back");
        }
    }

    /// Notes that a write failed.
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
        self.rows.look_up(id, self.book.index.find(id))?.settled()
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

    /// `answer` is the change's answer as it is stored.
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

    /// Whether the latest put removed an answer that is not erased by that.
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
        self.book.has_swept = true;
        let mut swept = Swept::default();
        for id in self.book.index.lapsed(now, limit) {
            // This very batch may have renewed or ended it.
            let Some(stored) = self.find(&id)? else {
                continue;
            };
            if let Some(Due::Lost(head)) = guard::due(&stored.head, Lifetime::default(), now) {
                swept.lost += 1;
                let result = self.write(Some(&stored), *head, None);
                self.written(result)?;
            }
        }
        swept.buried = self.sweep_lanes(Kind::Answers, now, limit - swept.total())?;
        swept.removed = self.sweep_lanes(Kind::Heads, now, limit - swept.total())?;
        let result = audit::OWN.remove_old(self.rows.connection, now, limit - swept.total());
        swept.unlogged = self.written(result)?;
        let result = principals::remove_unknown(self.rows.connection, now, limit);
        self.written(result)?;
        if swept.total() > 0 || now >= self.book.meta.clock.after(CLOCK_STEP) {
            // The floor, and the clock's reading, so that after a restart it does not begin before
            // this.
            self.meta = self.meta.at(now);
            self.is_meta_changed = true;
        }
        Ok(swept)
    }

    /// Removes what is due from the front of every lane. Where one is damaged, the others go on
    /// without it: what cannot be believed is not removed either.
    fn sweep_lanes(
        &mut self,
        kind: Kind,
        now: Timestamp,
        limit: usize,
    ) -> Result<usize, StoreError> {
        let mut swept = 0;
        for lane in self.book.lanes(kind).numbers().collect::<Vec<_>>() {
            if self.book.damaged.contains(&(kind, lane)) {
                continue;
            }
            let due = match kind {
                Kind::Answers => self.due_answers(lane, now, limit - swept),
                Kind::Heads => self.due_heads(lane, now, limit - swept),
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
                    tracing::error!(%error, ?kind, lane, "a part of the store file is damaged and is no longer swept: restore a backup");
                    self.book.damaged.insert((kind, lane));
                }
            }
        }
        Ok(swept)
    }

    fn due_answers(
        &self,
        lane: u16,
        now: Timestamp,
        limit: usize,
    ) -> Result<Option<Front>, StoreError> {
        let sql = "SELECT row, due FROM answers WHERE row >= ?1 AND row < ?2 ORDER BY row LIMIT ?3";
        let mut statement = self
            .rows
            .connection
            .prepare_cached(sql)
            .map_err(store_error)?;
        let (start, end) = bounds(lane);
        let mut rows = statement
            .query(params![start, end, limit as i64])
            .map_err(store_error)?;
        let mut front = None;
        while let Some(row) = rows.next().map_err(store_error)?
            && row.get::<_, i64>(1).map_err(store_error)? <= micros(now)
        {
            let last = Place::from_row(row.get(0).map_err(store_error)?);
            front = Some(Front {
                last,
                count: front.map_or(0, |front: Front| front.count) + 1,
            });
        }
        Ok(front)
    }

    fn due_heads(
        &mut self,
        lane: u16,
        now: Timestamp,
        limit: usize,
    ) -> Result<Option<Front>, StoreError> {
        let mut due = Vec::new();
        self.rows.front(lane, limit, |place, id, fence, until| {
            let is_due = until <= now;
            if is_due {
                due.push((place, id, fence));
            }
            is_due
        })?;
        let Some((last, ..)) = due.last().copied() else {
            return Ok(None);
        };
        let count = due.len();
        for (place, id, fence) in due {
            self.meta.floor = self.meta.floor.max(fence);
            self.changed.insert(id, None);
            self.noted.moves.push(Move {
                id,
                from: Some(place),
                to: To::Nowhere,
            });
        }
        Ok(Some(Front { last, count }))
    }

    fn remove(&mut self, kind: Kind, Front { last, .. }: Front) -> rusqlite::Result<()> {
        let connection = self.rows.connection;
        let (start, _) = bounds(last.lane());
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
                roll::pass(connection, last)
            }
        }
    }

    /// Writes a head and its answer. It moves unless it stays among what no time removes; an answer
    /// it had goes, and is erased.
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
            // By its time too: past its retention it may be gone already, and the row another's.
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
        let place = match before {
            Some(before) if before.place.is_open() && head.state.is_open() => before.place,
            Some(before) => {
                self.leave(before.place)?;
                self.book.place(&head)
            }
            None => self.book.place(&head),
        };
        let stored = Stored {
            place,
            head: Arc::new(head),
            answer,
        };
        row::write(connection, &stored, policy, self.incarnation)?;
        self.moved(before, stored);
        Ok(())
    }

    fn leave(&self, place: Place) -> rusqlite::Result<()> {
        let connection = self.rows.connection;
        connection
            .prepare_cached("DELETE FROM heads WHERE row = ?1")?
            .execute([place.row()])?;
        if !place.is_open() && self.book.roll.names(place, &self.noted.rolled) {
            roll::vacate(connection, place)?;
        }
        Ok(())
    }

    fn append_answer(&mut self, head: &Head, answer: &mut Sealed) -> rusqlite::Result<Place> {
        let place = self.book.answers.append(head.expires_at);
        let seal = self.seals.take(self.rows.connection, place)?;
        let mut statement = self
            .rows
            .connection
            .prepare_cached("INSERT INTO answers (row, due, content) VALUES (?1, ?2, ?3)")?;
        statement.execute(params![
            place.row(),
            micros(head.expires_at),
            answer.under(&seal)
        ])?;
        Ok(place)
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
            self.noted
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
                self.noted.refused.push((head.tombstone_until, is_now));
            }
        }
        let to = match stored.head.state {
            State::Running => To::Running(Running {
                place: stored.place,
                head: stored.head.clone(),
            }),
            _ => To::Row(stored.place),
        };
        let id = stored.head.id;
        self.noted.moves.push(Move {
            id,
            from: before.map(|before| before.place),
            to,
        });
        self.changed.insert(id, Some(stored));
    }
}
