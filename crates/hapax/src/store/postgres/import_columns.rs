//! Data from another store, as the columns of one statement.

use std::collections::HashMap;
use std::sync::Arc;

use hapax_core::audit::{LogEntry, Touched};
use hapax_core::fingerprint::FingerprintPolicy;
use hapax_core::record::Record;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::columns::Columns;
use crate::store::codec::{self, bigint, micros, state_code};

/// The columns of records. `numbers` has the database's number of each policy.
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

/// The columns of audit log entries.
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
