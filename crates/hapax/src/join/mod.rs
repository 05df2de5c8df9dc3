//! Joining: completing a record in the transaction of its effect. Both commit, or neither does.
//!
//! A handler can join on a route of [`Mode::Transaction`] whose store keeps its records in the same
//! database as the effects. The handler ends with [`Operation::finish`], which completes the record
//! inside the handler's transaction, under the attempt's fence, and commits. So an attempt that has
//! lost its fence cannot commit its effect. The layer then finds the record complete, and only
//! sends the answer.
//!
//! ```no_run
//! # #[cfg(all(feature = "axum", feature = "sqlx-0_9-postgres"))] mod example {
//! use axum::extract::State;
//! use axum::routing::post;
//! use axum::Router;
//! use hapax::join::{FinishError, Kept};
//! use hapax::{GuardError, Hapax, Operation};
//!
//! // `hapax` was made by `Hapax::postgres(url)`, on the database of the pool.
//! fn app(hapax: &Hapax, pool: sqlx::PgPool) -> Result<Router, GuardError> {
//!     let guard = hapax.guard().required().transaction().anonymous().build()?;
//!     Ok(Router::new().route("/orders", post(place)).route_layer(guard).with_state(pool))
//! }
//!
//! async fn place(
//!     operation: Operation,
//!     State(pool): State<sqlx::PgPool>,
//!     item: String,
//! ) -> Result<Kept, FinishError<sqlx::Error>> {
//!     let mut tx = pool.begin().await.map_err(FinishError::RolledBack)?;
//!     let insert = sqlx::query("INSERT INTO orders (item) VALUES ($1)").bind(&item);
//!     insert.execute(&mut *tx).await.map_err(FinishError::RolledBack)?;
//!     operation.finish(tx, hapax::Answer::new(201, item)).await
//! }
//! # }
//! ```
//!
//! Customised: where other code commits, [`Operation::join`] completes the record and leaves the
//! commit to that code.
//!
//! | What the handler does | What becomes of it |
//! |---|---|
//! | finishes | effect and record are committed; every caller gets the stored answer |
//! | returns a 2xx or 3xx without finishing | 502 `not-joined`, held as unknown, an alarm: the store cannot tell whether the effect took place |
//! | returns a 4xx without finishing | kept, as in every mode |
//! | returns an error, or panics, without finishing | nothing was committed; a repeat runs again |
//! | finishes, then fails, panics, or answers something else | the stored answer is sent anyway |
//! | joins, then rolls back | as if it had not joined |
//! | finishes twice | the second transaction fails, with everything else it did |
//! | is dropped while it finishes | the database decides, and the layer asks it |
//!
//! Any driver that can run a statement works: see [`Session`] and [`Transaction`]. This module has
//! a file for each supported driver, behind a feature named after the driver and its major version.

mod database;
#[cfg(feature = "diesel-async-0_9")]
pub mod diesel_async;
#[cfg_attr(
    not(any(
        feature = "sqlx-0_9-postgres",
        feature = "sqlx-0_9-sqlite",
        feature = "sea-orm-2"
    )),
    allow(
        dead_code,
        unused_imports,
        unused_macros,
        reason = "no driver whose pool a guard can use is compiled in"
    )
)]
mod guard;
#[cfg_attr(
    not(any(
        feature = "sqlx-0_9-postgres",
        feature = "sqlx-0_9-sqlite",
        feature = "sea-orm-2"
    )),
    allow(
        dead_code,
        unused_imports,
        unused_macros,
        reason = "no driver whose pool a guard can use is compiled in"
    )
)]
mod in_transaction;
#[cfg(feature = "rusqlite-0")]
pub mod rusqlite;
#[cfg(feature = "sea-orm-2")]
pub mod sea_orm;
#[cfg(any(feature = "sqlx-0_9-postgres", feature = "sqlx-0_9-sqlite"))]
pub mod sqlx;
#[cfg(feature = "tokio-postgres-0_7")]
pub mod tokio_postgres;

pub use database::Database;
#[cfg(feature = "axum")]
pub(crate) use guard::Slot;
pub use guard::{OpenTransaction, TransactionPool};
pub use in_transaction::StartError;

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use hapax_core::answer::Answer;
use hapax_core::outcome::Outcome;
use hapax_core::policy::Mode;
use hapax_core::record::State;
use hapax_core::store::{
    Change, Condition, Dialect, FENCED_OUT, FINISHED_ALREADY, Finish, Put, Statement, Store, Value,
    Written,
};
use hapax_core::time::Timestamp;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use tokio::time::Instant;

use crate::middleware::{BoxError, kept};
use crate::once::{Joined, Operation};

/// The user's connection, inside a transaction that the user has begun.
///
/// The traits do not require `Send`: whether the futures are `Send` depends on the driver.
#[diagnostic::on_unimplemented(
    message = "hapax cannot complete a record on `{Self}`",
    label = "this is no connection inside a transaction that hapax knows",
    note = "turn on the feature of hapax for your driver: tokio-postgres-0_7, sqlx-0_9-postgres, sqlx-0_9-sqlite, diesel-async-0_9, sea-orm-2 or rusqlite-0",
    note = "the feature names the driver's major version: a transaction of another version is another type (see docs/transaction.md)"
)]
#[expect(
    async_fn_in_trait,
    reason = "the futures of one driver are sent between threads and those of another are not"
)]
pub trait Session {
    /// The driver's error.
    type Error: Error + Send + Sync + 'static;

    /// The kind of database it is connected to.
    fn dialect(&self) -> Dialect;

    /// The number of nested transactions that are open, if the driver counts them.
    fn depth(&mut self) -> Option<usize> {
        None
    }

    /// Runs the statement and returns its only row, if there is one: a value for each of the
    /// statement's columns.
    async fn run(&mut self, statement: &Statement) -> Result<Option<Vec<Value>>, Self::Error>;

    /// The database's code for the error: the SQLSTATE of Postgres, or the message of SQLite.
    /// `None` if the error did not come from the database.
    fn code(error: &Self::Error) -> Option<String>;
}

/// A transaction that this crate can commit.
#[diagnostic::on_unimplemented(
    message = "hapax cannot complete a record on `{Self}`",
    label = "this is no transaction that hapax knows",
    note = "turn on the feature of hapax for your driver: tokio-postgres-0_7, sqlx-0_9-postgres, sqlx-0_9-sqlite, diesel-async-0_9, sea-orm-2 or rusqlite-0",
    note = "the feature names the driver's major version: a transaction of another version is another type (see docs/transaction.md)"
)]
#[expect(async_fn_in_trait, reason = "as in `Session`")]
pub trait Transaction: Session + Sized {
    /// Whether `commit` always commits the outermost transaction, or fails inside a nested one. If
    /// it may commit only a nested one, the layer asks the store whether the whole transaction has
    /// committed, which costs one more round trip.
    const ENDS_ALL: bool = true;

    /// Commits.
    async fn commit(self) -> Result<(), Self::Error>;

    /// Whether this error proves that the commit did not take place: the database itself reported
    /// it, and is still running.
    fn is_rolled_back(_error: &Self::Error) -> bool {
        false
    }

    /// Runs the statement and commits, one after the other unless the driver can send both at once.
    async fn run_and_commit(mut self, statement: &Statement) -> Committed<Self::Error> {
        match self.run(statement).await {
            Err(error) => Committed::No(error),
            Ok(row) => match self.commit().await {
                Ok(()) => Committed::Yes(row),
                Err(error) if Self::is_rolled_back(&error) => Committed::No(error),
                Err(error) => Committed::Unclear(error),
            },
        }
    }
}

/// Lets a session be borrowed.
impl<S: Session> Session for &mut S {
    type Error = S::Error;

    fn dialect(&self) -> Dialect {
        S::dialect(self)
    }

    fn depth(&mut self) -> Option<usize> {
        S::depth(self)
    }

    async fn run(&mut self, statement: &Statement) -> Result<Option<Vec<Value>>, Self::Error> {
        S::run(self, statement).await
    }

    fn code(error: &Self::Error) -> Option<String> {
        S::code(error)
    }
}

/// The result of committing a transaction.
#[derive(Debug)]
pub enum Committed<E> {
    /// It has committed; the statement returned this row.
    Yes(Option<Vec<Value>>),
    /// It has not committed: the statement failed before the commit was sent, or made the commit
    /// impossible.
    No(E),
    /// The commit was sent and no reply came.
    Unclear(E),
}

/// An answer to keep: an [`Answer`], a whole [`Response`], or, with the feature `axum`, any value a
/// handler may return. `M` only distinguishes these implementations; callers never write it.
#[expect(async_fn_in_trait, reason = "as in `Session`")]
pub trait IntoAnswer<M = ()> {
    /// Converts it to a whole response. An error means that the body could not be read.
    async fn into_answer(self) -> Result<Response<Bytes>, BoxError>;
}

/// Marks the [`IntoAnswer`] implementations for HTTP responses.
#[derive(Debug)]
pub enum ByHttp {}

impl IntoAnswer for Answer {
    async fn into_answer(self) -> Result<Response<Bytes>, BoxError> {
        let mut response = Response::new(self.body);
        *response.status_mut() = StatusCode::from_u16(self.status)?;
        for (name, value) in &self.headers {
            response.headers_mut().append(
                HeaderName::try_from(name.as_str())?,
                HeaderValue::from_bytes(value)?,
            );
        }
        Ok(response)
    }
}

#[cfg(feature = "axum")]
impl<T: axum::response::IntoResponse> IntoAnswer<ByHttp> for T {
    async fn into_answer(self) -> Result<Response<Bytes>, BoxError> {
        whole(self.into_response()).await
    }
}

#[cfg(not(feature = "axum"))]
impl<B> IntoAnswer<ByHttp> for Response<B>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    async fn into_answer(self) -> Result<Response<Bytes>, BoxError> {
        whole(self).await
    }
}

async fn whole<B>(response: Response<B>) -> Result<Response<Bytes>, BoxError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let (parts, body) = response.into_parts();
    let body = http_body_util::BodyExt::collect(body)
        .await
        .map_err(Into::into)?
        .to_bytes();
    Ok(Response::from_parts(parts, body))
}

/// The return value of a handler that has finished: its answer. The layer sends the stored answer,
/// which is the same.
#[derive(Clone, Debug)]
pub struct Kept(Response<Bytes>);

impl Kept {
    /// The answer, for services without axum.
    pub fn into_response(self) -> Response<Bytes> {
        self.0
    }
}

#[cfg(feature = "axum")]
impl axum::response::IntoResponse for Kept {
    fn into_response(self) -> axum::response::Response {
        self.0.map(axum::body::Body::from)
    }
}

/// Why an attempt did not finish. Nothing of its transaction was committed, except with
/// [`Unclear`](FinishError::Unclear), where that is not known, and
/// [`NoTransaction`](FinishError::NoTransaction), where there was no transaction.
#[derive(Debug)]
#[non_exhaustive]
pub enum FinishError<E> {
    /// The attempt no longer owns its record, which was taken over, settled or given up. Another
    /// outcome counts.
    FencedOut,
    /// The attempt has already finished, and the first time counts.
    FinishedAlready,
    /// The route's mode is not `Transaction`, or its store cannot take part in a caller's
    /// transaction.
    NotATransactionRoute,
    /// The transaction is in another kind of database than the store.
    AnotherDatabase,
    /// No transaction is open. Everything the handler did has committed on its own, and the store
    /// cannot tell whether the effect is complete: the attempt is held as not joined.
    NoTransaction,
    /// The key was claimed in this transaction, which also completes it: return the answer.
    FinishesByItself,
    /// The transaction is nested in another, and ending it would commit nothing:
    /// [`join`](Operation::join) here, and commit the outermost.
    Nested,
    /// The answer could not be read to its end.
    Answer(BoxError),
    /// The driver failed, and the transaction was not committed.
    RolledBack(E),
    /// The commit was sent and no reply came, and the store cannot be asked what became of it. The
    /// layer continues to ask: return this as an error.
    Unclear(E),
}

impl<E: fmt::Display> fmt::Display for FinishError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FinishError::FencedOut => f.write_str("this attempt has lost its fence: another one's outcome counts"),
            FinishError::FinishedAlready => f.write_str("this operation has finished already, and the first time counts"),
            FinishError::NotATransactionRoute => {
                f.write_str(
                    "nothing can finish in a transaction here: the route's mode is not transaction, or its store is not in a database",
                )
            }
            FinishError::AnotherDatabase => f.write_str("the transaction is not in the database of the store"),
            FinishError::NoTransaction => f.write_str(
                "no transaction is open: begin one before the effect; what was done without is there, and held as unknown",
            ),
            FinishError::FinishesByItself => {
                f.write_str("the key was claimed in this transaction, and is completed at its end: return the answer")
            }
            FinishError::Nested => {
                f.write_str("the transaction is one within another, whose end commits nothing: join, and commit the outermost")
            }
            FinishError::Answer(error) => write!(f, "the answer could not be read: {error}"),
            FinishError::RolledBack(error) => write!(f, "the transaction did not commit: {error}"),
            FinishError::Unclear(error) => write!(f, "it is not known yet whether the transaction has committed: {error}"),
        }
    }
}

impl<E: Error + 'static> Error for FinishError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            FinishError::RolledBack(error) | FinishError::Unclear(error) => Some(error),
            FinishError::Answer(error) => Some(&**error),
            _ => None,
        }
    }
}

/// 500, and the error in the log: nothing was committed, or the layer asks the store, so that a
/// repeat is safe.
#[cfg(feature = "axum")]
impl<E: Error + 'static> axum::response::IntoResponse for FinishError<E> {
    fn into_response(self) -> axum::response::Response {
        let cause = crate::once::because(&self);
        tracing::error!(cause, "a handler could not finish its operation");
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

impl Operation {
    /// Completes the record in this transaction, and commits both.
    ///
    /// If the reply to the commit is lost, the store is asked what became of it, so the result is
    /// not a guess.
    ///
    /// # Errors
    ///
    /// When the attempt has lost its fence or has already finished, and when the driver fails. Then
    /// nothing of the transaction is committed: see [`FinishError`].
    pub async fn finish<T: Transaction, M>(
        &self,
        mut transaction: T,
        answer: impl IntoAnswer<M>,
    ) -> Result<Kept, FinishError<T::Error>> {
        let Prepared {
            put,
            statement,
            kept,
            _room,
        } = self.prepare(&mut transaction, answer).await?;
        if transaction.depth().is_some_and(|depth| depth > 1) {
            return Err(FinishError::Nested);
        }
        match transaction.run_and_commit(&statement).await {
            // The commit may have been a nested one: the layer asks the store.
            Committed::Yes(_) if !T::ENDS_ALL => Ok(kept),
            Committed::Yes(row) => {
                self.note_joined(&put, statement.now.unwrap_or_else(|| time(row.as_deref())));
                Ok(kept)
            }
            Committed::No(error) => Err(refused::<T>(error)),
            Committed::Unclear(error) => self.resolve(put, error).await.map(|()| kept),
        }
    }

    /// Completes the record in this session's transaction and leaves the commit to the caller: for
    /// drivers that commit at the end of a closure. The record becomes complete with the commit,
    /// and the layer checks it in the store.
    ///
    /// # Errors
    ///
    /// As [`finish`](Operation::finish). After an error, Postgres only allows the transaction to be
    /// rolled back. SQLite has rolled it back already: run nothing more on the session, as it would
    /// be outside the transaction.
    pub async fn join<S: Session, M>(
        &self,
        session: &mut S,
        answer: impl IntoAnswer<M>,
    ) -> Result<Kept, FinishError<S::Error>> {
        let Prepared {
            statement, kept, ..
        } = self.prepare(session, answer).await?;
        session.run(&statement).await.map_err(refused::<S>)?;
        Ok(kept)
    }

    /// [`finish`](Operation::finish) for blocking drivers, such as rusqlite. Call it inside
    /// `tokio::task::spawn_blocking`.
    ///
    /// # Errors
    ///
    /// As [`finish`](Operation::finish).
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime, and on one of its worker threads.
    pub fn finish_blocking<T: Transaction, M>(
        &self,
        transaction: T,
        answer: impl IntoAnswer<M>,
    ) -> Result<Kept, FinishError<T::Error>> {
        tokio::runtime::Handle::current().block_on(self.finish(transaction, answer))
    }

    /// Makes the write, and the statement for it in the caller's transaction.
    async fn prepare<S: Session, M>(
        &self,
        session: &mut S,
        answer: impl IntoAnswer<M>,
    ) -> Result<Prepared, FinishError<S::Error>> {
        self.begin_step();
        let (policy, store) = (self.policy(), self.store());
        if self.is_in_transaction() {
            return Err(FinishError::FinishesByItself);
        }
        if session.depth() == Some(0) {
            self.note_outside();
            return Err(FinishError::NoTransaction);
        }
        let joins = store
            .joins()
            .filter(|_| policy.mode == Mode::Transaction)
            .ok_or(FinishError::NotATransactionRoute)?;
        let response = answer.into_answer().await.map_err(FinishError::Answer)?;
        // No driver can send more, and a driver that fails must not already have sent the commit.
        let answer = kept(&response, policy)
            .filter(|answer| answer.encoded_len() <= ANSWER_BYTES_MAX)
            .map(|answer| answer.under(policy.answer_version.as_deref()));
        // Without room in the principal's quota, the record only says that the effect is done.
        let (answer, room) = match answer.map(|answer| {
            (
                store.reserve_bytes(self.scope(), answer.encoded_len()),
                answer,
            )
        }) {
            Some((Ok(room), answer)) => (Some(Arc::new(answer)), room),
            Some((Err(_), _)) | None => (None, None),
        };
        let status = response.status().as_u16();
        let state = Outcome::Kept {
            status,
            answer: None,
        }
        .state();
        let finish = Finish {
            state,
            status: Some(status),
            answer,
            lifetime: policy.into(),
        };
        let put = Put {
            id: self.record(),
            condition: Condition::Held {
                fence: self.fence(),
            },
            change: Change::Finish(finish),
        };
        let statement = joins.statement(&put);
        if statement.dialect != session.dialect() {
            return Err(FinishError::AnotherDatabase);
        }
        Ok(Prepared {
            statement,
            put,
            kept: Kept(response),
            _room: room,
        })
    }

    /// Finds out what became of a commit whose reply was lost, by trying to end the attempt as
    /// released. The database lets only one of the two writes happen: if this one wins, the commit
    /// did not take place and no longer can.
    async fn resolve<E>(&self, put: Put, error: E) -> Result<(), FinishError<E>> {
        let Change::Finish(finish) = &put.change else {
            return Err(FinishError::Unclear(error));
        };
        let released = Finish {
            state: State::Retryable,
            status: None,
            answer: None,
            lifetime: finish.lifetime,
        };
        let release = Put {
            change: Change::Finish(released),
            ..put.clone()
        };
        let deadline = Instant::now() + self.policy().store_timeout;
        loop {
            let asked =
                tokio::time::timeout_at(deadline, self.store().put_if(release.clone())).await;
            match asked {
                Ok(Ok(Written::Won(_))) => return Err(FinishError::RolledBack(error)),
                Ok(Ok(Written::Lost(seen))) => {
                    let own = seen
                        .record
                        .as_ref()
                        .filter(|record| record.head.fence == self.fence());
                    return match own.map(|record| (record.head.state, record)) {
                        Some((state, record))
                            if state == finish.state && record.answer == finish.answer =>
                        {
                            self.note_joined(&put, record.head.finished_at);
                            Ok(())
                        }
                        // Completed by another transaction of the same attempt.
                        Some((State::Completed | State::Failed, _)) => {
                            Err(FinishError::FinishedAlready)
                        }
                        // Released by an earlier try of this loop.
                        Some((State::Retryable, _)) => Err(FinishError::RolledBack(error)),
                        _ => Err(FinishError::FencedOut),
                    };
                }
                Ok(Err(_)) if Instant::now() < deadline => tokio::time::sleep(PAUSE).await,
                Ok(Err(_)) | Err(_) => return Err(FinishError::Unclear(error)),
            }
        }
    }

    fn note_joined(&self, put: &Put, now: Timestamp) {
        if let Change::Finish(finish) = &put.change {
            self.set_joined(Joined {
                finish: finish.clone(),
                now,
            });
        }
    }
}

/// The largest answer that is sent as a parameter of a statement.
const ANSWER_BYTES_MAX: usize = 512 << 20;

/// The pause between two questions to an unavailable store.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

struct Prepared {
    put: Put,
    statement: Statement,
    kept: Kept,
    _room: Option<crate::once::Reserved>,
}

/// The store's time, which is the only value in the row of a statement that ends an attempt.
fn time(row: Option<&[Value]>) -> Timestamp {
    match row {
        Some([Value::Int(Some(micros))]) => Timestamp::from_micros(micros.unsigned_abs()),
        _ => Timestamp::ZERO,
    }
}

/// Why the statement failed. Its failure also ended the transaction.
fn refused<S: Session + ?Sized>(error: S::Error) -> FinishError<S::Error> {
    match S::code(&error) {
        Some(code) if code.starts_with(FENCED_OUT) => FinishError::FencedOut,
        Some(code) if code.starts_with(FINISHED_ALREADY) => FinishError::FinishedAlready,
        _ => FinishError::RolledBack(error),
    }
}
