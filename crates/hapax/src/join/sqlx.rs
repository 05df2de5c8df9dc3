//! sqlx 0.9, for Postgres and for SQLite.
//!
//! ```no_run
//! use hapax::Operation;
//! use hapax::join::{FinishError, Kept};
//!
//! # #[cfg(feature = "sqlx-0_9-postgres")]
//! async fn order(op: &Operation, pool: &sqlx::PgPool) -> Result<Kept, FinishError<sqlx::Error>> {
//!     let mut tx = pool.begin().await.map_err(FinishError::RolledBack)?;
//!     sqlx::query("INSERT INTO orders (item) VALUES ('a book')").execute(&mut *tx).await.map_err(FinishError::RolledBack)?;
//!     op.finish(tx, hapax::Answer::new(201, "ordered")).await
//! }
//! ```
//!
//! Where other code commits, `op.join(&mut *tx, answer)` only joins. In SQLite begin with
//! `pool.begin_with("BEGIN IMMEDIATE")`: SQLite refuses a transaction that reads before it writes
//! if another connection wrote in between.

use hapax_core::store::{Column, Dialect, Statement, Value};
use sqlx::{ColumnIndex, Connection, Database, Decode, Error, Row, Transaction, Type};
use sqlx_core::transaction::TransactionManager;

use super::Session;
use super::guard::{Begin, to_its_end, transaction_pool};
use crate::BoxError;

/// The differences between the databases of sqlx.
trait Known: Connection {
    const DIALECT: Dialect;

    async fn run(&mut self, statement: &Statement) -> Result<Option<Vec<Value>>, Error>;

    fn code(error: &Error) -> Option<String>;

    /// Whether the database itself reported the error, and is still running.
    fn is_rolled_back(error: &Error) -> bool;
}

fn read<R>(row: &R, statement: &Statement) -> Result<Vec<Value>, Error>
where
    R: Row,
    usize: ColumnIndex<R>,
    for<'r> Option<Vec<u8>>: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> Option<i64>: Decode<'r, R::Database> + Type<R::Database>,
{
    let columns = statement.columns.iter().enumerate();
    columns
        .map(|(place, column)| match column {
            Column::Bytes => row.try_get(place).map(Value::Bytes),
            Column::Int => row.try_get(place).map(Value::Int),
        })
        .collect()
}

fn depth<C: Connection>(connection: &C) -> usize {
    <C::Database as Database>::TransactionManager::get_transaction_depth(connection)
}

macro_rules! session {
    ($connection:ty, $database:ty) => {
        impl Session for $connection {
            type Error = Error;

            fn dialect(&self) -> Dialect {
                <$connection as Known>::DIALECT
            }

            fn depth(&mut self) -> Option<usize> {
                Some(depth(self))
            }

            async fn run(&mut self, statement: &Statement) -> Result<Option<Vec<Value>>, Error> {
                Known::run(self, statement).await
            }

            fn code(error: &Error) -> Option<String> {
                <$connection as Known>::code(error)
            }
        }

        impl Session for Transaction<'_, $database> {
            type Error = Error;

            fn dialect(&self) -> Dialect {
                <$connection as Known>::DIALECT
            }

            fn depth(&mut self) -> Option<usize> {
                Some(depth(&**self))
            }

            async fn run(&mut self, statement: &Statement) -> Result<Option<Vec<Value>>, Error> {
                Known::run(&mut **self, statement).await
            }

            fn code(error: &Error) -> Option<String> {
                <$connection as Known>::code(error)
            }
        }

        impl crate::join::Transaction for Transaction<'_, $database> {
            async fn commit(self) -> Result<(), Error> {
                self.commit().await
            }

            fn is_rolled_back(error: &Error) -> bool {
                <$connection as Known>::is_rolled_back(error)
            }
        }
    };
}

#[cfg(feature = "sqlx-0_9-postgres")]
mod postgres {
    use sqlx::PgConnection;
    use sqlx::postgres::{PgDatabaseError, PgSeverity};

    use super::*;

    impl Known for PgConnection {
        const DIALECT: Dialect = Dialect::Postgres;

        async fn run(&mut self, statement: &Statement) -> Result<Option<Vec<Value>>, Error> {
            let query = statement
                .values
                .iter()
                .fold(sqlx::query(statement.sql), |query, value| match value {
                    Value::Bytes(bytes) => query.bind(bytes.as_deref()),
                    Value::Int(int) => query.bind(int),
                });
            let row = query.fetch_optional(self).await?;
            row.map(|row| read(&row, statement)).transpose()
        }

        fn code(error: &Error) -> Option<String> {
            error.as_database_error()?.code().map(Into::into)
        }

        fn is_rolled_back(error: &Error) -> bool {
            let error = error
                .as_database_error()
                .and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
            error.is_some_and(|error| error.severity() == PgSeverity::Error)
        }
    }

    session!(PgConnection, sqlx::Postgres);

    impl Begin for sqlx::PgPool {
        type Transaction = Transaction<'static, sqlx::Postgres>;

        async fn begin(&self) -> Result<Self::Transaction, Error> {
            let pool = self.clone();
            to_its_end(async move { pool.begin().await }).await
        }

        async fn roll_back(transaction: Self::Transaction) -> Result<(), Error> {
            transaction.rollback().await
        }
    }

    transaction_pool!(sqlx::PgPool);

    impl crate::join::Database for sqlx::PgPool {
        type Transaction = Transaction<'static, sqlx::Postgres>;

        async fn begin(&mut self) -> Result<Self::Transaction, BoxError> {
            Ok(Begin::begin(self).await?)
        }

        async fn roll_back(transaction: Self::Transaction) -> Result<(), BoxError> {
            Ok(transaction.rollback().await?)
        }
    }
}

#[cfg(feature = "sqlx-0_9-sqlite")]
mod sqlite {
    use sqlx::{AssertSqlSafe, Executor, SqliteConnection};

    use super::*;

    /// SQLite's result codes for a busy file and a violated constraint.
    const BUSY: i32 = 5;
    const CONSTRAINT: i32 = 19;

    impl Known for SqliteConnection {
        const DIALECT: Dialect = Dialect::Sqlite;

        async fn run(&mut self, statement: &Statement) -> Result<Option<Vec<Value>>, Error> {
            let query = statement
                .values
                .iter()
                .fold(sqlx::query(statement.sql), |query, value| match value {
                    Value::Bytes(bytes) => query.bind(bytes.as_deref()),
                    Value::Int(int) => query.bind(int),
                });
            match query.fetch_optional(&mut *self).await {
                Ok(row) => row.map(|row| read(&row, statement)).transpose(),
                Err(error) => {
                    begin_again(self).await;
                    Err(error)
                }
            }
        }

        fn code(error: &Error) -> Option<String> {
            error
                .as_database_error()
                .map(|error| error.message().to_owned())
        }

        /// After these errors nothing was written. After any other error the commit may be on disk.
        fn is_rolled_back(error: &Error) -> bool {
            let code = error
                .as_database_error()
                .and_then(|error| error.code()?.parse::<i32>().ok());
            // The lower byte is the primary result code; the other bytes only refine it.
            code.is_some_and(|code| matches!(code & 0xff, BUSY | CONSTRAINT))
        }
    }

    /// A refused statement rolls the whole transaction back, and sqlx does not notice: its own
    /// rollback would fail, and it would consider the connection inside a transaction for ever. So
    /// this opens as many empty transactions as sqlx counts, for sqlx to end.
    async fn begin_again(connection: &mut SqliteConnection) {
        // Fails while the transaction is still open.
        if connection.execute("BEGIN").await.is_ok() {
            for number in 1..depth(connection) {
                let savepoint = AssertSqlSafe(format!("SAVEPOINT _sqlx_savepoint_{number}"));
                drop(connection.execute(savepoint).await);
            }
        }
    }

    session!(SqliteConnection, sqlx::Sqlite);

    impl Begin for sqlx::SqlitePool {
        type Transaction = Transaction<'static, sqlx::Sqlite>;

        /// With the write lock from the beginning: SQLite refuses a transaction that reads before
        /// it writes if another connection wrote in between.
        async fn begin(&self) -> Result<Self::Transaction, Error> {
            let pool = self.clone();
            to_its_end(async move { pool.begin_with("BEGIN IMMEDIATE").await }).await
        }

        async fn roll_back(transaction: Self::Transaction) -> Result<(), Error> {
            transaction.rollback().await
        }
    }

    transaction_pool!(sqlx::SqlitePool);

    impl crate::join::Database for sqlx::SqlitePool {
        type Transaction = Transaction<'static, sqlx::Sqlite>;

        async fn begin(&mut self) -> Result<Self::Transaction, BoxError> {
            Ok(Begin::begin(self).await?)
        }

        async fn roll_back(transaction: Self::Transaction) -> Result<(), BoxError> {
            Ok(transaction.rollback().await?)
        }
    }
}
