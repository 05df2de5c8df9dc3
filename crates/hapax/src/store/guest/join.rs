//! Claiming a key, and ending an attempt, in the user's own transaction.
//!
//! An attempt ends by a row that fires the trigger in `join.sql`. The trigger checks what the guard checks under `Held`, by the row that the transaction sees.
//! SQLite's single write lock excludes all other writers until the transaction ends. If the trigger
//! refuses, it rolls the whole transaction back (`RAISE(ROLLBACK)`), so that nothing before it can
//! be committed by mistake.
//!
//! A key is claimed by a head that is written as unknown: if the transaction should ever be
//! committed without its end, a person has to look, and nothing runs again. The end makes it
//! completed in the same transaction, so that nobody else sees it unknown.

use hapax_core::outcome::Loss;
use hapax_core::record::State;
use hapax_core::store::{
    Change, Condition, Dialect, Joins, Put, Start, Statement, StoreError, Value, Written,
};

use super::Guest;
use crate::store::codec::{bigint, micros, principal, state_code};
use crate::store::start_row;

const SQL: &str = "INSERT INTO hapax_join (id, fence, state, status, now, retention, tombstone, answer) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

/// What a start returns: see `start_row`.
macro_rules! returning {
    () => {
        " RETURNING token = ?2, ?1, state, fence, version, attempts, lease_until, created_at, claimed_at, finished_at, expires_at, \
         tombstone_until, status, answer IS NOT NULL, token, fingerprint, CAST(policy AS BLOB), CAST(request_id AS BLOB), \
         (SELECT content FROM hapax_answers WHERE hapax_answers.answer = hapax_heads.answer)"
    };
}

/// Writes the head of a new key. Where there is one already, changes nothing and returns that one.
const START: &str = concat!(
    "INSERT INTO hapax_heads (state, fence, version, attempts, lease_until, created_at, claimed_at, finished_at, expires_at, \
     tombstone_until, status, id, token, fingerprint, policy, principal, namespace, method, path, key, request_id) \
     SELECT ?3, max(?1, floor + 1), max(?1, floor + 1), 1, ?1, ?1, ?1, 0, 0, 0, ?4, ?5, ?2, ?6, CAST(?7 AS TEXT), CAST(?8 AS TEXT), \
     CAST(?9 AS TEXT), CAST(?10 AS TEXT), CAST(?11 AS TEXT), CAST(?12 AS TEXT), CAST(?13 AS TEXT) FROM hapax_meta WHERE true \
     ON CONFLICT (id) DO UPDATE SET version = version",
    returning!()
);

/// Claims a record that was found, if it is still the same: a new life if its tombstone is over,
/// else one more attempt.
const START_OVER: &str = concat!(
    "UPDATE hapax_heads SET state = ?3, fence = max(?1, fence + 1, (SELECT floor + 1 FROM hapax_meta)), \
     version = max(?1, version + 1), attempts = CASE WHEN ?9 THEN 1 ELSE attempts + 1 END, lease_until = ?1, \
     created_at = CASE WHEN ?9 THEN ?1 ELSE created_at END, claimed_at = ?1, finished_at = 0, expires_at = 0, tombstone_until = 0, \
     status = ?4, token = ?2, fingerprint = ?6, policy = CAST(?7 AS TEXT), due = NULL, request_id = CAST(?10 AS TEXT) \
     WHERE id = ?5 AND fence = ?8",
    returning!()
);

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
            columns: &[],
            now: Some(now),
        }
    }

    /// Waiting is up to the user's connection: its `busy_timeout` counts when the transaction
    /// begins.
    fn start(&self, start: &Start<'_>) -> Statement {
        let (now, claim) = (self.shared.clock.now(), start.claim);
        let bytes = |bytes: &[u8]| Value::Bytes(Some(bytes.to_vec()));
        let text = |text: &str| bytes(text.as_bytes());
        let maybe = |text: Option<&str>| Value::Bytes(text.map(|text| text.as_bytes().to_vec()));
        let int = |number: i64| Value::Int(Some(number));
        let mut values = vec![
            int(micros(now)),
            bytes(claim.token.as_bytes()),
            int(state_code(State::Unknown).into()),
            Value::Int(Loss::NotJoined(None).code().map(i64::from)),
            bytes(start.id.as_bytes()),
            bytes(&claim.fingerprint.digest),
            text(&claim.fingerprint.policy.to_string()),
        ];
        let request_id = maybe(claim.request_id.as_ref().map(|id| id.as_str()));
        let sql = match start.over {
            None => {
                values.extend([
                    maybe(principal(&claim.scope)),
                    text(&claim.scope.namespace),
                    text(&claim.scope.method),
                    text(&claim.scope.path),
                    text(claim.key.as_str()),
                    request_id,
                ]);
                START
            }
            Some(over) => {
                values.extend([
                    int(bigint(over.fence.as_u64())),
                    int(over.is_gone(now).into()),
                    request_id,
                ]);
                START_OVER
            }
        };
        Statement {
            dialect: Dialect::Sqlite,
            sql,
            values,
            columns: start_row::COLUMNS,
            now: Some(now),
        }
    }

    fn started(&self, start: &Start<'_>, row: Option<Vec<Value>>) -> Result<Written, StoreError> {
        start_row::written(start, row)
    }
}
