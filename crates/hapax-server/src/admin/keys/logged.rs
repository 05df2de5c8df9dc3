//! Entries of the audit log, as sent over HTTP and printed by `hapax keys log --json`.

use hapax::core::audit::{LogEntry, Touched};
use hapax::core::operation::OperationIds;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::time::Time;
use super::wire::name_of;

/// A page of the log.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct LoggedPage {
    pub(crate) entries: Vec<Logged>,
    /// What to send as `after`, if that was sent, or else as `before`, to go on; `null` at the end.
    pub(crate) next: Option<u64>,
}

/// Something that was done by hand.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Logged {
    /// Counted up from one, without gaps.
    pub(crate) sequence: u64,
    pub(crate) at: Time,
    /// `settle`, `forget`, or a word for something that changes no record.
    pub(crate) action: String,
    /// The name that was given, and in brackets the token that was presented.
    pub(crate) by: String,
    pub(crate) reason: String,
    /// The record that was changed, if it was one.
    pub(crate) record: Option<ChangedRecord>,
}

/// A record as it was and as it became.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ChangedRecord {
    #[schema(pattern = "^[0-9a-f]{64}$")]
    pub(crate) id: String,
    #[schema(pattern = "^[0-9a-f]{64}$")]
    pub(crate) operation_id: String,
    pub(crate) namespace: String,
    /// Absent for the anonymous.
    pub(crate) principal: Option<String>,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) key: String,
    pub(crate) before: String,
    pub(crate) after: String,
    pub(crate) status: Option<u16>,
    pub(crate) fence: u64,
    pub(crate) version: u64,
}

impl LoggedPage {
    /// A page of a query with this limit. Only a full page may have a next one.
    pub(crate) fn new(entries: Vec<Logged>, limit: usize) -> LoggedPage {
        let next = entries
            .last()
            .filter(|_| entries.len() >= limit)
            .map(|entry| entry.sequence);
        LoggedPage { entries, next }
    }
}

impl Logged {
    pub(crate) fn new(entry: &LogEntry, ids: &OperationIds) -> Logged {
        Logged {
            sequence: entry.sequence,
            at: Time(entry.at),
            action: entry.action.word().to_owned(),
            by: entry.signed.by().to_owned(),
            reason: entry.signed.reason().to_owned(),
            record: entry
                .touched
                .as_ref()
                .map(|touched| ChangedRecord::new(touched, ids)),
        }
    }
}

impl ChangedRecord {
    fn new(touched: &Touched, ids: &OperationIds) -> ChangedRecord {
        let scope = &touched.scope;
        ChangedRecord {
            id: touched.id.to_string(),
            operation_id: ids.make(&touched.id, touched.created_at).to_string(),
            namespace: scope.namespace.to_string(),
            principal: name_of(&scope.principal),
            method: scope.method.to_string(),
            path: scope.path.to_string(),
            key: touched.key.as_str().to_owned(),
            before: touched.before.word().to_owned(),
            after: touched.after.word().to_owned(),
            status: touched.status,
            fence: touched.fence.as_u64(),
            version: touched.version,
        }
    }
}
