//! The six drivers, and an additional way to end with one of them.

use bytes::Bytes;
use diesel_async::{
    AnsiTransactionManager, AsyncConnection, AsyncPgConnection, TransactionManager,
};
use hapax::join::Kept;
use hapax::join::tokio_postgres::Effect;
use hapax::outbox::Message;
use hapax::{Done, Once, Operation, RunError};
use rusqlite::TransactionBehavior;
use sea_orm::{ConnectionTrait, TransactionTrait};
use tokio::runtime::Handle;

use crate::script::{Driver, End, Failed, Point, Script, answer, body, driver};

/// The parameters are the record and the fence.
const EFFECT: &str = "INSERT INTO effects (record, fence) VALUES ($1, $2)";

/// The same, with its message.
const EFFECT_THAT_EMITS: &str = "INSERT INTO effects (record, fence) SELECT $1, $2 \
     FROM hapax.emit('orders', encode($1, 'hex'), 'placed', ordered => false)";

/// The message of the effect: its key is the record. Without an order: an attempt that stands still
/// in its transaction must not hold up the one that takes over.
pub fn message(operation: &Operation) -> Message {
    let record = operation
        .record()
        .as_bytes()
        .map(|byte| format!("{byte:02x}"));
    Message::new("orders", record.concat(), "placed")
        .step("placed")
        .unordered()
}

/// Ends a transaction that is a value with `commit` and `rollback`, as in most drivers.
macro_rules! end {
    ($operation:ident, $script:ident, $tx:ident) => {
        match $script.end {
            End::Finish => {
                $script.at(Point::Committing).await;
                $operation.finish($tx, answer($operation)).await?
            }
            End::JoinAndCommit => {
                let kept = $operation.join(&mut $tx, answer($operation)).await?;
                $script.at(Point::Joined).await;
                $script.at(Point::Committing).await;
                $tx.commit().await.map_err(driver)?;
                kept
            }
            End::JoinAndRollBack => {
                $operation.join(&mut $tx, answer($operation)).await?;
                $script.at(Point::Joined).await;
                $tx.rollback().await.map_err(driver)?;
                return Err(Failed::OnPurpose);
            }
            End::RollBack => {
                $tx.rollback().await.map_err(driver)?;
                return Err(Failed::OnPurpose);
            }
        }
    };
}

fn fence(operation: &Operation) -> i64 {
    i64::try_from(operation.fence().as_u64()).expect("a fence fits")
}

pub struct TokioPostgres(String);

impl TokioPostgres {
    async fn connect(&self) -> Result<tokio_postgres::Client, Failed> {
        let (client, connection) = tokio_postgres::connect(&self.0, tokio_postgres::NoTls)
            .await
            .map_err(driver)?;
        tokio::spawn(connection);
        Ok(client)
    }
}

impl Driver for TokioPostgres {
    const NAME: &'static str = "tokio-postgres";
    const IS_FILE: bool = false;

    fn new(at: &str) -> Self {
        TokioPostgres(at.to_owned())
    }

    async fn perform(&self, operation: &Operation, script: &Script) -> Result<Kept, Failed> {
        let mut client = self.connect().await?;
        let mut tx = client.transaction().await.map_err(driver)?;
        script.at(Point::Begun).await;
        tx.execute(
            EFFECT,
            &[&operation.record().as_bytes().as_slice(), &fence(operation)],
        )
        .await
        .map_err(driver)?;
        script.at(Point::Written).await;
        operation
            .emit(&mut tx, message(operation))
            .await
            .map_err(driver)?;
        script.at(Point::Emitted).await;
        let kept = end!(operation, script, tx);
        script.at(Point::Committed).await;
        Ok(kept)
    }
}

/// The effect and the end in one statement. All points before the commit come before that
/// statement.
pub struct TokioPostgresEffect(TokioPostgres);

impl Driver for TokioPostgresEffect {
    const NAME: &'static str = "effect";
    const IS_FILE: bool = false;

    fn new(at: &str) -> Self {
        TokioPostgresEffect(TokioPostgres::new(at))
    }

    async fn perform(&self, operation: &Operation, script: &Script) -> Result<Kept, Failed> {
        let mut client = self.0.connect().await?;
        let effect = Effect::prepare(&client, EFFECT_THAT_EMITS)
            .await
            .map_err(driver)?;
        script.at(Point::Begun).await;
        script.at(Point::Written).await;
        script.at(Point::Emitted).await;
        if script.end == End::JoinAndCommit {
            script.at(Point::Joined).await;
        }
        script.at(Point::Committing).await;
        let (record, fence) = (operation.record(), fence(operation));
        let kept = effect
            .finish(
                operation,
                &mut client,
                &[&record.as_bytes().as_slice(), &fence],
                answer(operation),
            )
            .await?;
        script.at(Point::Committed).await;
        Ok(kept)
    }
}

pub struct SqlxPostgres(sqlx::PgPool);

impl Driver for SqlxPostgres {
    const NAME: &'static str = "sqlx-postgres";
    const IS_FILE: bool = false;

    fn new(at: &str) -> Self {
        SqlxPostgres(sqlx::PgPool::connect_lazy(at).expect("a URL"))
    }

    async fn perform(&self, operation: &Operation, script: &Script) -> Result<Kept, Failed> {
        let mut tx = self.0.begin().await.map_err(driver)?;
        script.at(Point::Begun).await;
        let effect = sqlx::query(EFFECT)
            .bind(operation.record().as_bytes().to_vec())
            .bind(fence(operation));
        effect.execute(&mut *tx).await.map_err(driver)?;
        script.at(Point::Written).await;
        operation
            .emit(&mut tx, message(operation))
            .await
            .map_err(driver)?;
        script.at(Point::Emitted).await;
        let kept = end!(operation, script, tx);
        script.at(Point::Committed).await;
        Ok(kept)
    }
}

pub struct SqlxSqlite(sqlx::SqlitePool);

impl Driver for SqlxSqlite {
    const NAME: &'static str = "sqlx-sqlite";
    const IS_FILE: bool = true;

    fn new(at: &str) -> Self {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(at);
        SqlxSqlite(
            sqlx::sqlite::SqlitePoolOptions::new()
                .max_connections(2)
                .connect_lazy_with(options),
        )
    }

    async fn perform(&self, operation: &Operation, script: &Script) -> Result<Kept, Failed> {
        let mut tx = self.0.begin_with("BEGIN IMMEDIATE").await.map_err(driver)?;
        script.at(Point::Begun).await;
        let effect = sqlx::query(EFFECT)
            .bind(operation.record().as_bytes().to_vec())
            .bind(fence(operation));
        effect.execute(&mut *tx).await.map_err(driver)?;
        script.at(Point::Written).await;
        operation
            .emit(&mut tx, message(operation))
            .await
            .map_err(driver)?;
        script.at(Point::Emitted).await;
        let kept = end!(operation, script, tx);
        script.at(Point::Committed).await;
        Ok(kept)
    }
}

pub struct SeaOrm(String, tokio::sync::OnceCell<sea_orm::DatabaseConnection>);

impl Driver for SeaOrm {
    const NAME: &'static str = "sea-orm";
    const IS_FILE: bool = false;

    fn new(at: &str) -> Self {
        SeaOrm(at.to_owned(), tokio::sync::OnceCell::new())
    }

    async fn perform(&self, operation: &Operation, script: &Script) -> Result<Kept, Failed> {
        let connect = async || {
            let mut options = sea_orm::ConnectOptions::new(&self.0);
            options.sqlx_logging(false);
            sea_orm::Database::connect(options).await
        };
        let database = self.1.get_or_try_init(connect).await.map_err(driver)?;
        let mut tx = database.begin().await.map_err(driver)?;
        script.at(Point::Begun).await;
        let values = [
            operation.record().as_bytes().to_vec().into(),
            fence(operation).into(),
        ];
        let effect =
            sea_orm::Statement::from_sql_and_values(sea_orm::DbBackend::Postgres, EFFECT, values);
        tx.execute_raw(effect).await.map_err(driver)?;
        script.at(Point::Written).await;
        operation
            .emit(&mut tx, message(operation))
            .await
            .map_err(driver)?;
        script.at(Point::Emitted).await;
        let kept = end!(operation, script, tx);
        script.at(Point::Committed).await;
        Ok(kept)
    }
}

pub struct DieselAsync(String);

impl DieselAsync {
    async fn effect(
        operation: &Operation,
        script: &Script,
        connection: &mut AsyncPgConnection,
    ) -> Result<(), Failed> {
        // Imported only here, because it adds `execute` to every type.
        use diesel_async::RunQueryDsl;

        script.at(Point::Begun).await;
        let effect = diesel::sql_query(EFFECT)
            .bind::<diesel::sql_types::Binary, _>(operation.record().as_bytes().to_vec())
            .bind::<diesel::sql_types::BigInt, _>(fence(operation));
        effect.execute(connection).await.map_err(driver)?;
        script.at(Point::Written).await;
        operation
            .emit(connection, message(operation))
            .await
            .map_err(driver)?;
        script.at(Point::Emitted).await;
        Ok(())
    }
}

/// Diesel's closures return an error type that its own errors convert into.
impl From<diesel::result::Error> for Failed {
    fn from(error: diesel::result::Error) -> Failed {
        driver(error)
    }
}

impl Driver for DieselAsync {
    const NAME: &'static str = "diesel-async";
    const IS_FILE: bool = false;

    fn new(at: &str) -> Self {
        DieselAsync(at.to_owned())
    }

    async fn perform(&self, operation: &Operation, script: &Script) -> Result<Kept, Failed> {
        let mut connection = AsyncPgConnection::establish(&self.0)
            .await
            .map_err(driver)?;
        let kept = if script.end == End::Finish {
            AnsiTransactionManager::begin_transaction(&mut connection)
                .await
                .map_err(driver)?;
            DieselAsync::effect(operation, script, &mut connection).await?;
            script.at(Point::Committing).await;
            operation.finish(&mut connection, answer(operation)).await?
        } else {
            let closure = async |connection: &mut AsyncPgConnection| {
                DieselAsync::effect(operation, script, connection).await?;
                if script.end == End::RollBack {
                    return Err(Failed::OnPurpose);
                }
                let kept = operation.join(connection, answer(operation)).await?;
                script.at(Point::Joined).await;
                if script.end == End::JoinAndRollBack {
                    return Err(Failed::OnPurpose);
                }
                script.at(Point::Committing).await;
                Ok(kept)
            };
            connection.transaction(closure).await?
        };
        script.at(Point::Committed).await;
        Ok(kept)
    }
}

pub struct Rusqlite(String);

impl Rusqlite {
    fn perform_blocking(at: &str, operation: &Operation, script: &Script) -> Result<Kept, Failed> {
        let here = Handle::current();
        let mut connection = rusqlite::Connection::open(at).map_err(driver)?;
        let mut tx = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(driver)?;
        here.block_on(script.at(Point::Begun));
        tx.execute(
            EFFECT,
            (operation.record().as_bytes().as_slice(), fence(operation)),
        )
        .map_err(driver)?;
        here.block_on(script.at(Point::Written));
        let emitted = operation.emit(&mut tx, message(operation));
        here.block_on(emitted).map_err(driver)?;
        here.block_on(script.at(Point::Emitted));
        let kept = match script.end {
            End::Finish => {
                here.block_on(script.at(Point::Committing));
                operation.finish_blocking(tx, answer(operation))?
            }
            End::RollBack => {
                tx.rollback().map_err(driver)?;
                return Err(Failed::OnPurpose);
            }
            End::JoinAndCommit | End::JoinAndRollBack => {
                let kept = here.block_on(operation.join(&mut tx, answer(operation)))?;
                here.block_on(script.at(Point::Joined));
                if script.end == End::JoinAndRollBack {
                    tx.rollback().map_err(driver)?;
                    return Err(Failed::OnPurpose);
                }
                here.block_on(script.at(Point::Committing));
                tx.commit().map_err(driver)?;
                kept
            }
        };
        here.block_on(script.at(Point::Committed));
        Ok(kept)
    }
}

impl Driver for Rusqlite {
    const NAME: &'static str = "rusqlite";
    const IS_FILE: bool = true;

    fn new(at: &str) -> Self {
        Rusqlite(at.to_owned())
    }

    async fn perform(&self, operation: &Operation, script: &Script) -> Result<Kept, Failed> {
        let (at, operation, script) = (self.0.clone(), operation.clone(), script.clone());
        let work = tokio::task::spawn_blocking(move || {
            Rusqlite::perform_blocking(&at, &operation, &script)
        });
        work.await
            .unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
    }
}

/// Claims the key in the transaction of its effect.
pub struct SqlxPostgresAtOnce(sqlx::PgPool);

impl Driver for SqlxPostgresAtOnce {
    const NAME: &'static str = "sqlx, at once";
    const IS_FILE: bool = false;
    const AT_ONCE: bool = true;

    fn new(at: &str) -> Self {
        SqlxPostgresAtOnce(sqlx::PgPool::connect_lazy(at).expect("a URL"))
    }

    async fn perform(&self, _: &Operation, _: &Script) -> Result<Kept, Failed> {
        unreachable!("it runs at once")
    }

    async fn run_at_once(
        &self,
        once: &Once,
        key: &str,
        script: &Script,
    ) -> Result<Done<Bytes>, RunError> {
        let mut tx = self.0.begin().await.map_err(not_done)?;
        script.at(Point::Begun).await;
        let work = async |connection: &mut sqlx::PgConnection, operation: &Operation| {
            script.at(Point::Claimed).await;
            let effect = sqlx::query(EFFECT)
                .bind(operation.record().as_bytes().to_vec())
                .bind(fence(operation));
            effect.execute(&mut *connection).await?;
            script.at(Point::Written).await;
            operation.emit(connection, message(operation)).await?;
            script.at(Point::Emitted).await;
            Ok::<_, hapax::BoxError>(body(operation.fence().as_u64()).into())
        };
        let done = once.in_transaction(&mut *tx, key, "order", work).await?;
        script.at(Point::Joined).await;
        script.at(Point::Committing).await;
        tx.commit().await.map_err(not_done)?;
        script.at(Point::Committed).await;
        Ok(done)
    }
}

/// Claims the key in the transaction of its effect.
pub struct RusqliteAtOnce(String);

impl Driver for RusqliteAtOnce {
    const NAME: &'static str = "rusqlite, at once";
    const IS_FILE: bool = true;
    const AT_ONCE: bool = true;

    fn new(at: &str) -> Self {
        RusqliteAtOnce(at.to_owned())
    }

    async fn perform(&self, _: &Operation, _: &Script) -> Result<Kept, Failed> {
        unreachable!("it runs at once")
    }

    async fn run_at_once(
        &self,
        once: &Once,
        key: &str,
        script: &Script,
    ) -> Result<Done<Bytes>, RunError> {
        let (at, once, key, script) =
            (self.0.clone(), once.clone(), key.to_owned(), script.clone());
        let work = move || {
            let here = Handle::current();
            let mut connection = rusqlite::Connection::open(at).map_err(not_done)?;
            let mut tx = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .map_err(not_done)?;
            here.block_on(script.at(Point::Begun));
            let work = async |tx: &mut rusqlite::Transaction<'_>, operation: &Operation| {
                script.at(Point::Claimed).await;
                let record = operation.record();
                tx.execute(EFFECT, (record.as_bytes().as_slice(), fence(operation)))?;
                script.at(Point::Written).await;
                operation.emit(tx, message(operation)).await?;
                script.at(Point::Emitted).await;
                Ok::<_, hapax::BoxError>(body(operation.fence().as_u64()).into())
            };
            let done = here.block_on(once.in_transaction(&mut tx, &*key, "order", work))?;
            here.block_on(script.at(Point::Joined));
            here.block_on(script.at(Point::Committing));
            tx.commit().map_err(not_done)?;
            here.block_on(script.at(Point::Committed));
            Ok(done)
        };
        tokio::task::spawn_blocking(work)
            .await
            .unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
    }
}

fn not_done(error: impl Into<hapax::BoxError>) -> RunError {
    RunError::NotDone(error.into())
}
