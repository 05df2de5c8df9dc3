//! Ending an attempt in the user's own transaction: inserting a row fires the trigger in
//! `join.sql`.
//!
//! The trigger checks what the guard checks under `Held`, by the row that the transaction sees.
//! SQLite's single write lock excludes all other writers until the transaction ends. If the trigger
//! refuses, it rolls the whole transaction back (`RAISE(ROLLBACK)`), so that nothing before it can
//! be committed by mistake.

use hapax_core::store::{Change, Condition, Dialect, Joins, Put, Statement, Value};

use super::Guest;
use crate::store::codec::{micros, state_code};

const SQL: &str = "INSERT INTO hapax_join (id, fence, state, status, now, retention, tombstone, answer) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

impl Joins for Guest {
    /// # Panics
    ///
    /// If the put is not the end of an attempt that the caller holds.
    fn statement(&self, put: &Put) -> Statement {
        let (Condition::Held { fence }, Change::Finish(finish)) = (put.condition, &put.change)
        else {
            panic!("only the end of an attempt joins a transaction");
        };
        let now = self.shared.clock.now();
        let expires = now.after(finish.lifetime.retention);
        let gone = expires.after(finish.lifetime.tombstone);
        // Passed as differences of storable times, so that no sum in the trigger overflows.
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
