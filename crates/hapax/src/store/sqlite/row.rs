//! A head as a row, and back.

use std::sync::Arc;

use hapax_core::answer::Answer;
use hapax_core::fingerprint::Fingerprint;
use hapax_core::key::Key;
use hapax_core::record::{AttemptToken, Fence, Head, Last, Record, State};
use hapax_core::request_id::RequestId;
use hapax_core::scope::{Principal, RecordId, Scope};
use hapax_core::store::{StoreError, StoreErrorKind};
use hapax_core::time::Timestamp;
use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension, Row};

use super::error::store_error;
use super::place::{OPEN, Place, bounds};
use super::policies::Policies;
use super::seal;

/// Whose leases count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leases {
    /// Those of this incarnation of the owner.
    Of(i64),
    /// Nobody's: the owner is gone.
    Nobodys,
}

/// A head with its place in the file, and that of its answer.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) place: Place,
    pub(super) head: Arc<Head>,
    pub(super) answer: Option<Place>,
}

/// What came of looking for a record where the index has it.
pub(super) enum Lookup {
    Found(Stored),
    /// The rows are those of other ids that begin alike.
    Absent,
    /// A row is not where it should be.
    Missing,
}

/// A row that should be there is not, and nobody is about to move it.
pub(super) fn missing() -> StoreError {
    StoreError::corrupt("a record is not where it was written: restore a backup")
}

/// What reading rows takes: a connection, and what the rows refer to.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) connection: &'a Connection,
    pub(super) policies: &'a Policies,
    pub(super) leases: Leases,
}

/// In the order of [`Raw`].
macro_rules! columns {
    () => {
        "row, answer, policy, incarnation, state, fence, version, attempts, lease_until, created_at, claimed_at, finished_at, \
         expires_at, tombstone_until, status, id, token, fingerprint, principal, namespace, method, path, key, checksum, request_id"
    };
}

macro_rules! select_heads {
    ($condition:literal) => {
        concat!("SELECT ", columns!(), " FROM heads WHERE ", $condition)
    };
}

impl Rows<'_> {
    /// The record of this id among rows that may be it.
    pub(super) fn find(self, id: &RecordId, places: &[Place]) -> Result<Lookup, StoreError> {
        let mut is_missing = false;
        for place in places {
            match self.read(*place)? {
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

    pub(super) fn read(self, place: Place) -> Result<Option<Stored>, StoreError> {
        let mut statement = self
            .connection
            .prepare_cached(select_heads!("row = ?1"))
            .map_err(store_error)?;
        let found = statement
            .query_row([place.row()], |row| Ok(self.decode(row)))
            .optional()
            .map_err(store_error)?;
        found.transpose()
    }

    /// Everything that no time removes: each with its id, also where a newer version wrote what
    /// this one cannot read.
    pub(super) fn open(self) -> Result<Vec<(Place, RecordId, Option<Stored>)>, StoreError> {
        let mut statement = self
            .connection
            .prepare(select_heads!("row >= ?1 AND row < ?2"))
            .map_err(store_error)?;
        let mut rows = statement.query(bounds(OPEN)).map_err(store_error)?;
        let mut open = Vec::new();
        while let Some(row) = rows.next().map_err(store_error)? {
            let raw = Raw::read(row)?;
            let stored = match self.head(&raw) {
                Ok(head) => Some(Stored {
                    place: raw.place(),
                    head: Arc::new(head),
                    answer: raw.answer(),
                }),
                Err(error) if error.kind() == StoreErrorKind::Unsupported => None,
                Err(error) => return Err(error),
            };
            open.push((raw.place(), raw.id, stored));
        }
        Ok(open)
    }

    /// The front of a lane, row by row for as long as `each` wants more. Each row is checked before
    /// it is believed.
    pub(super) fn front(
        self,
        lane: u16,
        limit: usize,
        mut each: impl FnMut(Place, RecordId, Fence, Timestamp) -> bool,
    ) -> Result<(), StoreError> {
        let (start, end) = bounds(lane);
        let sql = select_heads!("row >= ?1 AND row < ?2 ORDER BY row LIMIT ?3");
        let mut statement = self.connection.prepare_cached(sql).map_err(store_error)?;
        let mut rows = statement
            .query((start, end, limit as i64))
            .map_err(store_error)?;
        while let Some(row) = rows.next().map_err(store_error)? {
            let raw = Raw::read(row)?;
            let (fence, until) = (
                Fence::from_u64(raw.numbers[5].unsigned_abs()),
                raw.numbers[13].unsigned_abs(),
            );
            if !each(raw.place(), raw.id, fence, Timestamp::from_micros(until)) {
                break;
            }
        }
        Ok(())
    }

    /// The ids in a range of rows. Each row is checked: one whose id is not what was written would
    /// be a key that seems new.
    pub(super) fn ids(
        self,
        from: Place,
        to: Place,
        mut each: impl FnMut(Place, RecordId),
    ) -> Result<(), StoreError> {
        if from >= to {
            return Ok(());
        }
        // SQLite finds the way to a row by the numbers of others, and one that is damaged leads
        // astray: rows would be passed over. So the row before the first and the one after the last
        // are looked at too, and must be where they say.
        let mut last = self.before(from)?;
        let mut statement = self
            .connection
            .prepare_cached(select_heads!("row >= ?1 ORDER BY row"))
            .map_err(store_error)?;
        let mut rows = statement.query([from.row()]).map_err(store_error)?;
        while let Some(row) = rows.next().map_err(store_error)? {
            let raw = Raw::read(row)?;
            if raw.place() < from || last.is_some_and(|last| raw.place() <= last) {
                return Err(missing());
            }
            if raw.place() >= to {
                break;
            }
            last = Some(raw.place());
            each(raw.place(), raw.id);
        }
        Ok(())
    }

    /// The last row before a place.
    fn before(self, place: Place) -> Result<Option<Place>, StoreError> {
        let sql = select_heads!("row < ?1 ORDER BY row DESC LIMIT 1");
        let mut statement = self.connection.prepare_cached(sql).map_err(store_error)?;
        let mut rows = statement.query([place.row()]).map_err(store_error)?;
        let Some(row) = rows.next().map_err(store_error)? else {
            return Ok(None);
        };
        let before = Raw::read(row)?.place();
        if before >= place {
            Err(missing())
        } else {
            Ok(Some(before))
        }
    }

    /// The record as it is at `now`: its answer is read only where there still is one.
    pub(super) fn record(self, stored: Stored, now: Timestamp) -> Result<Record, StoreError> {
        let Stored { head, answer, .. } = stored;
        let head = Arc::unwrap_or_clone(head).at(now);
        if !head.kept {
            return Ok(Record { head, answer: None });
        }
        let place = answer.ok_or_else(|| StoreError::corrupt("a kept answer has no place"))?;
        let mut statement = self
            .connection
            .prepare_cached("SELECT content FROM answers WHERE row = ?1")
            .map_err(store_error)?;
        let decode = |stored: &[u8]| Answer::decode(&head.id, stored);
        let answer = statement.query_row([place.row()], |row| {
            let stored = row.get_ref(0)?.as_blob()?;
            Ok(seal::unseal(self.connection, place, stored, decode))
        });
        let answer = answer
            .optional()
            .map_err(store_error)?
            .ok_or_else(|| StoreError::corrupt("a kept answer is missing"))?;
        let answer =
            answer?.ok_or_else(|| StoreError::corrupt("a kept answer has lost its seal"))?;
        let answer = answer
            .map_err(|error| StoreError::corrupt("a kept answer is damaged").because(error))?;
        Ok(Record {
            head,
            answer: Some(Arc::new(answer)),
        })
    }

    fn decode(self, row: &Row<'_>) -> Result<Stored, StoreError> {
        let raw = Raw::read(row)?;
        Ok(Stored {
            place: raw.place(),
            head: Arc::new(self.head(&raw)?),
            answer: raw.answer(),
        })
    }

    /// What the columns stand for; those of a newer version may stand for something unknown.
    fn head(self, raw: &Raw<'_>) -> Result<Head, StoreError> {
        let [
            _,
            _,
            policy,
            owner,
            code,
            fence,
            version,
            attempts,
            lease,
            created,
            claimed,
            finished,
            expires,
            tombstone,
            status,
        ] = raw.numbers;
        let time = |micros: i64| Timestamp::from_micros(micros.unsigned_abs());
        let small = |number: i64| {
            u32::try_from(number)
                .map_err(|error| StoreError::corrupt("a number is too large").because(error))
        };
        let [namespace, method, path, key] = raw.texts;
        let fingerprint = match (raw.fingerprint, policy) {
            (Some(digest), 0..) => Some(Fingerprint {
                digest,
                policy: self.policies.get(self.connection, policy)?,
            }),
            _ => None,
        };
        Ok(Head {
            id: raw.id,
            scope: Arc::new(Scope {
                namespace: namespace.into(),
                principal: raw.principal.map_or(Principal::Anonymous, Principal::named),
                method: method.into(),
                path: path.into(),
            }),
            key: Key::new(key)
                .map_err(|error| StoreError::corrupt("a stored key is not a key").because(error))?,
            state: state(code)?,
            fence: Fence::from_u64(fence.unsigned_abs()),
            token: AttemptToken::from_bytes(raw.token),
            version: version.unsigned_abs(),
            attempts: small(attempts)?,
            lease_until: if self.leases == Leases::Of(owner) {
                time(lease)
            } else {
                Timestamp::ZERO
            },
            fingerprint,
            created_at: time(created),
            claimed_at: time(claimed),
            finished_at: time(finished),
            expires_at: time(expires),
            tombstone_until: time(tombstone),
            status: u16::try_from(status).ok(),
            kept: raw.answer().is_some(),
            request_id: raw.request_id.map(request_id).transpose()?,
        })
    }
}

/// A row as it is written: what the checksum covers, before anything is made of it.
struct Raw<'a> {
    /// In this order: row, answer, policy, incarnation, state, fence, version, attempts, lease,
    /// created, claimed, finished, expires, tombstone, status. What is not there is -1.
    numbers: [i64; 15],
    id: RecordId,
    token: [u8; 16],
    fingerprint: Option<[u8; 32]>,
    principal: Option<&'a str>,
    /// Namespace, method, path, key.
    texts: [&'a str; 4],
    /// `None` in every row from before format 7.
    request_id: Option<&'a str>,
}

impl<'a> Raw<'a> {
    fn of(stored: &'a Stored, policy: Option<i64>, incarnation: i64) -> Raw<'a> {
        let Stored {
            place,
            head,
            answer,
        } = stored;
        Raw {
            numbers: [
                place.row(),
                answer.map_or(-1, Place::row),
                policy.unwrap_or(-1),
                incarnation,
                code(head.state),
                head.fence.as_u64() as i64,
                head.version as i64,
                i64::from(head.attempts),
                micros(head.lease_until),
                micros(head.created_at),
                micros(head.claimed_at),
                micros(head.finished_at),
                micros(head.expires_at),
                micros(head.tombstone_until),
                head.status.map_or(-1, i64::from),
            ],
            id: head.id,
            token: *head.token.as_bytes(),
            fingerprint: head
                .fingerprint
                .as_ref()
                .map(|fingerprint| fingerprint.digest),
            principal: match &head.scope.principal {
                Principal::Anonymous => None,
                Principal::Named(name) => Some(name),
            },
            texts: [
                &head.scope.namespace,
                &head.scope.method,
                &head.scope.path,
                head.key.as_str(),
            ],
            request_id: head.request_id.as_ref().map(RequestId::as_str),
        }
    }

    /// Reads a row, and refuses one that is not as it was written.
    fn read(row: &'a Row<'_>) -> Result<Raw<'a>, StoreError> {
        let mut numbers = [0; 15];
        for (column, number) in numbers.iter_mut().enumerate() {
            *number = get(row, column)?;
        }
        let raw = Raw {
            numbers,
            id: RecordId::from_bytes(get(row, 15)?),
            token: get(row, 16)?,
            fingerprint: get(row, 17)?,
            principal: text(row, 18)?,
            texts: [
                needed(row, 19)?,
                needed(row, 20)?,
                needed(row, 21)?,
                needed(row, 22)?,
            ],
            request_id: text(row, 24)?,
        };
        if raw.checksum() != get::<u32>(row, 23)? {
            return Err(StoreError::corrupt(
                "a record is not as it was written: restore a backup",
            ));
        }
        Ok(raw)
    }

    fn place(&self) -> Place {
        Place::from_row(self.numbers[0])
    }

    fn answer(&self) -> Option<Place> {
        (self.numbers[1] >= 0).then(|| Place::from_row(self.numbers[1]))
    }

    /// SQLite notices a page that makes no sense; a changed bit that still makes sense, only this
    /// would.
    fn checksum(&self) -> u32 {
        let mut sum = crc32fast::Hasher::new();
        let mut bytes = [0; 8 * 15];
        for (place, number) in bytes.chunks_exact_mut(8).zip(self.numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        sum.update(&bytes);
        sum.update(self.id.as_bytes());
        sum.update(&self.token);
        sum.update(self.fingerprint.as_ref().map_or(&[], |digest| digest));
        for text in self.principal.iter().chain(&self.texts) {
            sum.update(text.as_bytes());
            // In no text: the parts cannot run into each other.
            sum.update(&[0xff]);
        }
        // Left out where there is none, so that the sums of older formats hold.
        if let Some(id) = self.request_id {
            sum.update(&[0xfe]);
            sum.update(id.as_bytes());
        }
        sum.finalize()
    }
}

/// Writes a head in its place, over what was there.
pub(super) fn write(
    connection: &Connection,
    stored: &Stored,
    policy: Option<i64>,
    incarnation: i64,
) -> rusqlite::Result<()> {
    let raw = Raw::of(stored, policy, incarnation);
    let mut statement = connection.prepare_cached(concat!(
        "INSERT OR REPLACE INTO heads (",
        columns!(),
        ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25)"
    ))?;
    for (column, number) in raw.numbers.iter().enumerate() {
        statement.raw_bind_parameter(column + 1, number)?;
    }
    statement.raw_bind_parameter(16, &raw.id.as_bytes()[..])?;
    statement.raw_bind_parameter(17, &raw.token[..])?;
    statement.raw_bind_parameter(18, raw.fingerprint.as_ref().map(|digest| &digest[..]))?;
    statement.raw_bind_parameter(19, raw.principal)?;
    for (column, text) in raw.texts.iter().enumerate() {
        statement.raw_bind_parameter(column + 20, text)?;
    }
    statement.raw_bind_parameter(24, raw.checksum())?;
    statement.raw_bind_parameter(25, raw.request_id)?;
    statement.raw_execute().map(drop)
}

pub(in crate::store) fn get<T: FromSql>(row: &Row<'_>, column: usize) -> Result<T, StoreError> {
    row.get(column).map_err(store_error)
}

pub(in crate::store) fn text<'a>(
    row: &'a Row<'_>,
    column: usize,
) -> Result<Option<&'a str>, StoreError> {
    let text = row.get_ref(column).map_err(store_error)?.as_str_or_null();
    text.map_err(|error| StoreError::corrupt("a text in a record is none").because(error))
}

pub(in crate::store) fn needed<'a>(row: &'a Row<'_>, column: usize) -> Result<&'a str, StoreError> {
    text(row, column)?.ok_or_else(|| StoreError::corrupt("a text is missing in a record"))
}

pub(in crate::store) fn request_id(stored: &str) -> Result<RequestId, StoreError> {
    RequestId::new(stored).ok_or_else(|| StoreError::corrupt("a stored request id is none"))
}

/// States as numbers. Written to files: never renumber.
pub(in crate::store) fn code(state: State) -> i64 {
    match state {
        State::Running => 1,
        State::Completed => 2,
        State::Failed => 3,
        State::Retryable => 4,
        State::Unknown => 5,
        State::Expired(Last::Completed) => 10,
        State::Expired(Last::Failed) => 11,
        State::Expired(Last::Retryable) => 12,
        State::Expired(Last::Unknown) => 13,
    }
}

const STATES: [State; 9] = [
    State::Running,
    State::Completed,
    State::Failed,
    State::Retryable,
    State::Unknown,
    State::Expired(Last::Completed),
    State::Expired(Last::Failed),
    State::Expired(Last::Retryable),
    State::Expired(Last::Unknown),
];

pub(in crate::store) fn state(number: i64) -> Result<State, StoreError> {
    let state = STATES.into_iter().find(|state| code(*state) == number);
    state.ok_or_else(|| {
        StoreError::new(
            StoreErrorKind::Unsupported,
            "a record has a state this version does not know",
        )
    })
}

pub(in crate::store) fn micros(time: Timestamp) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
