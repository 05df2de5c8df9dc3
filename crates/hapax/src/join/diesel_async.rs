//! diesel-async 0.9, on Postgres.
//!
//! diesel commits at the end of a closure, so the handler joins inside the closure. If the reply to
//! the commit is lost, the layer asks the store what became of it.
//!
//! ```no_run
//! use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
//! use hapax::Operation;
//! use hapax::join::{FinishError, Kept};
//!
//! async fn order(op: &Operation, connection: &mut AsyncPgConnection) -> Result<Kept, Box<dyn std::error::Error + Send + Sync>> {
//!     connection
//!         .transaction(async |connection| {
//!             diesel::sql_query("INSERT INTO orders (item) VALUES ('a book')").execute(connection).await?;
//!             Ok(op.join(connection, hapax::Answer::new(201, "ordered")).await?)
//!         })
//!         .await
//! }
//! ```
//!
//! A transaction begun by hand can be finished through its connection:
//!
//! ```no_run
//! # use diesel_async::{AsyncPgConnection, RunQueryDsl};
//! # use hapax::Operation;
//! # use hapax::join::{FinishError, Kept};
//! use diesel_async::{AnsiTransactionManager, TransactionManager};
//!
//! # async fn order(op: &Operation, connection: &mut AsyncPgConnection) -> Result<Kept, Box<dyn std::error::Error + Send + Sync>> {
//! AnsiTransactionManager::begin_transaction(connection).await?;
//! diesel::sql_query("INSERT INTO orders (item) VALUES ('a book')").execute(connection).await?;
//! Ok(op.finish(connection, hapax::Answer::new(201, "ordered")).await?)
//! # }
//! ```
//!
//! A transaction begun by hand must also be rolled back by hand: until it is finished or rolled
//! back, it stays open as long as the connection does.

use std::num::NonZeroU32;

use diesel::deserialize::{self, FromSql, QueryableByName};
use diesel::pg::Pg;
use diesel::result::{DatabaseErrorKind, Error};
use diesel::row::{Field, NamedRow, Row};
use diesel::sql_types::{BigInt, Binary, Nullable};
use diesel_async::{AnsiTransactionManager, AsyncPgConnection, RunQueryDsl, TransactionManager};
use hapax_core::store::{Dialect, FENCED_OUT, FINISHED_ALREADY, Statement, Value};

use super::Session;

impl Session for AsyncPgConnection {
    type Error = Error;

    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn depth(&mut self) -> Option<usize> {
        let depth =
            AnsiTransactionManager::transaction_manager_status_mut(self).transaction_depth();
        // A broken connection reports its error on the next statement.
        depth
            .ok()
            .map(|depth| depth.map_or(0, |depth| depth.get() as usize))
    }

    async fn run(&mut self, statement: &Statement) -> Result<Option<Vec<Value>>, Error> {
        let query = statement.values.iter().fold(
            diesel::sql_query(statement.sql).into_boxed::<Pg>(),
            |query, value| match value {
                Value::Bytes(bytes) => query.bind::<Nullable<Binary>, _>(bytes.as_deref()),
                Value::Int(int) => query.bind::<Nullable<BigInt>, _>(*int),
            },
        );
        let rows: Vec<Values> = query.load(self).await?;
        Ok(rows.into_iter().next().map(|values| values.0))
    }

    /// diesel does not expose the SQLSTATE, so it is recognised by the message.
    fn code(error: &Error) -> Option<String> {
        let Error::DatabaseError(_, said) = error else {
            return None;
        };
        let code = match said.message() {
            said if said.starts_with("fenced out") => FENCED_OUT,
            said if said.starts_with("this attempt has completed its record already") => {
                FINISHED_ALREADY
            }
            said => said,
        };
        Some(code.to_owned())
    }
}

impl super::Transaction for &mut AsyncPgConnection {
    async fn commit(self) -> Result<(), Error> {
        AnsiTransactionManager::commit_transaction(self).await
    }

    fn is_rolled_back(error: &Error) -> bool {
        use DatabaseErrorKind as Kind;
        let Error::DatabaseError(kind, _) = error else {
            return false;
        };
        matches!(
            kind,
            Kind::UniqueViolation
                | Kind::ForeignKeyViolation
                | Kind::RestrictViolation
                | Kind::ExclusionViolation
                | Kind::NotNullViolation
                | Kind::CheckViolation
                | Kind::SerializationFailure
        )
    }
}

/// The values of a row. diesel does not tell a row what was asked for, so the columns tell their
/// own types.
struct Values(Vec<Value>);

impl QueryableByName<Pg> for Values {
    fn build<'a>(row: &impl NamedRow<'a, Pg>) -> deserialize::Result<Self> {
        let value = |place| {
            let field = Row::get(row, place).ok_or("a row without this column")?;
            match field.value() {
                // A null has no type here. Both stand for it.
                None => Ok(Value::Bytes(None)),
                Some(value) if value.get_oid() == INT8 => {
                    FromSql::<BigInt, Pg>::from_sql(value).map(|int| Value::Int(Some(int)))
                }
                Some(value) => {
                    FromSql::<Binary, Pg>::from_sql(value).map(|bytes| Value::Bytes(Some(bytes)))
                }
            }
        };
        (0..row.field_count())
            .map(value)
            .collect::<deserialize::Result<_>>()
            .map(Values)
    }
}

/// The number of the type `int8` in every Postgres.
const INT8: NonZeroU32 = NonZeroU32::new(20).expect("not zero");
