//! What lets a transaction of sqlx 0.8 end an attempt: Hapax has a feature for sqlx 0.9 only, and
//! any driver can do it that can run a statement.

use hapax::core::store::{Column, Dialect, Statement, Value};
use hapax::join::Session;
use sqlx::postgres::{PgDatabaseError, PgRow, PgSeverity};
use sqlx::{Error, PgPool, Postgres, Row};

/// An outermost transaction: one that is begun here is inside no other.
pub struct Transaction(pub sqlx::Transaction<'static, Postgres>);

impl Transaction {
    pub async fn begin(pool: &PgPool) -> Result<Transaction, Error> {
        pool.begin().await.map(Transaction)
    }
}

impl Session for Transaction {
    type Error = Error;

    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    async fn run(&mut self, statement: &Statement) -> Result<Option<Vec<Value>>, Error> {
        let query = sqlx::query(statement.sql);
        let query = statement
            .values
            .iter()
            .fold(query, |query, value| match value {
                Value::Bytes(bytes) => query.bind(bytes.as_deref()),
                Value::Int(int) => query.bind(int),
            });
        let row = query.fetch_optional(&mut *self.0).await?;
        row.map(|row| read(&row, statement)).transpose()
    }

    fn code(error: &Error) -> Option<String> {
        error.as_database_error()?.code().map(Into::into)
    }
}

fn read(row: &PgRow, statement: &Statement) -> Result<Vec<Value>, Error> {
    let columns = statement.columns.iter().enumerate();
    columns
        .map(|(place, column)| match column {
            Column::Bytes => row.try_get(place).map(Value::Bytes),
            Column::Int => row.try_get(place).map(Value::Int),
        })
        .collect()
}

impl hapax::join::Transaction for Transaction {
    async fn commit(self) -> Result<(), Error> {
        self.0.commit().await
    }

    /// The database said so itself, and lives on.
    fn is_rolled_back(error: &Error) -> bool {
        let error = error
            .as_database_error()
            .and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
        error.is_some_and(|error| matches!(error.severity(), PgSeverity::Error))
    }
}
