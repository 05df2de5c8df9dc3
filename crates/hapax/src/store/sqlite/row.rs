//! Reading and writing heads as rows.

use std::sync::Arc;

use hapax_core::fingerprint::Fingerprint;
use hapax_core::record::{Fence, Head, Record};
use hapax_core::scope::RecordId;
use hapax_core::store::{StoreError, StoreErrorKind};
use hapax_core::time::Timestamp;
use rusqlite::{Connection, Row};

use super::index::{Found, Running};
use super::policies::Policies;
use super::row_number::{OPEN, RowNumber, bounds};
use super::seal;
use crate::store::codec;
use crate::store::sqlite_kit::Queries;
use crate::store::sqlite_kit::error::store_error;
use crate::store::sqlite_kit::row::{
    HEAD_COLUMNS, HeadRow, blob, decode_answer, get, head_columns, missing_answer,
};

/// Which leases are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leases {
    /// Those of this incarnation of the owner.
    Of(i64),
    /// None: the owner is gone.
    Nobodys,
}

/// A head with its row number, and that of its answer.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) row_number: RowNumber,
    pub(super) head: Arc<Head>,
    pub(super) answer: Option<RowNumber>,
}

/// The result of looking for a record in the rows that the index has.
pub(super) enum Lookup {
    Found(Stored),
    /// The rows belong to other ids with the same prefix.
    Absent,
    /// A row does not exist.
    Missing,
}

impl Lookup {
    /// The record, if no concurrent move can explain a missing row.
    pub(super) fn settled(self) -> Result<Option<Stored>, StoreError> {
        match self {
            Lookup::Found(stored) => Ok(Some(stored)),
            Lookup::Absent => Ok(None),
            Lookup::Missing => Err(missing()),
        }
    }
}

/// The error for a missing row that no concurrent move can explain.
pub(super) fn missing() -> StoreError {
    StoreError::corrupt("a record is not where it was written: restore a backup")
}

/// The connection, policies and leases needed to read rows.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) connection: &'a Connection,
    pub(super) policies: &'a Policies,
    pub(super) leases: Leases,
}

macro_rules! select_heads {
    ($condition:literal) => {
        concat!(
            "SELECT row, answer, policy, incarnation, ",
            head_columns!(),
            ", checksum FROM heads WHERE ",
            $condition
        )
    };
}

/// Queries of the embedded store.
pub(super) fn queries(connection: &Connection) -> Queries<'_> {
    Queries {
        connection,
        explain: store_error,
    }
}

impl<'a> Rows<'a> {
    fn queries(self) -> Queries<'a> {
        queries(self.connection)
    }

    /// Reads the record that the index has found.
    pub(super) fn look_up(self, id: &RecordId, found: Found) -> Result<Lookup, StoreError> {
        match found {
            Found::Absent => Ok(Lookup::Absent),
            Found::Running(Running { row_number, head }) => Ok(Lookup::Found(Stored {
                row_number,
                head,
                answer: None,
            })),
            Found::Rows(row_numbers) => self.find(id, &row_numbers),
        }
    }

    /// The record with this id among its possible rows.
    fn find(self, id: &RecordId, row_numbers: &[RowNumber]) -> Result<Lookup, StoreError> {
        let mut is_missing = false;
        for row_number in row_numbers {
            match self.read(*row_number)? {
                Some(stored) if stored.head.id == *id => return Ok(Lookup::Found(stored)),
                Some(_) => {}
                None => is_missing = true,
            }
        }
        Ok(if is_missing {
            Lookup::Missing
        } else {
            Lookup::Absent
        })
    }

    pub(super) fn read(self, row_number: RowNumber) -> Result<Option<Stored>, StoreError> {
        let sql = select_heads!("row = ?1");
        self.queries()
            .first(sql, [row_number.row()], |row| self.stored(&Raw::read(row)?))
    }

    /// All records in the open queue. Each has its id, even if a newer version wrote it and it
    /// cannot be read.
    pub(super) fn open(self) -> Result<Vec<(RowNumber, RecordId, Option<Stored>)>, StoreError> {
        let sql = select_heads!("row >= ?1 AND row < ?2");
        self.queries().all(sql, bounds(OPEN), |row| {
            let raw = Raw::read(row)?;
            let stored = match self.stored(&raw) {
                Ok(stored) => Some(stored),
                Err(error) if error.kind() == StoreErrorKind::Unsupported => None,
                Err(error) => return Err(error),
            };
            Ok((raw.row_number(), raw.head.id, stored))
        })
    }

    /// Reads a queue from its front, for as long as `each` returns true. Each row's checksum is
    /// verified.
    pub(super) fn front(
        self,
        queue: u16,
        limit: usize,
        mut each: impl FnMut(RowNumber, RecordId, Fence, Timestamp) -> bool,
    ) -> Result<(), StoreError> {
        let (start, end) = bounds(queue);
        let sql = select_heads!("row >= ?1 AND row < ?2 ORDER BY row LIMIT ?3");
        self.queries().each(sql, (start, end, limit as i64), |row| {
            let raw = Raw::read(row)?;
            let [_, fence, .., until, _] = raw.head.numbers;
            let fence = Fence::from_u64(fence.unsigned_abs());
            Ok(each(
                raw.row_number(),
                raw.head.id,
                fence,
                codec::time(until),
            ))
        })
    }

    /// The ids in a range of rows. Each row's checksum is verified: with a wrong id, a used key
    /// would seem new.
    pub(super) fn ids(
        self,
        from: RowNumber,
        to: RowNumber,
        mut each: impl FnMut(RowNumber, RecordId),
    ) -> Result<(), StoreError> {
        if from >= to {
            return Ok(());
        }
        // SQLite navigates by the row numbers of other rows, and a damaged number would make it
        // skip rows. So the rows before and after the range are checked too, and must be outside of
        // it.
        let mut last = self.before(from)?;
        let sql = select_heads!("row >= ?1 ORDER BY row");
        self.queries().each(sql, [from.row()], |row| {
            let raw = Raw::read(row)?;
            let row_number = raw.row_number();
            if row_number < from || last.is_some_and(|last| row_number <= last) {
                return Err(missing());
            }
            if row_number < to {
                last = Some(row_number);
                each(row_number, raw.head.id);
            }
            Ok(row_number < to)
        })
    }

    /// The last row before a row number.
    fn before(self, row_number: RowNumber) -> Result<Option<RowNumber>, StoreError> {
        let sql = select_heads!("row < ?1 ORDER BY row DESC LIMIT 1");
        let before = self.queries().first(sql, [row_number.row()], |row| {
            Ok(Raw::read(row)?.row_number())
        })?;
        if before.is_some_and(|before| before >= row_number) {
            return Err(missing());
        }
        Ok(before)
    }

    /// The record at `now`. Its answer is read only if it has not expired.
    pub(super) fn record(self, stored: Stored, now: Timestamp) -> Result<Record, StoreError> {
        let Stored { head, answer, .. } = stored;
        let head = Arc::unwrap_or_clone(head).at(now);
        if !head.kept {
            return Ok(Record { head, answer: None });
        }
        let row_number = answer.ok_or_else(|| StoreError::corrupt("a kept answer has no place"))?;
        let sql = "SELECT content FROM answers WHERE row = ?1";
        let answer = self.queries().first(sql, [row_number.row()], |row| {
            let decode = |content: &[u8]| decode_answer(&head.id, content);
            seal::unseal(self.connection, row_number, blob(row, 0)?, decode)?
                .ok_or_else(|| StoreError::corrupt("a kept answer has lost its seal"))?
        })?;
        Ok(Record {
            head,
            answer: Some(answer.ok_or_else(missing_answer)?),
        })
    }

    fn stored(self, raw: &Raw<'_>) -> Result<Stored, StoreError> {
        let [_, _, policy, owner] = raw.numbers;
        let fingerprint = match raw.head.fingerprint {
            Some(digest) if policy >= 0 => Some(Fingerprint {
                digest,
                policy: self.policies.get(self.connection, policy)?,
            }),
            _ => None,
        };
        let mut head = raw.head.head(fingerprint, raw.answer().is_some())?;
        if self.leases != Leases::Of(owner) {
            head.lease_until = Timestamp::ZERO;
        }
        Ok(Stored {
            row_number: raw.row_number(),
            head: Arc::new(head),
            answer: raw.answer(),
        })
    }
}

/// A row's columns as stored, which the checksum covers, before they are decoded.
struct Raw<'a> {
    /// Row, answer, policy and incarnation; -1 if missing.
    numbers: [i64; 4],
    head: HeadRow<'a>,
}

impl<'a> Raw<'a> {
    /// Reads a row, and refuses one whose checksum is wrong.
    fn read(row: &'a Row<'_>) -> Result<Raw<'a>, StoreError> {
        let raw = Raw {
            numbers: [get(row, 0)?, get(row, 1)?, get(row, 2)?, get(row, 3)?],
            head: HeadRow::read(row, 4)?,
        };
        if raw.checksum() != get::<u32>(row, 4 + HEAD_COLUMNS)? {
            return Err(StoreError::corrupt(
                "a record is not as it was written: restore a backup",
            ));
        }
        Ok(raw)
    }

    fn row_number(&self) -> RowNumber {
        RowNumber::from_row(self.numbers[0])
    }

    fn answer(&self) -> Option<RowNumber> {
        (self.numbers[1] >= 0).then(|| RowNumber::from_row(self.numbers[1]))
    }

    /// SQLite detects a malformed page, but only this checksum detects a changed bit in a
    /// well-formed one.
    fn checksum(&self) -> u32 {
        let HeadRow {
            numbers,
            id,
            token,
            fingerprint,
            principal,
            texts,
            request_id,
        } = &self.head;
        let mut sum = crc32fast::Hasher::new();
        let mut bytes = [0; 8 * 15];
        for (row_number, number) in bytes
            .chunks_exact_mut(8)
            .zip(self.numbers.iter().chain(numbers))
        {
            row_number.copy_from_slice(&number.to_le_bytes());
        }
        sum.update(&bytes);
        sum.update(id.as_bytes());
        sum.update(token);
        sum.update(fingerprint.as_ref().map_or(&[], |digest| digest));
        for text in principal.iter().chain(texts) {
            sum.update(text.as_bytes());
            // A byte that occurs in no text, to separate the parts.
            sum.update(&[0xff]);
        }
        // Left out if there is none, so that the checksums of older formats stay valid.
        if let Some(id) = request_id {
            sum.update(&[0xfe]);
            sum.update(id.as_bytes());
        }
        sum.finalize()
    }
}

/// Writes a head into its row, replacing the previous content.
pub(super) fn write(
    connection: &Connection,
    stored: &Stored,
    policy: Option<i64>,
    incarnation: i64,
) -> rusqlite::Result<()> {
    let Stored {
        row_number,
        head,
        answer,
    } = stored;
    let raw = Raw {
        numbers: [
            row_number.row(),
            answer.map_or(-1, RowNumber::row),
            policy.unwrap_or(-1),
            incarnation,
        ],
        head: HeadRow::new(head),
    };
    let mut statement = connection.prepare_cached(concat!(
        "INSERT OR REPLACE INTO heads (row, answer, policy, incarnation, ",
        head_columns!(),
        ", checksum) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, \
         ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25)"
    ))?;
    for (column, number) in raw.numbers.iter().enumerate() {
        statement.raw_bind_parameter(column + 1, number)?;
    }
    raw.head.bind(&mut statement, 5)?;
    statement.raw_bind_parameter(5 + HEAD_COLUMNS, raw.checksum())?;
    statement.raw_execute().map(drop)
}
