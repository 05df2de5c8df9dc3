//! Claims and ends of attempts that are sent through the caller's connection, in the caller's
//! transaction.

use std::sync::Arc;

use hapax_core::fingerprint::FingerprintPolicy;
use hapax_core::record::Head;
use hapax_core::store::{
    Change, Column, Condition, Dialect, Joins, Put, Reply, Start, Statement, StoreError, Value,
    Written,
};
use hapax_core::time::Timestamp;

use super::Postgres;
use super::finish::FinishRow;
use super::policies;
use super::row::micros;
use crate::store::codec::{bigint, principal, state_code};
use crate::store::start_row;

const SQL: &str = "SELECT hapax.join($1, $2, $3, $4, $5, $6, $7)";
const START: &str = "SELECT * FROM hapax.start_record($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";

impl Joins for Postgres {
    fn joined(&self, head: &Head, now: Timestamp) {
        self.shared.server_history.remember(head, now);
    }

    fn statement(&self, put: &Put) -> Statement {
        let values = match (&put.change, put.condition) {
            (Change::Finish(finish), Condition::Held { fence }) => {
                values(FinishRow::new(put.id, fence, finish))
            }
            // No other pair ends an attempt: the database refuses a call without values.
            _ => vec![Value::Bytes(None), NO, NO, NO, NO, NO, Value::Bytes(None)],
        };
        Statement {
            dialect: Dialect::Postgres,
            sql: SQL,
            values,
            columns: &[Column::Int],
            now: None,
        }
    }

    /// Through the store's own connection: in the caller's transaction, the first use of a policy
    /// would hold up everybody else who uses it.
    fn prepare_start(&self, policy: &Arc<FingerprintPolicy>) -> Reply<'_, ()> {
        let policy = policy.clone();
        Box::pin(async move {
            let number = self.shared.policies.number(&policy, &self.aside);
            number.await.map(drop)
        })
    }

    /// The database finds out by itself whether a record may be claimed again.
    fn start(&self, start: &Start<'_>) -> Statement {
        let claim = start.claim;
        let text = |text: &str| Value::Bytes(Some(text.as_bytes().to_vec()));
        let policy = policies::number(&claim.fingerprint.policy.to_string());
        let values = vec![
            text(&claim.scope.namespace),
            Value::Bytes(principal(&claim.scope).map(|name| name.as_bytes().to_vec())),
            text(&claim.scope.method),
            text(&claim.scope.path),
            text(claim.key.as_str()),
            Value::Bytes(Some(start.id.as_bytes().to_vec())),
            Value::Bytes(Some(claim.fingerprint.digest.to_vec())),
            Value::Int(Some(policy)),
            Value::Int(Some(micros(start.wait))),
            Value::Bytes(
                claim
                    .request_id
                    .as_ref()
                    .map(|id| id.as_str().as_bytes().to_vec()),
            ),
        ];
        Statement {
            dialect: Dialect::Postgres,
            sql: START,
            values,
            columns: start_row::COLUMNS,
            now: None,
        }
    }

    fn started(&self, start: &Start<'_>, row: Option<Vec<Value>>) -> Result<Written, StoreError> {
        start_row::written(start, row)
    }
}

const NO: Value = Value::Int(None);

fn values(ending: FinishRow) -> Vec<Value> {
    let FinishRow {
        id,
        fence,
        state,
        status,
        lifetime,
        answer,
    } = ending;
    vec![
        Value::Bytes(Some(id.as_bytes().to_vec())),
        Value::Int(Some(bigint(fence.as_u64()))),
        Value::Int(Some(state_code(state).into())),
        Value::Int(status.map(i64::from)),
        Value::Int(Some(micros(lifetime.retention))),
        Value::Int(Some(micros(lifetime.tombstone))),
        Value::Bytes(answer),
    ]
}
