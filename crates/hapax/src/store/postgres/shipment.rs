//! What comes from another store, column by column, as one statement takes it.

use std::collections::HashMap;
use std::sync::Arc;

use hapax_core::audit::LogEntry;
use hapax_core::fingerprint::FingerprintPolicy;
use hapax_core::record::Record;
use hapax_core::scope::Scope;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use crate::store::codec::{self, bigint, state_code};

/// A column of a statement: the values of all rows, with their type.
struct Column<'a>(Box<dyn ToSql + Send + Sync + 'a>, Type);

fn column<'a, T: ToSql + Send + Sync + 'a>(
    values: impl Iterator<Item = T>,
    kind: Type,
) -> Column<'a> {
    Column(Box::new(values.collect::<Vec<_>>()), kind)
}

/// A call of one of the functions that take a shipment: a copy and a position, and then the
/// columns.
fn call(function: &str, columns: usize) -> String {
    let places: Vec<_> = (1..=columns + 3).map(|place| format!("${place}")).collect();
    format!("SELECT hapax.{function}({})", places.join(", "))
}

fn parameters<'a>(columns: &'a [Column<'_>]) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    columns
        .iter()
        .map(|Column(values, kind)| (&**values as &(dyn ToSql + Sync), kind.clone()))
        .collect()
}

/// Records.
pub(super) struct Heads<'a>(Vec<Column<'a>>);

impl<'a> Heads<'a> {
    /// `numbers` says by which number the database has each policy.
    pub(super) fn of(
        records: &'a [Record],
        numbers: &'a HashMap<Arc<FingerprintPolicy>, i64>,
    ) -> Heads<'a> {
        let heads = || records.iter().map(|record| &record.head);
        let scopes = || heads().map(|head| &*head.scope);
        let answers = records.iter().map(|record| {
            record
                .answer
                .as_ref()
                .map(|answer| answer.encode(&record.head.id))
        });
        let fingerprints = || heads().map(|head| head.fingerprint.as_ref());
        Heads(vec![
            column(
                heads().map(|head| &head.id.as_bytes()[..]),
                Type::BYTEA_ARRAY,
            ),
            column(heads().map(|head| state_code(head.state)), Type::INT2_ARRAY),
            column(
                heads().map(|head| bigint(head.fence.as_u64())),
                Type::INT8_ARRAY,
            ),
            column(heads().map(|head| bigint(head.version)), Type::INT8_ARRAY),
            column(
                heads().map(|head| i32::try_from(head.attempts).unwrap_or(i32::MAX)),
                Type::INT4_ARRAY,
            ),
            column(
                heads().map(|head| codec::micros(head.created_at)),
                Type::INT8_ARRAY,
            ),
            column(
                heads().map(|head| codec::micros(head.claimed_at)),
                Type::INT8_ARRAY,
            ),
            column(
                heads().map(|head| codec::micros(head.finished_at)),
                Type::INT8_ARRAY,
            ),
            column(
                heads().map(|head| codec::micros(head.expires_at)),
                Type::INT8_ARRAY,
            ),
            column(
                heads().map(|head| codec::micros(head.tombstone_until)),
                Type::INT8_ARRAY,
            ),
            column(
                heads().map(|head| head.status.map(i32::from)),
                Type::INT4_ARRAY,
            ),
            column(
                heads().map(|head| Uuid::from_bytes(*head.token.as_bytes())),
                Type::UUID_ARRAY,
            ),
            column(
                fingerprints()
                    .map(|fingerprint| fingerprint.map(|fingerprint| &fingerprint.digest[..])),
                Type::BYTEA_ARRAY,
            ),
            column(
                fingerprints()
                    .map(|fingerprint| fingerprint.map(|fingerprint| numbers[&fingerprint.policy])),
                Type::INT8_ARRAY,
            ),
            column(
                scopes().map(|scope| scope.namespace.as_bytes()),
                Type::BYTEA_ARRAY,
            ),
            column(scopes().map(principal), Type::BYTEA_ARRAY),
            column(
                scopes().map(|scope| scope.method.as_bytes()),
                Type::BYTEA_ARRAY,
            ),
            column(
                scopes().map(|scope| scope.path.as_bytes()),
                Type::BYTEA_ARRAY,
            ),
            column(
                heads().map(|head| head.key.as_str().as_bytes()),
                Type::BYTEA_ARRAY,
            ),
            column(answers, Type::BYTEA_ARRAY),
            column(
                heads().map(|head| head.request_id.as_ref().map(|id| id.as_str().as_bytes())),
                Type::BYTEA_ARRAY,
            ),
        ])
    }

    pub(super) fn sql(&self) -> String {
        call("import", self.0.len())
    }

    pub(super) fn parameters(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        parameters(&self.0)
    }
}

/// Entries of the audit log.
pub(super) struct Entries<'a>(Vec<Column<'a>>);

impl<'a> Entries<'a> {
    pub(super) fn of(log: &'a [LogEntry]) -> Entries<'a> {
        let touched = || log.iter().map(|entry| entry.touched.as_ref());
        let scopes = || touched().map(|touched| touched.map(|touched| &*touched.scope));
        Entries(vec![
            column(
                log.iter().map(|entry| bigint(entry.sequence)),
                Type::INT8_ARRAY,
            ),
            column(
                log.iter().map(|entry| codec::micros(entry.at)),
                Type::INT8_ARRAY,
            ),
            column(
                log.iter().map(|entry| entry.action.word().as_bytes()),
                Type::BYTEA_ARRAY,
            ),
            column(
                log.iter().map(|entry| entry.signed.by().as_bytes()),
                Type::BYTEA_ARRAY,
            ),
            column(
                log.iter().map(|entry| entry.signed.reason().as_bytes()),
                Type::BYTEA_ARRAY,
            ),
            column(
                touched().map(|touched| touched.map(|touched| &touched.id.as_bytes()[..])),
                Type::BYTEA_ARRAY,
            ),
            column(
                scopes().map(|scope| scope.map(|scope| scope.namespace.as_bytes())),
                Type::BYTEA_ARRAY,
            ),
            column(
                scopes().map(|scope| scope.and_then(principal)),
                Type::BYTEA_ARRAY,
            ),
            column(
                scopes().map(|scope| scope.map(|scope| scope.method.as_bytes())),
                Type::BYTEA_ARRAY,
            ),
            column(
                scopes().map(|scope| scope.map(|scope| scope.path.as_bytes())),
                Type::BYTEA_ARRAY,
            ),
            column(
                touched().map(|touched| touched.map(|touched| touched.key.as_str().as_bytes())),
                Type::BYTEA_ARRAY,
            ),
            column(
                touched().map(|touched| touched.map(|touched| state_code(touched.before))),
                Type::INT2_ARRAY,
            ),
            column(
                touched().map(|touched| touched.map(|touched| state_code(touched.after))),
                Type::INT2_ARRAY,
            ),
            column(
                touched().map(|touched| touched.and_then(|touched| touched.status).map(i32::from)),
                Type::INT4_ARRAY,
            ),
            column(
                touched().map(|touched| touched.map(|touched| bigint(touched.fence.as_u64()))),
                Type::INT8_ARRAY,
            ),
            column(
                touched().map(|touched| touched.map(|touched| bigint(touched.version))),
                Type::INT8_ARRAY,
            ),
            column(
                touched()
                    .map(|touched| touched.map_or(0, |touched| codec::micros(touched.created_at))),
                Type::INT8_ARRAY,
            ),
        ])
    }

    pub(super) fn sql(&self) -> String {
        call("import_log", self.0.len())
    }

    pub(super) fn parameters(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        parameters(&self.0)
    }
}

/// Null: anonymous.
fn principal(scope: &Scope) -> Option<&[u8]> {
    codec::principal(scope).map(str::as_bytes)
}
