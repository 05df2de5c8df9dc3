//! The guard in one transaction: it begins a transaction for each request, claims the key in it,
//! lends it to the handler, keeps the answer in it, and commits.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use hapax_core::answer::Answer;
use hapax_core::guard;
use hapax_core::outcome::Outcome;
use hapax_core::record::{Head, Record, State};
use hapax_core::rejection::Rejection;
use hapax_core::store::Store;
use http::Response;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::in_transaction::{Admission, Found, NotStarted, StartError, Started, not_ended, start};
use super::{Committed, Session, Transaction, time};
use crate::middleware::{Body, Driven, GuardBuilder, Work};
use crate::observe::{Event, Source};
use crate::once::{Call, Ended, Engine, Reply, because, catch_panic};

/// A pool of connections on which a guard can begin a transaction for each request: a
/// `sqlx::PgPool`, a `sqlx::SqlitePool` or a `sea_orm::DatabaseConnection`, with the feature of the
/// driver.
#[diagnostic::on_unimplemented(
    message = "hapax cannot begin transactions on `{Self}`",
    label = "this is no pool that hapax knows",
    note = "turn on the feature of hapax for your driver: sqlx-0_9-postgres, sqlx-0_9-sqlite or sea-orm-2",
    note = "with other drivers, begin the transaction yourself: `Once::in_transaction`, or `Operation::finish` on a route of `transaction()`"
)]
pub trait TransactionPool: sealed::Pool {}

pub(super) mod sealed {
    use std::sync::Arc;

    use crate::middleware::InTransaction;

    pub trait Pool: Sized {
        fn into_guard(self) -> GuardPool;
    }

    /// The pool, without its type.
    pub struct GuardPool(pub(crate) Arc<dyn InTransaction>);
}

impl<P> GuardBuilder<P> {
    /// Guards each request in one transaction on this pool: the key is claimed, the handler works
    /// and the answer is kept in the same transaction, which is committed before the caller gets
    /// the answer. So the effect is there if and only if the key is completed, at the price of one
    /// commit. The handler gets the transaction from the extractor [`OpenTransaction`]; only what
    /// it does there happens once.
    ///
    /// | The handler returns | What becomes of it |
    /// |---|---|
    /// | 2xx or 3xx | committed with the answer |
    /// | a kept 4xx | rolled back; the answer is kept, and a repeat gets it again |
    /// | 401, 403, 425, 429, any 5xx; or it panics, or runs for longer than `longest_attempt` | rolled back; a repeat runs again |
    ///
    /// The store must be in the database of the pool: a `Postgres` whose namespace was given to
    /// such transactions (`hapax migrate --namespace NAME`; it can then be used in no other way),
    /// or a `Guest`. A repeat does not wait for the first request (`Prefer: wait`): it would keep a
    /// connection. Limits on records and quotas are not counted here.
    pub fn in_transaction(self, pool: impl TransactionPool) -> Self {
        self.set_in_transaction(pool.into_guard().0)
    }
}

/// The transaction that the guard has begun for this request, lent to the handler: an axum
/// extractor. The guard commits it after the handler has returned, so return it before that: drop
/// it, or let it go out of scope. Do not end it by hand, and do not go on in it after SQLite has
/// rolled it back by itself: what comes after that commits by itself, without the key.
///
/// ```no_run
/// # #[cfg(all(feature = "axum", feature = "sqlx-0_9-postgres"))] mod example {
/// use axum::http::StatusCode;
/// use hapax::join::OpenTransaction;
/// use sqlx::{Postgres, Transaction};
///
/// async fn place(
///     mut tx: OpenTransaction<Transaction<'static, Postgres>>,
///     item: String,
/// ) -> Result<(StatusCode, String), StatusCode> {
///     let insert = sqlx::query("INSERT INTO orders (item) VALUES ($1)").bind(&item);
///     insert.execute(&mut **tx).await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
///     Ok((StatusCode::CREATED, item))
/// }
/// # }
/// ```
pub struct OpenTransaction<T> {
    /// Always there, until it is dropped.
    transaction: Option<T>,
    slot: Slot<T>,
}

impl<T> Deref for OpenTransaction<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.transaction.as_ref().expect("it is lent until dropped")
    }
}

impl<T> DerefMut for OpenTransaction<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.transaction.as_mut().expect("it is lent until dropped")
    }
}

impl<T> Drop for OpenTransaction<T> {
    fn drop(&mut self) {
        *self.slot.0.lock() = self.transaction.take();
    }
}

impl<T> fmt::Debug for OpenTransaction<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenTransaction").finish_non_exhaustive()
    }
}

/// Where the transaction lies while nobody has it.
pub(crate) struct Slot<T>(Arc<Mutex<Option<T>>>);

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Slot(self.0.clone())
    }
}

impl<T> Slot<T> {
    fn new(transaction: T) -> Self {
        Slot(Arc::new(Mutex::new(Some(transaction))))
    }

    fn take(&self) -> Option<T> {
        self.0.lock().take()
    }

    /// `None` if somebody has it already.
    #[cfg(feature = "axum")]
    pub(crate) fn lend(&self) -> Option<OpenTransaction<T>> {
        let transaction = Some(self.take()?);
        let slot = self.clone();
        Some(OpenTransaction { transaction, slot })
    }
}

/// Begins and rolls back transactions on a pool.
pub(super) trait Begin: Clone + Send + Sync + 'static {
    type Transaction: Transaction + Send + 'static;

    /// Must go on if it is dropped: see [`to_its_end`].
    async fn begin(&self) -> Result<Self::Transaction, ErrorOf<Self>>;

    /// Returns when the database has rolled back: until then it holds the key.
    async fn roll_back(transaction: Self::Transaction) -> Result<(), ErrorOf<Self>>;
}

type ErrorOf<P> = <<P as Begin>::Transaction as Session>::Error;

/// Makes a guard of a pool. The futures of a driver are `Send`, which only code that names the
/// driver can tell; so this is a macro.
macro_rules! transaction_pool {
    ($pool:ty) => {
        impl $crate::join::TransactionPool for $pool {}

        impl $crate::join::guard::sealed::Pool for $pool {
            fn into_guard(self) -> $crate::join::guard::sealed::GuardPool {
                $crate::join::guard::sealed::GuardPool(std::sync::Arc::new(self))
            }
        }

        impl $crate::middleware::InTransaction for $pool {
            fn drive(
                &self,
                engine: std::sync::Arc<$crate::once::Engine>,
                call: $crate::once::Call,
                work: $crate::middleware::Work,
            ) -> $crate::middleware::Driving {
                let policy = call.policy.clone();
                let answering = $crate::join::guard::answer(self.clone(), engine, call, work);
                // On a task of its own: a caller who hangs up must not leave a driver in the middle
                // of a statement.
                let task = tokio::spawn(tracing::Instrument::in_current_span(answering));
                Box::pin(async move {
                    let lost = |_| Err(hapax_core::rejection::Rejection::lost(&policy, false));
                    task.await.unwrap_or_else(lost)
                })
            }
        }
    };
}
pub(super) use transaction_pool;

/// Answers a call, in a transaction of its own.
pub(super) async fn answer<P: Begin>(
    pool: P,
    engine: Arc<Engine>,
    mut call: Call,
    work: Work,
) -> Driven {
    // To wait here would be to keep connections from everybody else.
    call.wait = Duration::ZERO;
    let handling = Handling { pool, engine, call };
    let mut transaction = handling.begin().await?;
    let started = match handling.start(&mut transaction, Admission::New).await {
        Ok(Found::Run(started)) => started,
        Ok(Found::Replay { head, answer }) => return Ok(replay(head, answer)),
        Err(error) => {
            handling.roll_back(transaction).await;
            return Err(handling.rejection(error));
        }
    };
    handling.run(transaction, *started, work).await
}

fn replay(head: Box<Head>, answer: Arc<Answer>) -> Reply<Live> {
    let source = Source::Store;
    Reply::Replay {
        head,
        answer,
        source,
    }
}

/// One call, and where it is answered.
struct Handling<P> {
    pool: P,
    engine: Arc<Engine>,
    call: Call,
}

type Live = Result<Response<Body>, Rejection>;

impl<P: Begin> Handling<P> {
    async fn begin(&self) -> Result<P::Transaction, Rejection> {
        match self.in_time(self.pool.begin()).await {
            Some(Ok(transaction)) => Ok(transaction),
            Some(Err(error)) => Err(self.unavailable("a transaction cannot be begun", &error)),
            None => {
                tracing::warn!(
                    "no transaction could be begun in time (store_timeout): no connection of the pool was free, or the file is locked"
                );
                Err(self.reject(Rejection::StoreUnavailable))
            }
        }
    }

    async fn start(
        &self,
        transaction: &mut P::Transaction,
        admission: Admission,
    ) -> Result<Found, NotStarted<ErrorOf<P>>> {
        let starting = start(&self.engine, transaction, &self.call, admission);
        match self.in_time(starting).await {
            Some(found) => found,
            None => Err(self.reject(Rejection::StoreUnavailable).into()),
        }
    }

    /// Runs the handler, and ends the transaction by what it returns.
    async fn run(&self, transaction: P::Transaction, started: Started, work: Work) -> Driven {
        let since = Instant::now();
        let subject = self.call.subject(self.call.id);
        self.engine.observe(&Event::Dispatching(subject));
        let driven = self.run_and_end(transaction, started, work).await;
        let state = match &driven {
            Ok(Reply::Joined { head, .. }) => head.state,
            // Rolled back, as if it had never been.
            _ => State::Retryable,
        };
        self.engine.observe(&Event::Finished {
            subject,
            state,
            elapsed: since.elapsed(),
            late: false,
        });
        if driven.is_ok() {
            self.engine.observe(&Event::Answering(subject));
        }
        driven
    }

    async fn run_and_end(
        &self,
        transaction: P::Transaction,
        started: Started,
        work: Work,
    ) -> Driven {
        let slot = Slot::new(transaction);
        let ended = self.work(&started, &slot, work).await;
        let Some(mut transaction) = slot.take() else {
            tracing::error!(
                path = %self.call.scope.path,
                "a handler has returned and kept its OpenTransaction: nothing of it is committed. Drop it before the handler returns"
            );
            return Err(self.reject(Rejection::lost(&self.call.policy, false)));
        };
        // A handler may have left a transaction open in this one: a commit would end only that.
        if transaction.depth().is_some_and(|depth| depth != 1) {
            tracing::error!(
                path = %self.call.scope.path,
                "a handler has returned with a nested transaction open, or without any: nothing is committed"
            );
            self.roll_back(transaction).await;
            return Err(self.reject(Rejection::lost(&self.call.policy, false)));
        }
        let Ended { outcome, live } = match ended {
            Ok(ended) => ended,
            Err(rejection) => {
                self.roll_back(transaction).await;
                return Err(self.reject(rejection));
            }
        };
        match outcome {
            Outcome::Kept { status, answer } if (400..500).contains(&status) => {
                self.roll_back(transaction).await;
                self.refuse(started, status, answer, live).await
            }
            Outcome::Kept { status, answer } => {
                self.commit(transaction, &started, status, answer, live)
                    .await
            }
            Outcome::Released { .. } | Outcome::Lost(_) => {
                self.roll_back(transaction).await;
                let head = Box::new(started.head);
                Ok(Reply::First { head, live })
            }
        }
    }

    /// Runs the handler. After a panic, or if it takes too long, nothing is committed.
    async fn work(
        &self,
        started: &Started,
        slot: &Slot<P::Transaction>,
        work: Work,
    ) -> Result<Ended<Live>, Rejection> {
        let mut extensions = http::Extensions::new();
        extensions.insert(slot.clone());
        let Call {
            policy, scope, key, ..
        } = &self.call;
        let working = catch_panic(work(started.operation.clone(), extensions));
        match tokio::time::timeout(policy.longest_attempt, working).await {
            Ok(Ok(ended)) => Ok(ended),
            Ok(Err(panic)) => {
                tracing::error!(path = %scope.path, key = key.as_str(), panic, "the guarded work panicked");
                Err(Rejection::lost(policy, false))
            }
            Err(_) => {
                tracing::warn!(path = %scope.path, key = key.as_str(), "the guarded work took longer than longest_attempt: it is rolled back");
                Err(Rejection::lost(policy, true))
            }
        }
    }

    /// Keeps a refusal without what the handler did before it, in a second transaction.
    async fn refuse(
        &self,
        started: Started,
        status: u16,
        answer: Option<Arc<Answer>>,
        live: Live,
    ) -> Driven {
        let mut transaction = self.begin().await?;
        let admission = Admission::Again(started.into_room());
        match self.start(&mut transaction, admission).await {
            Ok(Found::Run(started)) => {
                self.commit(transaction, &started, status, answer, live)
                    .await
            }
            Ok(Found::Replay { head, answer }) => Ok(replay(head, answer)),
            Err(error) => Err(self.rejection(error)),
        }
    }

    async fn commit(
        &self,
        transaction: P::Transaction,
        started: &Started,
        status: u16,
        answer: Option<Arc<Answer>>,
        live: Live,
    ) -> Driven {
        let (statement, finish) = match started.ending(status, answer) {
            Ok(ending) => ending,
            Err(error) => return Err(self.rejection(error)),
        };
        let now = match self.in_time(transaction.run_and_commit(&statement)).await {
            Some(Committed::Yes(row)) => statement.now.unwrap_or_else(|| time(row.as_deref())),
            Some(Committed::No(error)) => {
                let error = not_ended::<P::Transaction>(error);
                return Err(self.rejection(NotStarted::Failed(error)));
            }
            Some(Committed::Unclear(error)) => {
                tracing::warn!(
                    error = because(&error),
                    "the reply to a commit was lost: a repeat with the same key finds out"
                );
                return Err(self.reject(Rejection::lost(&self.call.policy, false)));
            }
            None => {
                tracing::warn!(
                    "a commit was not answered in time (store_timeout): a repeat with the same key finds out"
                );
                return Err(self.reject(Rejection::lost(&self.call.policy, true)));
            }
        };
        let record = Record {
            head: guard::ended(&started.head, &finish, now),
            answer: finish.answer,
        };
        if let Some(joins) = self.engine.store.joins() {
            joins.joined(&record.head, now);
        }
        self.engine.store.note_joined(&record, now);
        self.engine.observe(&Event::Joined {
            subject: self.call.subject(self.call.id),
            differs: false,
        });
        Ok(Reply::Joined {
            head: Box::new(record.head),
            answer: record.answer,
            live: Some(live),
        })
    }

    /// Waits for the rollback, which frees the key, but not for ever: the handler's last statement
    /// may still be running, and the connection rolls back after it.
    async fn roll_back(&self, transaction: P::Transaction) {
        match self.in_time(P::roll_back(transaction)).await {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::debug!(
                    error = because(&error),
                    "a transaction ended with its connection"
                );
            }
            None => tracing::warn!(
                "a rollback was not answered in time (store_timeout): the key is in flight until the database has ended the transaction"
            ),
        }
    }

    /// `None` if the database takes longer than `store_timeout`.
    async fn in_time<T>(&self, asking: impl Future<Output = T>) -> Option<T> {
        let limit = self.call.policy.store_timeout;
        tokio::time::timeout(limit, asking).await.ok()
    }

    /// What the caller is told if the key could not be claimed or completed.
    fn rejection(&self, error: NotStarted<ErrorOf<P>>) -> Rejection {
        match error {
            // Reported where it was found.
            NotStarted::Rejected(rejection) => rejection,
            NotStarted::Failed(StartError::Driver(error)) if is_conflict::<P>(&error) => {
                tracing::debug!(
                    error = because(&error),
                    "a transaction met another one: it is rolled back"
                );
                self.reject(Rejection::in_flight(Duration::ZERO))
            }
            NotStarted::Failed(error @ StartError::Ended) => {
                tracing::error!(path = %self.call.scope.path, key = self.call.key.as_str(), "{error}");
                self.reject(Rejection::lost(&self.call.policy, false))
            }
            NotStarted::Failed(error) => {
                self.unavailable("the key cannot be claimed or completed", &error)
            }
        }
    }

    /// The database failed before anything was committed.
    fn unavailable(&self, what: &str, error: &(dyn std::error::Error + 'static)) -> Rejection {
        tracing::error!(
            error = because(error),
            "{what}: nothing was committed, and a repeat is safe"
        );
        self.reject(Rejection::StoreUnavailable)
    }

    fn reject(&self, rejection: Rejection) -> Rejection {
        self.engine.observe(&Event::Rejected {
            subject: Some(self.call.subject(self.call.id)),
            rejection: &rejection,
        });
        rejection
    }
}

/// Whether the database has rolled a transaction back because of another one: it may run again.
fn is_conflict<P: Begin>(error: &ErrorOf<P>) -> bool {
    <P::Transaction as Session>::code(error)
        .is_some_and(|code| ["40001", "40P01"].contains(&code.as_str()))
}

/// Runs to its end, even if the caller stops waiting: a driver whose `BEGIN` is cancelled may give
/// the connection back inside a transaction.
pub(super) async fn to_its_end<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> T {
    match tokio::spawn(future).await {
        Ok(output) => output,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is ending.
        Err(_) => std::future::pending().await,
    }
}
