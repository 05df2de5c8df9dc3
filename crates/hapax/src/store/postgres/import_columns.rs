//! What comes from another store, column by column, as one statement takes it.

use std::collections::HashMap;
use std::sync::Arc;

use hapax_core::audit::{LogEntry, Touched};
use hapax_core::fingerprint::FingerprintPolicy;
use hapax_core::record::Record;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use crate::store::codec::{self, bigint, micros, state_code};

/// The columns of a statement: the values of all rows, with their type.
pub(super) struct Columns<'a, R> {
    rows: &'a [R],
    columns: Vec<(Box<dyn ToSql + Send + Sync + 'a>, Type)>,
}

impl<'a, R> Columns<'a, R> {
    fn new(rows: &'a [R]) -> Columns<'a, R> {
        Columns {
            rows,
            columns: Vec::new(),
        }
    }

    fn add<T: ToSql + Send + Sync + 'a>(&mut self, kind: Type, value: impl FnMut(&'a R) -> T) {
        let values: Vec<T> = self.rows.iter().map(value).collect();
        self.columns.push((Box::new(values), kind));
    }

    fn add_bytes(&mut self, value: impl FnMut(&'a R) -> Option<&'a [u8]>) {
        self.add(Type::BYTEA_ARRAY, value);
    }

    fn add_text(&mut self, mut value: impl FnMut(&'a R) -> Option<&'a str>) {
        self.add_bytes(|row| value(row).map(str::as_bytes));
    }

    fn add_number(&mut self, value: impl FnMut(&'a R) -> Option<i64>) {
        self.add(Type::INT8_ARRAY, value);
    }

    /// A call of one of the functions that take a copy and a position, and then the columns.
    pub(super) fn call(&self, function: &str) -> String {
        let places: Vec<_> = (1..=self.columns.len() + 3)
            .map(|place| format!("${place}"))
            .collect();
        format!("SELECT hapax.{function}({})", places.join(", "))
    }

    pub(super) fn parameters(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        self.columns
            .iter()
            .map(|(values, kind)| (&**values as &(dyn ToSql + Sync), kind.clone()))
            .collect()
    }
}

/// Records; `numbers` says by which number the database has each policy.
pub(super) fn record_columns<'a>(
    records: &'a [Record],
    numbers: &HashMap<Arc<FingerprintPolicy>, i64>,
) -> Columns<'a, Record> {
    let mut columns = Columns::new(records);
    columns.add_bytes(|it| Some(it.head.id.as_bytes()));
    columns.add(Type::INT2_ARRAY, |it| state_code(it.head.state));
    columns.add_number(|it| Some(bigint(it.head.fence.as_u64())));
    columns.add_number(|it| Some(bigint(it.head.version)));
    columns.add(Type::INT4_ARRAY, |it| {
        i32::try_from(it.head.attempts).unwrap_or(i32::MAX)
    });
    columns.add_number(|it| Some(micros(it.head.created_at)));
    columns.add_number(|it| Some(micros(it.head.claimed_at)));
    columns.add_number(|it| Some(micros(it.head.finished_at)));
    columns.add_number(|it| Some(micros(it.head.expires_at)));
    columns.add_number(|it| Some(micros(it.head.tombstone_until)));
    columns.add(Type::INT4_ARRAY, |it| it.head.status.map(i32::from));
    columns.add(Type::UUID_ARRAY, |it| {
        Uuid::from_bytes(*it.head.token.as_bytes())
    });
    columns.add_bytes(|it| Some(&it.head.fingerprint.as_ref()?.digest));
    columns.add_number(|it| Some(numbers[&it.head.fingerprint.as_ref()?.policy]));
    columns.add_text(|it| Some(&it.head.scope.namespace));
    columns.add_text(|it| codec::principal(&it.head.scope));
    columns.add_text(|it| Some(&it.head.scope.method));
    columns.add_text(|it| Some(&it.head.scope.path));
    columns.add_text(|it| Some(it.head.key.as_str()));
    columns.add(Type::BYTEA_ARRAY, |it| {
        Some(it.answer.as_ref()?.encode(&it.head.id))
    });
    columns.add_text(|it| Some(it.head.request_id.as_ref()?.as_str()));
    columns
}

/// Entries of the audit log.
pub(super) fn entry_columns(log: &[LogEntry]) -> Columns<'_, LogEntry> {
    fn touched(entry: &LogEntry) -> Option<&Touched> {
        entry.touched.as_ref()
    }
    let mut columns = Columns::new(log);
    columns.add_number(|it| Some(bigint(it.sequence)));
    columns.add_number(|it| Some(micros(it.at)));
    columns.add_text(|it| Some(it.action.word()));
    columns.add_text(|it| Some(it.signed.by()));
    columns.add_text(|it| Some(it.signed.reason()));
    columns.add_bytes(|it| Some(touched(it)?.id.as_bytes()));
    columns.add_text(|it| Some(&touched(it)?.scope.namespace));
    columns.add_text(|it| codec::principal(&touched(it)?.scope));
    columns.add_text(|it| Some(&touched(it)?.scope.method));
    columns.add_text(|it| Some(&touched(it)?.scope.path));
    columns.add_text(|it| Some(touched(it)?.key.as_str()));
    columns.add(Type::INT2_ARRAY, |it| Some(state_code(touched(it)?.before)));
    columns.add(Type::INT2_ARRAY, |it| Some(state_code(touched(it)?.after)));
    columns.add(Type::INT4_ARRAY, |it| touched(it)?.status.map(i32::from));
    columns.add_number(|it| Some(bigint(touched(it)?.fence.as_u64())));
    columns.add_number(|it| Some(bigint(touched(it)?.version)));
    columns.add_number(|it| Some(touched(it).map_or(0, |it| micros(it.created_at))));
    columns
}
