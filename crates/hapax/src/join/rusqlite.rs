//! rusqlite, in the user's own file.
//!
//! ```no_run
//! use hapax::Operation;
//! use hapax::join::{FinishError, Kept};
//! use rusqlite::{Connection, TransactionBehavior};
//!
//! async fn order(op: Operation, mut connection: Connection) -> Result<Kept, FinishError<rusqlite::Error>> {
//!     let work = move || {
//!         let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(FinishError::RolledBack)?;
//!         tx.execute("INSERT INTO orders (item) VALUES ('a book')", []).map_err(FinishError::RolledBack)?;
//!         op.finish_blocking(tx, hapax::Answer::new(201, "ordered"))
//!     };
//!     tokio::task::spawn_blocking(work).await.expect("the work does not panic")
//! }
//! ```
//!
//! Begin as `Immediate`: SQLite refuses a transaction that reads before it writes if another
//! connection wrote in between.

use hapax_core::store::{Column, Dialect, Statement, Value};
use rusqlite::{Error, ErrorCode, Row, ToSql, Transaction, params_from_iter};

use super::Session;

impl Session for Transaction<'_> {
    type Error = Error;

    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    /// Zero after SQLite has rolled the transaction back by itself.
    fn depth(&mut self) -> Option<usize> {
        Some(usize::from(!self.is_autocommit()))
    }

    async fn run(&mut self, statement: &Statement) -> Result<Option<Vec<Value>>, Error> {
        let values = statement.values.iter().map(|value| match value {
            Value::Bytes(bytes) => bytes as &dyn ToSql,
            Value::Int(int) => int,
        });
        let mut prepared = self.prepare_cached(statement.sql)?;
        let mut rows = prepared.query(params_from_iter(values))?;
        let row = rows.next()?.map(|row| read(row, statement)).transpose()?;
        // To its end: a statement that is left before that may have done only a part.
        while rows.next()?.is_some() {}
        Ok(row)
    }

    fn code(error: &Error) -> Option<String> {
        match error {
            Error::SqliteFailure(_, said) => said.clone(),
            _ => None,
        }
    }
}

fn read(row: &Row<'_>, statement: &Statement) -> Result<Vec<Value>, Error> {
    let columns = statement.columns.iter().enumerate();
    columns
        .map(|(place, column)| match column {
            Column::Bytes => row.get(place).map(Value::Bytes),
            Column::Int => row.get(place).map(Value::Int),
        })
        .collect()
}

impl super::Transaction for Transaction<'_> {
    async fn commit(self) -> Result<(), Error> {
        self.commit()
    }

    /// After these errors nothing was written that a reader could find. After any other error the
    /// commit may be on disk.
    fn is_rolled_back(error: &Error) -> bool {
        matches!(
            error.sqlite_error_code(),
            Some(ErrorCode::DatabaseBusy | ErrorCode::ConstraintViolation)
        )
    }
}
