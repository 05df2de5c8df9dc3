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

use hapax_core::store::{Dialect, Statement, Value};
use tokio_postgres::error::Severity;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Transaction};

use super::{Committed, Session};

impl Session for Transaction<'_> {
    type Error = Error;

    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    async fn run(&mut self, statement: &Statement) -> Result<Option<i64>, Error> {
        run(self.client(), statement).await
    }

    fn code(error: &Error) -> Option<String> {
        error.code().map(|code| code.code().to_owned())
    }
}

/// Commits the transaction itself, also where this is one within another: what has finished is there.
impl super::Transaction for Transaction<'_> {
    async fn commit(self) -> Result<(), Error> {
        let committed = self.client().batch_execute(COMMIT).await;
        ended(self, &committed);
        committed
    }

    fn is_rolled_back(error: &Error) -> bool {
        error.as_db_error().is_some_and(|error| error.parsed_severity() == Some(Severity::Error))
    }

    /// Both at once: one round trip. If the statement fails, the commit finds a transaction that has failed, and rolls it back.
    async fn run_and_commit(self, statement: &Statement) -> Committed<Error> {
        // Polled in this order, and sent when first polled.
        let (ran, committed) = tokio::join!(biased; run(self.client(), statement), self.client().batch_execute(COMMIT));
        ended(self, &committed);
        match (ran, committed) {
            (Ok(now), Ok(())) => Committed::Yes(now),
            (Err(error), _) | (Ok(_), Err(error)) if Self::is_rolled_back(&error) => Committed::No(error),
            (Err(error), _) | (Ok(_), Err(error)) => Committed::Unclear(error),
        }
    }
}

const COMMIT: &str = "COMMIT";

/// Keeps the driver from rolling back what has ended, which would be one more message and a warning in the server's log.
fn ended(transaction: Transaction<'_>, committed: &Result<(), Error>) {
    if committed.is_ok() {
        std::mem::forget(transaction);
    }
}

/// With its types given, so that it needs no preparing.
async fn run(client: &Client, statement: &Statement) -> Result<Option<i64>, Error> {
    let values = statement.values.iter().map(|value| match value {
        Value::Bytes(bytes) => (bytes as &(dyn ToSql + Sync), Type::BYTEA),
        Value::Int(int) => (int as &(dyn ToSql + Sync), Type::INT8),
    });
    let row = client.query_typed_opt(statement.sql, &values.collect::<Vec<_>>()).await?;
    row.map(|row| row.try_get(0)).transpose()
}
