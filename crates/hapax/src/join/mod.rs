//! Joining: an attempt that ends in the transaction of its own effect. Both commit, or neither
//! does.
//!
//! On a route of [`Mode::Transaction`], whose store keeps its records in the database of the
//! effects, a handler ends with [`Operation::finish`]. That completes the record inside the
//! handler's transaction, under the attempt's fence, and commits: an attempt that has lost its
//! fence cannot commit its effect. The layer then finds the record complete, and only sends the
//! answer.
//!
//! | What the handler does | What becomes of it |
//! |---|---|
//! | finishes | effect and record are there; everybody gets the stored answer |
//! | returns a 2xx or 3xx without finishing | 502 `not-joined`, held as unknown, an alarm: nobody can vouch for the effect |
//! | returns a 4xx without finishing | kept, as anywhere |
//! | returns an error, or panics, without finishing | nothing was committed; a repeat runs again |
//! | finishes, then fails, panics, or answers something else | the stored answer is sent all the same |
//! | joins, then rolls back | as if it had not joined |
//! | finishes twice | the second transaction fails, with whatever else it did |
//! | is dropped while it finishes | its database decides, and the layer asks it |
//!
//! Any driver will do that can run a statement: see [`Session`] and [`Transaction`]. A file of this
//! module for each that is known already, behind a feature that is named after it and its major
//! version.

#[cfg(feature = "diesel-async-0_9")]
pub mod diesel_async;
#[cfg(feature = "rusqlite-0")]
pub mod rusqlite;
#[cfg(feature = "sea-orm-2")]
pub mod sea_orm;
#[cfg(any(feature = "sqlx-0_9-postgres", feature = "sqlx-0_9-sqlite"))]
pub mod sqlx;
#[cfg(feature = "tokio-postgres-0_7")]
pub mod tokio_postgres;

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use hapax_core::answer::Answer;
use hapax_core::outcome::Outcome;
use hapax_core::policy::Mode;
use hapax_core::record::State;
use hapax_core::store::{
    Change, Condition, Dialect, FENCED_OUT, FINISHED_ALREADY, Finish, Put, Statement, Store,
    Written,
};
use hapax_core::time::Timestamp;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use tokio::time::Instant;

use crate::middleware::{BoxError, kept};
use crate::once::{Joined, Operation};

/// Somebody's own connection, inside a transaction that they have begun.
///
/// Nothing here is `Send` by itself: whether the futures are depends on the driver's.
#[expect(
    async_fn_in_trait,
    reason = "the futures of one driver are sent between threads and those of another are not"
)]
pub trait Session {
    /// What the driver fails with.
    type Error: Error + Send + Sync + 'static;

    /// Which database it speaks to.
    fn dialect(&self) -> Dialect;

    /// How many transactions are open here, each within the one before, where the driver counts
    /// them.
    fn depth(&mut self) -> Option<usize> {
        None
    }

    /// Runs the statement and returns the number in its only row, where it has one.
    async fn run(&mut self, statement: &Statement) -> Result<Option<i64>, Self::Error>;

    /// What the database called the error: the SQLSTATE of Postgres, or the message of SQLite.
    /// `None` if it was not the database that spoke.
    fn code(error: &Self::Error) -> Option<String>;
}

/// A transaction that can be committed here.
#[expect(async_fn_in_trait, reason = "as in `Session`")]
pub trait Transaction: Session + Sized {
    /// Whether a commit is that of everything, or refused in a transaction within another. If it
    /// may be that of a part, the layer asks the store whether the whole has committed, which costs
    /// one more round trip.
    const ENDS_ALL: bool = true;

    /// Commits.
    async fn commit(self) -> Result<(), Self::Error>;

    /// Whether a commit that failed with this has certainly not taken place: the database itself
    /// said so, and lives on.
    fn is_rolled_back(_error: &Self::Error) -> bool {
        false
    }

    /// Runs the statement and commits. One after the other, unless the driver can send both at
    /// once.
    async fn run_and_commit(mut self, statement: &Statement) -> Committed<Self::Error> {
        match self.run(statement).await {
            Err(error) => Committed::No(error),
            Ok(now) => match self.commit().await {
                Ok(()) => Committed::Yes(now),
                Err(error) if Self::is_rolled_back(&error) => Committed::No(error),
                Err(error) => Committed::Unclear(error),
            },
        }
    }
}

/// So that a session can be lent.
impl<S: Session> Session for &mut S {
    type Error = S::Error;

    fn dialect(&self) -> Dialect {
        S::dialect(self)
    }

    fn depth(&mut self) -> Option<usize> {
        S::depth(self)
    }

    async fn run(&mut self, statement: &Statement) -> Result<Option<i64>, Self::Error> {
        S::run(self, statement).await
    }

    fn code(error: &Self::Error) -> Option<String> {
        S::code(error)
    }
}

/// What became of a transaction.
#[derive(Debug)]
pub enum Committed<E> {
    /// It has committed; what the statement returned.
    Yes(Option<i64>),
    /// The statement failed, before a commit was sent or so that it could not take place.
    No(E),
    /// The commit was sent, and no answer came.
    Unclear(E),
}

/// An answer that is to be kept: an [`Answer`], a whole [`Response`], and with the feature `axum`
/// whatever a handler may return. `M` only tells these apart, and is never written.
#[expect(async_fn_in_trait, reason = "as in `Session`")]
pub trait IntoAnswer<M = ()> {
    /// It as a whole response. An error means that it could not be read.
    async fn into_answer(self) -> Result<Response<Bytes>, BoxError>;
}

/// An [`IntoAnswer`] by way of HTTP.
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

/// What a handler returns that has finished: its answer. The layer sends what was stored, which is
/// the same.
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

/// Why an attempt did not finish. Nothing of its transaction is there, unless it is
/// [`Unclear`](FinishError::Unclear) or there [was none](FinishError::NoTransaction).
#[derive(Debug)]
#[non_exhaustive]
pub enum FinishError<E> {
    /// The attempt no longer owns its record: it was taken over, settled or given up. Somebody
    /// else's outcome counts.
    FencedOut,
    /// It has finished before, and the first time counts.
    FinishedAlready,
    /// The route's mode is another, or its store cannot take part in a transaction of a caller's.
    NotATransactionRoute,
    /// The transaction is in a database of another kind than the store's.
    AnotherDatabase,
    /// No transaction is open. Whatever was done has committed by itself, and nobody can vouch for
    /// it: the attempt is held as not joined.
    NoTransaction,
    /// The transaction is one within another, and its end would commit nothing:
    /// [`join`](Operation::join) here, and commit the outermost.
    Nested,
    /// The answer could not be read to its end.
    Answer(BoxError),
    /// The driver failed, and the transaction did not commit.
    RolledBack(E),
    /// The commit was sent and no answer came, and the store cannot be asked what became of it. The
    /// layer goes on asking: return this as an error.
    Unclear(E),
}

impl<E: fmt::Display> fmt::Display for FinishError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FinishError::FencedOut => f.write_str("this attempt has lost its fence: another one's outcome counts"),
            FinishError::FinishedAlready => f.write_str("this operation has finished already, and the first time counts"),
            FinishError::NotATransactionRoute => {
                f.write_str("the route's mode is not transaction, so that nothing can finish in a transaction of its own")
            }
            FinishError::AnotherDatabase => f.write_str("the transaction is not in the database of the store"),
            FinishError::NoTransaction => f.write_str(
                "no transaction is open: begin one before the effect; what was done without is there, and held as unknown",
            ),
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

impl Operation {
    /// Completes the record in this transaction, and commits both.
    ///
    /// If the answer to the commit is lost, the store is asked what became of it: the truth is
    /// returned, and no guess.
    ///
    /// # Errors
    ///
    /// When the attempt has lost its fence or finished before, and when the driver fails. Then
    /// nothing of the transaction is there: see [`FinishError`].
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
            // What is not certain yet the layer finds out.
            Committed::Yes(_) if !T::ENDS_ALL => Ok(kept),
            Committed::Yes(now) => {
                self.note_joined(&put, statement.now.unwrap_or_else(|| micros(now)));
                Ok(kept)
            }
            Committed::No(error) => Err(refused::<T>(error)),
            Committed::Unclear(error) => self.resolve(put, error).await.map(|()| kept),
        }
    }

    /// Completes the record in this session's transaction and leaves the commit to its owner: for
    /// drivers that commit by themselves at the end of a closure. What counts is the commit: before
    /// it nothing is there, and the layer looks for itself.
    ///
    /// # Errors
    ///
    /// As [`finish`](Operation::finish). Postgres then lets the transaction only be rolled back;
    /// SQLite has rolled it back already, and whatever is run on the session after that is outside
    /// of it: run nothing.
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

    /// [`finish`](Operation::finish) for drivers that block, such as rusqlite: inside
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

    /// What is to be written, and how it is said in the caller's transaction.
    async fn prepare<S: Session, M>(
        &self,
        session: &mut S,
        answer: impl IntoAnswer<M>,
    ) -> Result<Prepared, FinishError<S::Error>> {
        let (policy, store) = (self.policy(), self.store());
        if session.depth() == Some(0) {
            self.note_outside();
            return Err(FinishError::NoTransaction);
        }
        let joins = store
            .joins()
            .filter(|_| policy.mode == Mode::Transaction)
            .ok_or(FinishError::NotATransactionRoute)?;
        let response = answer.into_answer().await.map_err(FinishError::Answer)?;
        // No driver sends more, and one that fails to must not have sent the commit behind it.
        let answer = kept(&response, policy)
            .filter(|answer| answer.encoded_len() <= ANSWER_BYTES_MAX)
            .map(|answer| answer.under(policy.answer_version.as_deref()));
        // Without room in the principal's quota only the mark is written that the effect is done.
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

    /// Finds out what became of a commit whose answer was lost, by ending the attempt as one that
    /// did not count. Whichever of the two comes first in the database excludes the other: if this
    /// wins, the commit did not take place and no longer can.
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
                        // By another transaction of the same attempt.
                        Some((State::Completed | State::Failed, _)) => {
                            Err(FinishError::FinishedAlready)
                        }
                        // By an earlier try of this one.
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

/// The largest answer that goes through a statement.
const ANSWER_BYTES_MAX: usize = 512 << 20;

/// Between two questions to a store that is away.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

struct Prepared {
    put: Put,
    statement: Statement,
    kept: Kept,
    _room: Option<crate::once::Reserved>,
}

fn micros(now: Option<i64>) -> Timestamp {
    Timestamp::from_micros(now.unwrap_or_default().unsigned_abs())
}

/// Why the statement failed. It took its transaction along.
fn refused<S: Session + ?Sized>(error: S::Error) -> FinishError<S::Error> {
    match S::code(&error) {
        Some(code) if code.starts_with(FENCED_OUT) => FinishError::FencedOut,
        Some(code) if code.starts_with(FINISHED_ALREADY) => FinishError::FinishedAlready,
        _ => FinishError::RolledBack(error),
    }
}
