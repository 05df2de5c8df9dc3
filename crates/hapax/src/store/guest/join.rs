//! Ending an attempt in a transaction of the user's own: `join.sql` has the trigger by which an
//! inserted row does so.
//!
//! The trigger judges as the guard does under `Held`, by the row that the transaction finds;
//! SQLite's one lock for writing is what keeps everybody else away until it has ended. What it
//! refuses takes the whole transaction back (`RAISE(ROLLBACK)`), so that nothing of what came
//! before it can be committed by mistake.

use hapax_core::store::{Change, Condition, Dialect, Joins, Put, Statement, Value};

use super::Guest;
use crate::store::codec::{micros, state_code};

const SQL: &str = "INSERT INTO hapax_join (id, fence, state, status, now, retention, tombstone, answer) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

impl Joins for Guest {
    /// # Panics
    ///
    /// If it is not the end of an attempt that the caller holds.
    fn statement(&self, put: &Put) -> Statement {
        let (Condition::Held { fence }, Change::Finish(finish)) = (put.condition, &put.change)
        else {
            panic!("only the end of an attempt joins a transaction");
        };
        let now = self.shared.clock.now();
        let expires = now.after(finish.lifetime.retention);
        let gone = expires.after(finish.lifetime.tombstone);
        // As differences of what the file can hold, so that no sum in the trigger is more.
        let (retention, tombstone) = (
            micros(expires) - micros(now),
            micros(gone) - micros(expires),
        );
        let int = |number: i64| Value::Int(Some(number));
        let values = vec![
            Value::Bytes(Some(put.id.as_bytes().to_vec())),
            int(fence.as_u64() as i64),
            int(state_code(finish.state).into()),
            Value::Int(finish.status.map(i64::from)),
            int(micros(now)),
            int(retention),
            int(tombstone),
            Value::Bytes(finish.answer.as_ref().map(|answer| answer.encode(&put.id))),
        ];
        Statement {
            dialect: Dialect::Sqlite,
            sql: SQL,
            values,
            now: Some(now),
        }
    }
}
