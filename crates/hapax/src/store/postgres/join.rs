//! Ends of attempts that are sent through the caller's connection, in the caller's transaction.

use hapax_core::record::Head;
use hapax_core::store::{Change, Condition, Dialect, Joins, Put, Statement, Value};
use hapax_core::time::Timestamp;

use super::Postgres;
use super::finish::FinishRow;
use super::row::micros;
use crate::store::codec::{bigint, state_code};

const SQL: &str = "SELECT hapax.join($1, $2, $3, $4, $5, $6, $7)";

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
            now: None,
        }
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
