//! tokio-postgres 0.7.
//!
//! ```no_run
//! use hapax::Operation;
//! use hapax::join::{FinishError, Kept};
//!
//! async fn order(op: &Operation, client: &mut tokio_postgres::Client) -> Result<Kept, FinishError<tokio_postgres::Error>> {
//!     let tx = client.transaction().await.map_err(FinishError::RolledBack)?;
//!     tx.execute("INSERT INTO orders (item) VALUES ('a book')", &[]).await.map_err(FinishError::RolledBack)?;
//!     op.finish(tx, hapax::Answer::new(201, "ordered")).await
//! }
//! ```
//!
//! Where the effect is a single statement, an [`Effect`] does all of that in one round trip.

use std::fmt;

use hapax_core::store::{Column, Dialect, Statement, Value};
use tokio_postgres::error::Severity;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row, Transaction};

use super::{Committed, FinishError, IntoAnswer, Kept, Session};
use crate::Operation;

impl Session for Transaction<'_> {
    type Error = Error;

    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    async fn run(&mut self, statement: &Statement) -> Result<Option<Vec<Value>>, Error> {
        run(self.client(), statement).await
    }

    fn code(error: &Error) -> Option<String> {
        error.code().map(|code| code.code().to_owned())
    }
}

/// Commits the whole transaction with `COMMIT`, even where this is a nested one: after a finish
/// everything is committed.
impl super::Transaction for Transaction<'_> {
    async fn commit(self) -> Result<(), Error> {
        let committed = self.client().batch_execute(COMMIT).await;
        ended(self, &committed);
        committed
    }

    fn is_rolled_back(error: &Error) -> bool {
        error
            .as_db_error()
            .is_some_and(|error| error.parsed_severity() == Some(Severity::Error))
    }

    async fn run_and_commit(self, statement: &Statement) -> Committed<Error> {
        let (ran, committed) = run_with_commit(self.client(), statement).await;
        ended(self, &committed);
        judge(ran, committed)
    }
}

const COMMIT: &str = "COMMIT";

/// Sends the statement and the commit of the open transaction together, in one round trip. If the
/// statement fails, the commit finds a failed transaction and rolls it back. For transactions that
/// are begun by hand.
pub async fn run_and_commit(client: &Client, statement: &Statement) -> Committed<Error> {
    let (ran, committed) = run_with_commit(client, statement).await;
    judge(ran, committed)
}

async fn run_with_commit(
    client: &Client,
    statement: &Statement,
) -> (Result<Option<Vec<Value>>, Error>, Result<(), Error>) {
    // The futures are polled in this order, and each sends its message when first polled.
    tokio::join!(biased; run(client, statement), client.batch_execute(COMMIT))
}

fn judge(ran: Result<Option<Vec<Value>>, Error>, committed: Result<(), Error>) -> Committed<Error> {
    match (ran, committed) {
        (Ok(row), Ok(())) => Committed::Yes(row),
        (Err(error), _) | (Ok(_), Err(error))
            if <Transaction<'_> as super::Transaction>::is_rolled_back(&error) =>
        {
            Committed::No(error)
        }
        (Err(error), _) | (Ok(_), Err(error)) => Committed::Unclear(error),
    }
}

/// Keeps the driver from rolling back a transaction that has ended, which would cost one more
/// message and a warning in the server's log.
fn ended(transaction: Transaction<'_>, committed: &Result<(), Error>) {
    if committed.is_ok() {
        std::mem::forget(transaction);
    }
}

/// Runs the statement with its parameter types given, so that it needs no preparing. For
/// transactions that are begun by hand.
///
/// # Errors
///
/// When the driver fails.
pub async fn run(client: &Client, statement: &Statement) -> Result<Option<Vec<Value>>, Error> {
    let values: Vec<_> = statement
        .values
        .iter()
        .map(|value| (of(value), kind(value)))
        .collect();
    let row = client.query_typed_opt(statement.sql, &values).await?;
    row.map(|row| read(&row, statement)).transpose()
}

fn of(value: &Value) -> &(dyn ToSql + Sync) {
    match value {
        Value::Bytes(bytes) => bytes,
        Value::Int(int) => int,
    }
}

fn kind(value: &Value) -> Type {
    match value {
        Value::Bytes(_) => Type::BYTEA,
        Value::Int(_) => Type::INT8,
    }
}

fn read(row: &Row, statement: &Statement) -> Result<Vec<Value>, Error> {
    let columns = statement.columns.iter().enumerate();
    columns
        .map(|(place, column)| match column {
            Column::Bytes => row.try_get(place).map(Value::Bytes),
            Column::Int => row.try_get(place).map(Value::Int),
        })
        .collect()
}

/// An effect of one statement, prepared together with the completion of its record: one round trip
/// for both, without `BEGIN` and `COMMIT`. The answer must be known before the effect takes place.
/// Prepared statements need a direct connection, or a pooler that supports them (PgBouncer from
/// 1.21 on, with `max_prepared_statements`).
///
/// ```no_run
/// # use hapax::Operation;
/// # use hapax::join::{FinishError, Kept};
/// use hapax::join::tokio_postgres::Effect;
///
/// # async fn order(op: &Operation, client: &mut tokio_postgres::Client) -> Result<Kept, FinishError<tokio_postgres::Error>> {
/// // Once for each connection.
/// let order = Effect::prepare(client, "INSERT INTO orders (item) VALUES ($1)").await.map_err(FinishError::RolledBack)?;
///
/// order.finish(op, client, &[&"a book"], hapax::Answer::new(201, "ordered")).await
/// # }
/// ```
#[derive(Clone)]
pub struct Effect(tokio_postgres::Statement);

impl Effect {
    /// Prepares an `INSERT`, `UPDATE` or `DELETE` on this connection. It must have no `RETURNING`,
    /// because the rows would not be read.
    ///
    /// # Errors
    ///
    /// When `sql` is another kind of statement, when the database is not a store, and when the
    /// driver fails.
    pub async fn prepare(client: &Client, sql: &str) -> Result<Effect, Error> {
        // First prepared by itself, to learn the number and types of its parameters.
        let alone = client.prepare(sql).await?;
        let places: Vec<_> = (1..=ENDING.len())
            .map(|place| format!("${}", alone.params().len() + place))
            .collect();
        // Postgres would skip a plain query here if nothing read from it. The appended `RETURNING`
        // makes a query a syntax error. The outer query counts the rows so that the record is
        // locked after everything else.
        let sql = format!(
            "WITH effect AS ({sql}\nRETURNING 1) SELECT hapax.join({}) FROM (SELECT count(*) FROM effect) AS done",
            places.join(", ")
        );
        let types: Vec<_> = alone.params().iter().chain(&ENDING).cloned().collect();
        client.prepare_typed(&sql, &types).await.map(Effect)
    }

    /// Runs the effect with these values and completes the record, or does neither:
    /// [`Operation::finish`] for a transaction of one statement.
    ///
    /// Use the connection on which it was prepared. No transaction may have been begun there by
    /// hand: both would commit with that transaction, and not when this returns.
    ///
    /// # Errors
    ///
    /// As [`Operation::finish`].
    pub async fn finish<M>(
        &self,
        operation: &Operation,
        client: &mut Client,
        values: &[&(dyn ToSql + Sync)],
        answer: impl IntoAnswer<M>,
    ) -> Result<Kept, FinishError<Error>> {
        operation
            .finish(
                Whole {
                    effect: self,
                    client,
                    values,
                },
                answer,
            )
            .await
    }
}

impl fmt::Debug for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Effect").finish_non_exhaustive()
    }
}

/// The parameter types of `hapax.join`.
const ENDING: [Type; 7] = [
    Type::BYTEA,
    Type::INT8,
    Type::INT8,
    Type::INT8,
    Type::INT8,
    Type::INT8,
    Type::BYTEA,
];

/// A transaction of one statement. It stays private, because to [join](Operation::join) in it would
/// be to commit.
struct Whole<'a> {
    effect: &'a Effect,
    client: &'a Client,
    values: &'a [&'a (dyn ToSql + Sync)],
}

impl Session for Whole<'_> {
    type Error = Error;

    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    async fn run(&mut self, statement: &Statement) -> Result<Option<Vec<Value>>, Error> {
        let values: Vec<_> = self
            .values
            .iter()
            .copied()
            .chain(statement.values.iter().map(of))
            .collect();
        let row = self.client.query_opt(&self.effect.0, &values).await?;
        row.map(|row| read(&row, statement)).transpose()
    }

    fn code(error: &Error) -> Option<String> {
        <Transaction<'_> as Session>::code(error)
    }
}

impl super::Transaction for Whole<'_> {
    /// The statement has committed by itself.
    async fn commit(self) -> Result<(), Error> {
        Ok(())
    }

    async fn run_and_commit(mut self, statement: &Statement) -> Committed<Error> {
        judge(self.run(statement).await, Ok(()))
    }
}
