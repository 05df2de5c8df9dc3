//! The audit log: rows that outlive the records they are about.

use std::sync::Arc;

use hapax_core::audit::{Action, LogEntry, LogQuery, Note, Signed, Start, Touched};
use hapax_core::scope::RecordId;
use hapax_core::store::StoreError;
use hapax_core::time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::Postgres;
use super::pipeline::Parameters;
use super::row;
use crate::store::codec::{bigint, damaged_entry};

/// The columns of `hapax.audit`, in its order.
mod column {
    pub(super) const SEQUENCE: usize = 0;
    pub(super) const AT: usize = 1;
    pub(super) const ACTION: usize = 2;
    pub(super) const SIGNED_BY: usize = 3;
    pub(super) const REASON: usize = 4;
    pub(super) const ID: usize = 5;
    pub(super) const NAMESPACE: usize = 6;
    pub(super) const KEY: usize = 10;
    pub(super) const BEFORE: usize = 11;
    pub(super) const AFTER: usize = 12;
    pub(super) const STATUS: usize = 13;
    pub(super) const FENCE: usize = 14;
    pub(super) const VERSION: usize = 15;
    pub(super) const CREATED_AT: usize = 16;
}

impl Postgres {
    pub(super) async fn read_log(&self, query: &LogQuery) -> Result<Vec<LogEntry>, StoreError> {
        if query.limit == 0 {
            return Ok(Vec::new());
        }
        let record = query.record.as_ref().map(|id| &id.as_bytes()[..]);
        let (after, before) = match query.from {
            Start::After(sequence) => (Some(bigint(sequence)), None),
            Start::Before(sequence) => (None, Some(bigint(sequence))),
            Start::End => (None, None),
        };
        let rows = i32::try_from(query.rows()).unwrap_or(i32::MAX);
        let parameters: Parameters<'_> = &[
            (&record, Type::BYTEA),
            (&after, Type::INT8),
            (&before, Type::INT8),
            (&rows, Type::INT4),
        ];
        self.aside("SELECT * FROM hapax.log($1, $2, $3, $4)", parameters)
            .await?
            .iter()
            .map(entry)
            .collect()
    }

    pub(super) async fn write_note(&self, note: Note) -> Result<LogEntry, StoreError> {
        // The database assigns the number and the time.
        let LogEntry { action, signed, .. } = LogEntry::noted(note, Timestamp::ZERO);
        let (action, by, reason) = (
            action.word().as_bytes(),
            signed.by().as_bytes(),
            signed.reason().as_bytes(),
        );
        let parameters: Parameters<'_> = &[
            (&action, Type::BYTEA),
            (&by, Type::BYTEA),
            (&reason, Type::BYTEA),
        ];
        let rows = self
            .aside("SELECT * FROM hapax.note($1, $2, $3)", parameters)
            .await?;
        rows.first()
            .ok_or_else(|| StoreError::corrupt("a note was not written down"))
            .and_then(entry)
    }
}

pub(super) fn entry(row: &Row) -> Result<LogEntry, StoreError> {
    let sequence = row::number(row, column::SEQUENCE)?;
    let damaged = |error| damaged_entry(sequence).because(error);
    let text = |column| row::text(row, column);
    let signed = Signed::new(text(column::SIGNED_BY)?, text(column::REASON)?);
    Ok(LogEntry {
        sequence,
        at: row::time(row, column::AT)?,
        action: Action::of(text(column::ACTION)?),
        signed: signed
            .map_err(|error| StoreError::corrupt("an entry is not signed").because(error))
            .map_err(damaged)?,
        touched: touched(row).map_err(damaged)?,
    })
}

fn touched(row: &Row) -> Result<Option<Touched>, StoreError> {
    let Some(id) = row::get::<Option<&[u8]>>(row, column::ID)? else {
        return Ok(None);
    };
    Ok(Some(Touched {
        id: RecordId::from_bytes(row::array(id)?),
        scope: Arc::new(row::scope(row, column::NAMESPACE)?),
        key: row::key(row, column::KEY)?,
        created_at: row::time(row, column::CREATED_AT)?,
        before: row::state(row, column::BEFORE)?,
        after: row::state(row, column::AFTER)?,
        status: row::status(row, column::STATUS)?,
        fence: row::fence(row, column::FENCE)?,
        version: row::number(row, column::VERSION)?,
    }))
}
