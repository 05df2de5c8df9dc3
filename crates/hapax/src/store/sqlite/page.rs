//! One open transaction of the writer: judges, writes, and remembers what to put into the book once it is durable.

use std::collections::HashMap;
use std::sync::Arc;

use hapax_core::fingerprint::FingerprintPolicy;
use hapax_core::guard::{self, Due};
use hapax_core::record::{Fence, Head, State};
use hapax_core::scope::RecordId;
use hapax_core::store::{Change, Lifetime, Put, Reading, Renewal, Seen, StoreError, Swept, Won, Written};
use hapax_core::time::{Clock, Timestamp};
use rusqlite::{Connection, ErrorCode, params};

use super::book::{Book, Kind};
use super::error::{is_suspect, store_error};
use super::index::{Found, Move, Running, To};
use super::place::{Place, bounds};
use super::policies::Policies;
use super::roll;
use super::row::{self, Leases, Rows, Stored, micros};
use crate::hash::Ids;

/// The clock is written down at least so often, so that it does not begin much earlier after a restart on a machine that lost its own.
const CLOCK_STEP: std::time::Duration = std::time::Duration::from_secs(10);

/// One open transaction.
pub(super) struct Page<'a> {
    rows: Rows<'a>,
    incarnation: i64,
    clock: &'a dyn Clock,
    book: &'a mut Book,
    floor: Fence,
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
    clock: Option<Timestamp>,
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
        Failure { is_suspect: is_suspect(&error), error: store_error(error) }
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
        let rows = Rows { connection, policies, leases: Leases::Of(incarnation) };
        let (changed, noted, floor) = (HashMap::default(), Noted::default(), book.floor);
        let mut page = Page { rows, incarnation, clock, book, floor, changed, noted, failure: None };
        if let Err(failure) = page.begin() {
            page.roll_back();
            return Err(failure);
        }
        Ok(page)
    }

    fn begin(&mut self) -> Result<(), Failure> {
        // The lock on a file beside can be lost with that file; what the store file itself says cannot.
        let owner: i64 = self.rows.connection.prepare_cached("SELECT incarnation FROM meta")?.query_row([], |row| row.get(0))?;
        if owner != self.incarnation {
            let error = StoreError::unavailable("another process has opened the store file since: this one must stop");
            return Err(Failure { error, is_suspect: false });
        }
        self.noted.rolled = self.book.roll.write(self.rows.connection)?;
        Ok(())
    }

    /// Why nothing of this page will count, if so.
    pub(super) fn failure(&mut self) -> Option<&Failure> {
        // On a full disk SQLite gives up the whole transaction by itself; what came after would commit one by one.
        if self.failure.is_none() && self.rows.connection.is_autocommit() {
            let error = StoreError::unavailable("the store file could not be written");
            self.failure = Some(Failure { error, is_suspect: true });
        }
        self.failure.as_ref()
    }

    /// Makes everything durable, then known.
    pub(super) fn commit(mut self) -> Result<(), Failure> {
        if let Some(failure) = self.failure().cloned() {
            self.roll_back();
            return Err(failure);
        }
        if let Err(error) = self.rows.connection.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([])) {
            self.roll_back();
            return Err(error.into());
        }
        self.book.floor = self.floor;
        self.book.roll.take_off(&self.noted.rolled);
        self.noted.policies.iter().for_each(|(policy, number)| self.rows.policies.note(policy, *number));
        self.book.clock = self.noted.clock.unwrap_or(self.book.clock);
        self.noted.moves.into_iter().for_each(|moved| self.book.apply(moved));
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
        match self.book.index.find(id) {
            Found::Absent => Ok(None),
            Found::Running(Running { place, head }) => Ok(Some(Stored { place, head, answer: None })),
            Found::Rows(places) => self.rows.find(id, &places),
        }
    }

    pub(super) fn get(&self, ids: &[RecordId]) -> Result<Reading, StoreError> {
        let now = self.clock.now();
        let record = |id| self.find(id)?.map(|stored| self.rows.record(stored, now)).transpose();
        Ok(Reading { records: ids.iter().map(record).collect::<Result<_, StoreError>>()?, now })
    }

    /// `answer` is the change's answer as it is stored.
    pub(super) fn put_if(&mut self, put: &Put, answer: Option<&[u8]>) -> Result<Written, StoreError> {
        let current = self.find(&put.id)?;
        let now = self.clock.now();
        match guard::judge(current.as_ref().map(|stored| &*stored.head), put, now, self.floor) {
            Err(guard::Refused) => {
                let record = current.map(|stored| self.rows.record(stored, now)).transpose()?;
                Ok(Written::Lost(Seen { record, now }))
            }
            Ok(head) => {
                let result = self.write(current.as_ref(), head.clone(), answer);
                self.written(result)?;
                if matches!(put.change, Change::Forget(_)) {
                    let result = self.rows.connection.execute("UPDATE meta SET epoch = epoch + 1", []);
                    self.written(result)?;
                }
                Ok(Written::Won(Won { head, now }))
            }
        }
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
        let mut swept = Swept::default();
        for id in self.book.index.lapsed(now, limit) {
            // This very batch may have renewed or ended it.
            let Some(stored) = self.find(&id)? else { continue };
            if let Some(due @ Due::Lost(_)) = guard::due(&stored.head, Lifetime::default(), now) {
                swept.count(&due);
                let Due::Lost(head) = due else { unreachable!("as matched") };
                let result = self.write(Some(&stored), *head, None);
                self.written(result)?;
            }
        }
        swept.buried = self.sweep_lanes(Kind::Answers, now, limit - swept.total())?;
        swept.removed = self.sweep_lanes(Kind::Heads, now, limit - swept.total())?;
        if swept.total() > 0 || now >= self.book.clock.after(CLOCK_STEP) {
            let result = self.write_meta(now);
            self.written(result)?;
        }
        Ok(swept)
    }

    /// Removes what is due from the front of every lane. Of a lane that cannot be read, everything else goes on without it.
    fn sweep_lanes(&mut self, kind: Kind, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        let mut swept = 0;
        for lane in self.book.lanes(kind).numbers().collect::<Vec<_>>() {
            if self.book.damaged.contains(&(kind, lane)) {
                continue;
            }
            let result = match kind {
                Kind::Answers => self.sweep_answers(lane, now, limit - swept),
                Kind::Heads => self.sweep_heads(lane, now, limit - swept),
            };
            if let Err(error) = &result
                && error.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt)
            {
                tracing::error!(%error, ?kind, lane, "a part of the store file is damaged and is no longer swept: restore a backup");
                self.book.damaged.insert((kind, lane));
            }
            swept += self.written(result)?;
        }
        Ok(swept)
    }

    /// Drops answers; their heads tell by the time that they are gone.
    fn sweep_answers(&mut self, lane: u16, now: Timestamp, limit: usize) -> rusqlite::Result<usize> {
        let connection = self.rows.connection;
        let sql = "SELECT row, due FROM answers WHERE row >= ?1 AND row < ?2 ORDER BY row LIMIT ?3";
        let mut statement = connection.prepare_cached(sql)?;
        let (start, end) = bounds(lane);
        let mut rows = statement.query(params![start, end, limit as i64])?;
        let (mut last, mut count) = (None, 0);
        while let Some(row) = rows.next()?
            && row.get::<_, i64>(1)? <= micros(now)
        {
            (last, count) = (Some(row.get::<_, i64>(0)?), count + 1);
        }
        drop(rows);
        if let Some(last) = last {
            connection.prepare_cached("DELETE FROM answers WHERE row >= ?1 AND row <= ?2")?.execute([start, last])?;
        }
        Ok(count)
    }

    /// Removes tombstones.
    fn sweep_heads(&mut self, lane: u16, now: Timestamp, limit: usize) -> rusqlite::Result<usize> {
        let connection = self.rows.connection;
        let sql = "SELECT row, tombstone_until, id, fence FROM heads WHERE row >= ?1 AND row < ?2 ORDER BY row LIMIT ?3";
        let mut statement = connection.prepare_cached(sql)?;
        let (start, end) = bounds(lane);
        let mut rows = statement.query(params![start, end, limit as i64])?;
        let (mut last, mut count) = (None, 0);
        while let Some(row) = rows.next()?
            && row.get::<_, i64>(1)? <= micros(now)
        {
            let place = Place::from_row(row.get(0)?);
            let id = RecordId::from_bytes(row.get(2)?);
            self.floor = self.floor.max(Fence::from_u64(row.get::<_, i64>(3)?.unsigned_abs()));
            self.changed.insert(id, None);
            self.noted.moves.push(Move { id, from: Some(place), to: To::Nowhere });
            (last, count) = (Some(place), count + 1);
        }
        drop(rows);
        if let Some(last) = last {
            connection.prepare_cached("DELETE FROM heads WHERE row >= ?1 AND row <= ?2")?.execute([start, last.row()])?;
            roll::pass(connection, last)?;
        }
        Ok(count)
    }

    /// The floor, and the clock's reading, so that after a restart it does not begin before this.
    fn write_meta(&mut self, now: Timestamp) -> rusqlite::Result<()> {
        let sql = "UPDATE meta SET floor = ?1, clock_us = max(clock_us, ?2), boot_us = boot_us + max(0, ?2 - clock_us)";
        self.rows.connection.prepare_cached(sql)?.execute([self.floor.as_u64() as i64, micros(now)])?;
        self.noted.clock = Some(now);
        Ok(())
    }

    /// Writes a head and its answer. It moves unless it stays among what no time removes; an answer it had goes.
    fn write(&mut self, before: Option<&Stored>, head: Head, answer: Option<&[u8]>) -> rusqlite::Result<()> {
        let connection = self.rows.connection;
        let policy = self.policy(&head)?;
        let answer = answer.map(|answer| self.append_answer(&head, answer)).transpose()?;
        if let Some(before) = before
            && let Some(old) = before.answer
        {
            // By its time too: past its retention it may be gone already, and the row another's.
            let mut statement = connection.prepare_cached("DELETE FROM answers WHERE row = ?1 AND due = ?2")?;
            statement.execute([old.row(), micros(before.head.expires_at)])?;
        }
        let mut place = self.book.place(&head);
        if let Some(before) = before {
            if before.place.is_open() && place.is_open() {
                place = before.place;
            } else {
                connection.prepare_cached("DELETE FROM heads WHERE row = ?1")?.execute([before.place.row()])?;
            }
        }
        let stored = Stored { place, head: Arc::new(head), answer };
        row::write(connection, &stored, policy, self.incarnation)?;
        self.note(before, stored);
        Ok(())
    }

    fn append_answer(&mut self, head: &Head, answer: &[u8]) -> rusqlite::Result<Place> {
        let place = self.book.answers.append(head.expires_at);
        let mut statement = self.rows.connection.prepare_cached("INSERT INTO answers (row, due, content) VALUES (?1, ?2, ?3)")?;
        statement.execute(params![place.row(), micros(head.expires_at), answer])?;
        Ok(place)
    }

    fn policy(&mut self, head: &Head) -> rusqlite::Result<Option<i64>> {
        let Some(fingerprint) = &head.fingerprint else { return Ok(None) };
        let number = self.rows.policies.number(self.rows.connection, &fingerprint.policy)?;
        if !number.is_known {
            self.noted.policies.push((fingerprint.policy.clone(), number.number));
        }
        Ok(Some(number.number))
    }

    fn note(&mut self, before: Option<&Stored>, stored: Stored) {
        let to = match stored.head.state {
            State::Running => To::Running(Running { place: stored.place, head: stored.head.clone() }),
            _ => To::Row(stored.place),
        };
        let id = stored.head.id;
        self.noted.moves.push(Move { id, from: before.map(|before| before.place), to });
        self.changed.insert(id, Some(stored));
    }
}
