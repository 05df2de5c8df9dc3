//! Reading and writing heads as columns.

use std::sync::Arc;

use hapax_core::answer::Answer;
use hapax_core::fingerprint::Fingerprint;
use hapax_core::record::{AttemptToken, Fence, Head};
use hapax_core::request_id::RequestId;
use hapax_core::scope::RecordId;
use hapax_core::store::StoreError;
use rusqlite::types::FromSql;
use rusqlite::{Row, Statement};

use super::error::store_error;
use crate::store::codec;

/// The columns of a head, in the order of [`HeadRow`].
macro_rules! head_columns {
    () => {
        "state, fence, version, attempts, lease_until, created_at, claimed_at, finished_at, expires_at, \
         tombstone_until, status, id, token, fingerprint, principal, namespace, method, path, key, request_id"
    };
}
pub(in crate::store) use head_columns;

/// The number of columns of a head.
pub(in crate::store) const HEAD_COLUMNS: usize = 20;

/// The columns of a head, before they are decoded.
pub(in crate::store) struct HeadRow<'a> {
    /// State, fence, version, attempts, lease, created, claimed, finished, expires, tombstone and
    /// status; -1 without a status.
    pub(in crate::store) numbers: [i64; 11],
    pub(in crate::store) id: RecordId,
    pub(in crate::store) token: [u8; 16],
    pub(in crate::store) fingerprint: Option<[u8; 32]>,
    pub(in crate::store) principal: Option<&'a str>,
    /// Namespace, method, path, key.
    pub(in crate::store) texts: [&'a str; 4],
    pub(in crate::store) request_id: Option<&'a str>,
}

impl<'a> HeadRow<'a> {
    pub(in crate::store) fn new(head: &'a Head) -> HeadRow<'a> {
        let fingerprint = head.fingerprint.as_ref();
        HeadRow {
            numbers: [
                codec::state_code(head.state).into(),
                codec::bigint(head.fence.as_u64()),
                codec::bigint(head.version),
                head.attempts.into(),
                codec::micros(head.lease_until),
                codec::micros(head.created_at),
                codec::micros(head.claimed_at),
                codec::micros(head.finished_at),
                codec::micros(head.expires_at),
                codec::micros(head.tombstone_until),
                head.status.map_or(-1, i64::from),
            ],
            id: head.id,
            token: *head.token.as_bytes(),
            fingerprint: fingerprint.map(|fingerprint| fingerprint.digest),
            principal: codec::principal(&head.scope),
            texts: [
                &head.scope.namespace,
                &head.scope.method,
                &head.scope.path,
                head.key.as_str(),
            ],
            request_id: head.request_id.as_ref().map(RequestId::as_str),
        }
    }

    /// Reads the columns from `first` on.
    pub(in crate::store) fn read(
        row: &'a Row<'_>,
        first: usize,
    ) -> Result<HeadRow<'a>, StoreError> {
        let mut numbers = [0; 11];
        for (column, number) in numbers[..10].iter_mut().enumerate() {
            *number = get(row, first + column)?;
        }
        numbers[10] = get::<Option<i64>>(row, first + 10)?.unwrap_or(-1);
        Ok(HeadRow {
            numbers,
            id: RecordId::from_bytes(get(row, first + 11)?),
            token: get(row, first + 12)?,
            fingerprint: get(row, first + 13)?,
            principal: text(row, first + 14)?,
            texts: [
                needed(row, first + 15)?,
                needed(row, first + 16)?,
                needed(row, first + 17)?,
                needed(row, first + 18)?,
            ],
            request_id: text(row, first + 19)?,
        })
    }

    /// Binds the columns to the parameters from `first` on.
    pub(in crate::store) fn bind(
        &self,
        statement: &mut Statement<'_>,
        first: usize,
    ) -> rusqlite::Result<()> {
        for (column, number) in self.numbers.iter().enumerate() {
            statement.raw_bind_parameter(first + column, number)?;
        }
        statement.raw_bind_parameter(first + 11, &self.id.as_bytes()[..])?;
        statement.raw_bind_parameter(first + 12, &self.token[..])?;
        statement.raw_bind_parameter(first + 13, self.fingerprint.as_ref().map(|it| &it[..]))?;
        statement.raw_bind_parameter(first + 14, self.principal)?;
        for (column, text) in self.texts.iter().enumerate() {
            statement.raw_bind_parameter(first + 15 + column, text)?;
        }
        statement.raw_bind_parameter(first + 19, self.request_id)
    }

    /// Decodes the columns. A newer version may have written values that this one does not know.
    pub(in crate::store) fn head(
        &self,
        fingerprint: Option<Fingerprint>,
        kept: bool,
    ) -> Result<Head, StoreError> {
        let [
            state,
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
        ] = self.numbers;
        let [namespace, method, path, key] = self.texts;
        Ok(Head {
            id: self.id,
            scope: Arc::new(codec::scope(namespace, self.principal, method, path)),
            key: codec::key(key)?,
            state: codec::state(state)?,
            fence: Fence::from_u64(fence.unsigned_abs()),
            token: AttemptToken::from_bytes(self.token),
            version: version.unsigned_abs(),
            attempts: u32::try_from(attempts)
                .map_err(|error| StoreError::corrupt("a number is too large").because(error))?,
            lease_until: codec::time(lease),
            fingerprint,
            created_at: codec::time(created),
            claimed_at: codec::time(claimed),
            finished_at: codec::time(finished),
            expires_at: codec::time(expires),
            tombstone_until: codec::time(tombstone),
            status: u16::try_from(status).ok(),
            kept,
            request_id: self.request_id.map(codec::request_id).transpose()?,
        })
    }
}

/// Decodes the answer of a record.
pub(in crate::store) fn decode_answer(
    id: &RecordId,
    content: &[u8],
) -> Result<Arc<Answer>, StoreError> {
    Answer::decode(id, content)
        .map(Arc::new)
        .map_err(|error| StoreError::corrupt("a kept answer is damaged").because(error))
}

pub(in crate::store) fn missing_answer() -> StoreError {
    StoreError::corrupt("a kept answer is missing")
}

pub(in crate::store) fn get<T: FromSql>(row: &Row<'_>, column: usize) -> Result<T, StoreError> {
    row.get(column).map_err(store_error)
}

pub(in crate::store) fn blob<'a>(row: &'a Row<'_>, column: usize) -> Result<&'a [u8], StoreError> {
    row.get_ref(column)
        .and_then(|value| Ok(value.as_blob()?))
        .map_err(store_error)
}

pub(in crate::store) fn text<'a>(
    row: &'a Row<'_>,
    column: usize,
) -> Result<Option<&'a str>, StoreError> {
    let text = row.get_ref(column).map_err(store_error)?.as_str_or_null();
    text.map_err(|error| StoreError::corrupt("a text in a record is no text").because(error))
}

fn needed<'a>(row: &'a Row<'_>, column: usize) -> Result<&'a str, StoreError> {
    text(row, column)?.ok_or_else(|| StoreError::corrupt("a text is missing in a record"))
}
