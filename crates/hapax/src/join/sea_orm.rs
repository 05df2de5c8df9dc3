//! sea-orm 2, on Postgres.
//!
//! ```no_run
//! use hapax::Operation;
//! use hapax::join::{FinishError, Kept};
//! use sea_orm::{ConnectionTrait, DatabaseConnection, DbErr, TransactionTrait};
//!
//! async fn order(op: &Operation, db: &DatabaseConnection) -> Result<Kept, FinishError<DbErr>> {
//!     let tx = db.begin().await.map_err(FinishError::RolledBack)?;
//!     tx.execute_unprepared("INSERT INTO orders (item) VALUES ('a book')").await.map_err(FinishError::RolledBack)?;
//!     op.finish(tx, hapax::Answer::new(201, "ordered")).await
//! }
//! ```
//!
//! sea-orm does not distinguish a nested transaction from the outermost one. Finish the outermost:
//! ending a nested one commits nothing, and only what the store has when the handler returns
//! counts. The layer checks that, so finishing through sea-orm costs one round trip more than
//! through the other drivers.

use hapax_core::store::{Column, Dialect, Statement, Value};
use sea_orm::sqlx::postgres::{PgDatabaseError, PgSeverity};
use sea_orm::{
    ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, QueryResult,
    RuntimeErr, TransactionTrait,
};

use super::Session;
use super::guard::{Begin, to_its_end, transaction_pool};
use crate::BoxError;

impl Session for DatabaseTransaction {
    type Error = DbErr;

    fn dialect(&self) -> Dialect {
        match self.get_database_backend() {
            DbBackend::Sqlite => Dialect::Sqlite,
            // Another database does not know our statement, and reports an error.
            _ => Dialect::Postgres,
        }
    }

    async fn run(&mut self, statement: &Statement) -> Result<Option<Vec<Value>>, DbErr> {
        let values = statement.values.iter().map(|value| match value {
            Value::Bytes(bytes) => bytes.clone().into(),
            Value::Int(int) => (*int).into(),
        });
        let asked = sea_orm::Statement::from_sql_and_values(
            self.get_database_backend(),
            statement.sql,
            values,
        );
        let row = self.query_one_raw(asked).await?;
        row.map(|row| read(&row, statement)).transpose()
    }

    fn code(error: &DbErr) -> Option<String> {
        cause(error)?.as_database_error()?.code().map(Into::into)
    }
}

fn read(row: &QueryResult, statement: &Statement) -> Result<Vec<Value>, DbErr> {
    let columns = statement.columns.iter().enumerate();
    columns
        .map(|(place, column)| match column {
            Column::Bytes => row.try_get_by_index(place).map(Value::Bytes),
            Column::Int => row.try_get_by_index(place).map(Value::Int),
        })
        .collect()
}

impl super::Transaction for DatabaseTransaction {
    const ENDS_ALL: bool = false;

    async fn commit(self) -> Result<(), DbErr> {
        self.commit().await
    }

    fn is_rolled_back(error: &DbErr) -> bool {
        let error = cause(error).and_then(|error| {
            error
                .as_database_error()?
                .try_downcast_ref::<PgDatabaseError>()
        });
        error.is_some_and(|error| error.severity() == PgSeverity::Error)
    }
}

impl Begin for DatabaseConnection {
    type Transaction = DatabaseTransaction;

    async fn begin(&self) -> Result<DatabaseTransaction, DbErr> {
        if self.get_database_backend() == DbBackend::Sqlite {
            let why = "hapax begins no transactions of sea-orm in SQLite: use a `sqlx::SqlitePool`";
            return Err(DbErr::Custom(why.to_owned()));
        }
        let database = self.clone();
        to_its_end(async move { TransactionTrait::begin(&database).await }).await
    }

    async fn roll_back(transaction: DatabaseTransaction) -> Result<(), DbErr> {
        transaction.rollback().await
    }
}

transaction_pool!(DatabaseConnection);

impl super::Database for DatabaseConnection {
    type Transaction = DatabaseTransaction;

    async fn begin(&mut self) -> Result<Self::Transaction, BoxError> {
        Ok(Begin::begin(self).await?)
    }

    async fn roll_back(transaction: Self::Transaction) -> Result<(), BoxError> {
        Ok(transaction.rollback().await?)
    }
}

/// The error of the driver below sea-orm.
fn cause(error: &DbErr) -> Option<&sea_orm::SqlxError> {
    match error {
        DbErr::Conn(RuntimeErr::SqlxError(error))
        | DbErr::Exec(RuntimeErr::SqlxError(error))
        | DbErr::Query(RuntimeErr::SqlxError(error)) => Some(error),
        _ => None,
    }
}
