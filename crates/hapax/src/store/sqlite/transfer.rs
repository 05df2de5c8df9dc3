//! Copies everything from the file into another store, or the reverse.

use hapax_core::audit::{LogEntry, LogQuery, PAGE_MAX};
use hapax_core::record::{Head, Record};
use hapax_core::scope::RecordId;
use hapax_core::store::{Reply, Store, StoreError};
use hapax_core::time::Timestamp;
use hapax_core::transfer::{
    Account, CopyId, Left, Page, Passage, Position, Shipment, Standing, Survey, Transfer,
    out_of_turn, shipped,
};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::Sqlite;
use super::index::{Entry, Index, prefix};
use super::row::{Rows, missing};
use super::schema::Meta;
use super::seal::{self, Sealed};
use super::transaction::Failure;
use super::writer::Command;
use crate::store::codec::not_copied;
use crate::store::sqlite_kit::audit;
use crate::store::sqlite_kit::error::store_error;

impl Transfer for Sqlite {
    fn survey(&self) -> Reply<'_, Survey> {
        let (shared, index) = (self.shared.clone(), self.shared.index());
        self.readers
            .ask(move |connection| survey(connection, &*index?, shared.clock.now()))
    }

    /// This process owns the file alone, so no lease can be live.
    fn leave(&self, copy: Passage) -> Reply<'_, Left> {
        let left = self.turn(StandingChange::Leave(copy));
        Box::pin(async {
            if left.await? {
                Ok(Left::Left)
            } else {
                Err(out_of_turn())
            }
        })
    }

    fn export(&self, after: Option<RecordId>, page: Page) -> Reply<'_, Vec<Record>> {
        let (shared, index) = (self.shared.clone(), self.shared.index());
        self.readers.ask(move |connection| {
            export(
                shared.rows(connection),
                &*index?,
                after,
                page,
                shared.clock.now(),
            )
        })
    }

    fn entries(&self, after: u64) -> Reply<'_, Vec<LogEntry>> {
        self.log(LogQuery::after(after, PAGE_MAX))
    }

    fn moved(&self, copy: CopyId) -> Reply<'_, ()> {
        in_turn(self.turn(StandingChange::Moved(copy)))
    }

    fn give_up(&self) -> Reply<'_, ()> {
        in_turn(self.turn(StandingChange::GiveUp))
    }

    fn arrive(&self, copy: Passage, account: Account) -> Reply<'_, bool> {
        self.turn(StandingChange::Arrive(copy, account))
    }

    fn import(&self, copy: CopyId, shipment: Shipment) -> Reply<'_, ()> {
        let mut arrived = Arrived::new(copy, shipment);
        self.writer.write(arrived.bytes(), move |transaction| {
            transaction.import(&mut arrived)
        })
    }

    fn settle_in(&self, copy: CopyId, account: Account) -> Reply<'_, ()> {
        in_turn(self.turn(StandingChange::SettleIn(copy, account)))
    }
}

impl Sqlite {
    fn turn(&self, turn: StandingChange) -> Reply<'_, bool> {
        self.writer
            .ask(|reply| Command::StandingChange(Box::new(turn), reply))
    }
}

fn in_turn(turned: Reply<'_, bool>) -> Reply<'_, ()> {
    Box::pin(async {
        if turned.await? {
            Ok(())
        } else {
            Err(out_of_turn())
        }
    })
}

/// A shipment ready to be written. The caller's task has encoded and sealed the answers.
pub(super) struct Arrived {
    pub(super) copy: CopyId,
    pub(super) records: Vec<(Head, Option<Sealed>)>,
    pub(super) log: Vec<LogEntry>,
    pub(super) position: Position,
}

impl Arrived {
    fn new(copy: CopyId, shipment: Shipment) -> Arrived {
        let Shipment {
            records,
            log,
            position,
        } = shipment;
        let seal = |Record { head, answer }: Record| {
            let answer = answer.map(|answer| Sealed::new(&answer.encode(&head.id)));
            (head, answer)
        };
        Arrived {
            copy,
            records: records.into_iter().map(seal).collect(),
            log,
            position,
        }
    }

    /// Its approximate size in memory.
    pub(super) fn bytes(&self) -> usize {
        let answers: usize = self
            .records
            .iter()
            .filter_map(|(_, answer)| answer.as_ref())
            .map(Sealed::len)
            .sum();
        answers + size_of_val(&*self.records) + size_of_val(&*self.log)
    }
}

/// A change of the store's standing.
pub(super) enum StandingChange {
    Leave(Passage),
    Moved(CopyId),
    GiveUp,
    Arrive(Passage, Account),
    SettleIn(CopyId, Account),
}

/// The result of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StandingResult {
    /// The current standing does not allow the change; nothing was changed.
    Refused,
    Done,
    /// The change emptied the file.
    Cleared,
}

/// Changes the store's standing, in one transaction.
pub(super) fn turn(
    connection: &Connection,
    incarnation: i64,
    turn: &StandingChange,
) -> Result<StandingResult, Failure> {
    let transaction = connection.unchecked_transaction()?;
    let (mut meta, standing) = (Meta::read(connection)?, standing(connection)?);
    if meta.incarnation != incarnation {
        return Err(StoreError::unavailable(
            "another process has opened the store file since: this one must stop",
        )
        .into());
    }
    let is_clearing = match turn {
        StandingChange::Arrive(_, account) => {
            // The number of running records is not needed here, so an empty index is enough.
            let here = survey(connection, &Index::default(), meta.clock)?;
            let records = connection
                .query_row("SELECT count(*) FROM heads", [], |row| row.get::<_, i64>(0))?;
            if !(Survey {
                records: records.unsigned_abs(),
                ..here
            })
            .is_outlived(&account.secret)
            {
                return Ok(StandingResult::Refused);
            }
            true
        }
        StandingChange::GiveUp => matches!(standing, Standing::Arriving(..)),
        _ => false,
    };
    let Some(next) = next(turn, standing) else {
        return Ok(StandingResult::Refused);
    };
    if is_clearing {
        clear(connection)?;
    }
    match turn {
        StandingChange::Arrive(_, account) => {
            meta.secret = account.secret;
            meta.set_lives_since(connection, account.lives_since)?;
        }
        StandingChange::SettleIn(_, account) => take_over(connection, &mut meta, *account)?,
        StandingChange::Leave(_) | StandingChange::Moved(_) | StandingChange::GiveUp => {}
    }
    meta.write(connection)?;
    stand(connection, &next)?;
    transaction.commit()?;
    Ok(if is_clearing {
        StandingResult::Cleared
    } else {
        StandingResult::Done
    })
}

/// The store's standing after a change; `None` if the current one does not allow it.
fn next(turn: &StandingChange, standing: Standing) -> Option<Standing> {
    match (turn, standing) {
        (StandingChange::Leave(passage), Standing::Live | Standing::Leaving(_)) => {
            Some(Standing::Leaving(passage.clone()))
        }
        (StandingChange::Moved(copy), Standing::Leaving(passage) | Standing::Moved(passage))
            if passage.copy == *copy =>
        {
            Some(Standing::Moved(passage))
        }
        (
            StandingChange::GiveUp,
            Standing::Live | Standing::Leaving(_) | Standing::Arriving(..),
        ) => Some(Standing::Live),
        (StandingChange::Arrive(passage, _), _) => {
            Some(Standing::Arriving(passage.clone(), Position::default()))
        }
        (StandingChange::SettleIn(copy, _), Standing::Arriving(passage, _))
            if passage.copy == *copy =>
        {
            Some(Standing::Live)
        }
        _ => None,
    }
}

fn take_over(connection: &Connection, meta: &mut Meta, account: Account) -> rusqlite::Result<()> {
    audit::OWN.go_on_after(connection, account.logged as i64)?;
    *meta = meta.at(account.now);
    meta.epoch = meta.epoch.max(account.epoch as i64);
    meta.floor = meta.floor.max(account.floor);
    Ok(())
}

/// Removes all records, answers and audit log entries. Keeps the policies, whose numbers this
/// process has cached, the known principals, and the floor.
fn clear(connection: &Connection) -> rusqlite::Result<()> {
    seal::erase_all(connection)?;
    connection.execute_batch(
        "DELETE FROM heads; DELETE FROM answers; DELETE FROM roll; DELETE FROM vacated; DELETE FROM fronts; DELETE FROM audit;
         DELETE FROM sqlite_sequence WHERE name = 'audit'",
    )
}

/// The store's standing.
pub(super) fn standing(connection: &Connection) -> Result<Standing, StoreError> {
    let damaged = || StoreError::corrupt("where the store stands is not as it was written");
    let read = |row: &Row<'_>| {
        let word: String = row.get(0)?;
        let passage = Passage {
            copy: CopyId::from_bytes(row.get(1)?),
            other: row.get(2)?,
        };
        let record = row.get::<_, Option<[u8; 32]>>(3)?.map(RecordId::from_bytes);
        let position = Position {
            record,
            entry: row.get::<_, i64>(4)?.unsigned_abs(),
        };
        Ok((
            checksum(&word, &passage, position),
            row.get::<_, u32>(5)?,
            Standing::of(&word, passage, position),
        ))
    };
    let mut statement = connection
        .prepare("SELECT word, copy, other, record, entry, checksum FROM standing")
        .map_err(store_error)?;
    let Some((sum, stored, standing)) = statement
        .query_row([], read)
        .optional()
        .map_err(store_error)?
    else {
        return Ok(Standing::Live);
    };
    standing.filter(|_| sum == stored).ok_or_else(damaged)
}

fn stand(connection: &Connection, standing: &Standing) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM standing", [])?;
    let (passage, position) = match standing {
        Standing::Live => return Ok(()),
        Standing::Leaving(passage) | Standing::Moved(passage) => (passage, Position::default()),
        Standing::Arriving(passage, position) => (passage, *position),
    };
    let sql = "INSERT INTO standing (only, word, copy, other, record, entry, checksum) VALUES (0, ?1, ?2, ?3, ?4, ?5, ?6)";
    let columns = params![
        standing.word(),
        &passage.copy.as_bytes()[..],
        passage.other,
        position.record.as_ref().map(|id| &id.as_bytes()[..]),
        position.entry as i64,
        checksum(standing.word(), passage, position),
    ];
    connection.execute(sql, columns).map(drop)
}

fn checksum(word: &str, passage: &Passage, position: Position) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&position.entry.to_le_bytes());
    sum.update(position.record.as_ref().map_or(&[], |id| id.as_bytes()));
    for text in [
        passage.copy.as_bytes(),
        word.as_bytes(),
        passage.other.as_bytes(),
    ] {
        sum.update(text);
        // A byte that occurs in no text, to separate the parts.
        sum.update(&[0xff]);
    }
    sum.finalize()
}

/// Refuses an import unless the store is arriving under this copy.
pub(super) fn expect_arriving(connection: &Connection, copy: CopyId) -> Result<(), StoreError> {
    match standing(connection)? {
        Standing::Arriving(passage, _) if passage.copy == copy => Ok(()),
        _ => Err(out_of_turn()),
    }
}

/// Saves the position up to which everything was imported.
pub(super) fn go_on(
    connection: &Connection,
    position: Position,
) -> Result<rusqlite::Result<()>, StoreError> {
    match standing(connection)? {
        Standing::Arriving(passage, _) => {
            Ok(stand(connection, &Standing::Arriving(passage, position)))
        }
        _ => Err(out_of_turn()),
    }
}

fn survey(connection: &Connection, index: &Index, now: Timestamp) -> Result<Survey, StoreError> {
    let meta = Meta::read(connection)?;
    let logged = audit::OWN
        .last(connection)
        .map_err(store_error)?
        .unsigned_abs();
    Ok(Survey {
        standing: standing(connection)?,
        account: Account {
            secret: meta.secret,
            lives_since: meta.lives_since,
            epoch: meta.epoch.unsigned_abs(),
            floor: meta.floor,
            logged,
            now,
        },
        records: index.len() as u64,
        running: index.running() as u64,
    })
}

/// A page of records as stored. Nothing else uses the file, so no record moves meanwhile.
fn export(
    rows: Rows<'_>,
    index: &Index,
    after: Option<RecordId>,
    page: Page,
    now: Timestamp,
) -> Result<Vec<Record>, StoreError> {
    let (mut records, mut bytes) = (Vec::new(), 0);
    let mut next = Some(after.as_ref().map_or(0, prefix));
    while let Some(from) = next {
        let (entries, later) = index.page(from);
        next = later;
        // Entries with the same prefix are in no order, so they are sorted together.
        for alike in entries.chunk_by(|a, b| a.prefix == b.prefix) {
            let mut found = alike
                .iter()
                .map(|entry| whole(rows, *entry, now))
                .collect::<Result<Vec<_>, _>>()?;
            found.retain(|record| after.is_none_or(|after| record.head.id > after));
            found.sort_unstable_by_key(|record| record.head.id);
            for record in found {
                if !records.is_empty() && (records.len() >= page.records || bytes >= page.bytes) {
                    return Ok(records);
                }
                bytes += record
                    .answer
                    .as_ref()
                    .map_or(0, |answer| answer.encoded_len());
                records.push(record);
            }
        }
    }
    Ok(records)
}

/// The whole record in a row. An error names the record, because it stops the copy.
fn whole(rows: Rows<'_>, entry: Entry, now: Timestamp) -> Result<Record, StoreError> {
    let begins = || format!("{:016x}…", entry.prefix);
    let stored = rows
        .read(entry.row_number)
        .and_then(|stored| stored.ok_or_else(missing))
        .map_err(|error| not_copied(begins(), error))?;
    let head = (*stored.head).clone();
    let answer = rows
        .record(stored, now)
        .map_err(|error| not_copied(head.id, error))?
        .answer;
    Ok(shipped(Record { head, answer }, now))
}
