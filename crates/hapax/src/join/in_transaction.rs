//! Claim, effect and answer in one transaction of the caller's.
//!
//! The claim is written in the transaction of the effect, so nobody sees it before the commit and
//! it needs no lease. If the transaction is rolled back, nothing of it was ever there.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::answer::Answer;
use hapax_core::decide::{Decision, decide};
use hapax_core::fingerprint::Fingerprint;
use hapax_core::key::{Key, KeyError};
use hapax_core::outcome::Outcome;
use hapax_core::policy::Policy;
use hapax_core::record::{AttemptToken, Fence, Head, Record, State};
use hapax_core::rejection::Rejection;
use hapax_core::scope::RecordId;
use hapax_core::store::{
    Change, Claim, Condition, Finish, IN_FLIGHT, Joins, Lifetime, Put, Seen, Start, Statement,
    Store, Won, Written,
};

use super::{ANSWER_BYTES_MAX, FinishError, Session, refused};
use crate::observe::{Event, Source};
use crate::once::{
    BoxError, Call, Done, Ended, Engine, Once, Operation, Room, RunError, Value, is_of_version,
    keep, not_kept,
};

impl Once {
    /// Claims the key, runs `work` and keeps its value, all in a transaction that the caller has
    /// begun and will commit. The key, the effect and the value commit together, or none of them
    /// does.
    ///
    /// The work gets the transaction, and the [`Operation`]. Everything that it does in this
    /// transaction happens once; anything else that it does happens each time it runs, also if the
    /// transaction is rolled back afterwards. The value counts when the transaction has committed,
    /// not before.
    ///
    /// What the caller wrote in the transaction before this call is not guarded: on a repeat, which
    /// replays, it would be committed again. So begin with this call.
    ///
    /// In Postgres the namespace must have been given to such transactions: `hapax migrate
    /// --namespace NAME`; then keys of this namespace can be claimed in no other way. Mode, lease,
    /// `velocity` and quotas do not count here.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlx-0_9-postgres")] mod example {
    /// # use hapax::{BoxError, Done, Hapax, Operation};
    /// # use sqlx::{PgPool, Postgres, Transaction};
    /// async fn order(hapax: &Hapax, pool: &PgPool, key: &str, item: String) -> Result<Done<bytes::Bytes>, BoxError> {
    ///     let mut tx = pool.begin().await?;
    ///     let work = async |tx: &mut Transaction<'_, Postgres>, _: &Operation| {
    ///         sqlx::query("INSERT INTO orders (item) VALUES ($1)").bind(&item).execute(&mut **tx).await?;
    ///         Ok::<_, sqlx::Error>("ordered".into())
    ///     };
    ///     let done = hapax.once("order").in_transaction(&mut tx, key, item.clone(), work).await?;
    ///     tx.commit().await?;
    ///     Ok(done)
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// After every error the transaction is broken, and a commit of it commits nothing: roll it
    /// back, and run nothing more on it. [`RunError::NotDone`] has the error of the work, or a
    /// [`StartError`](super::StartError) with the driver's. After a serialization failure or a
    /// deadlock, run the whole transaction again.
    pub async fn in_transaction<S, K, W, E>(
        &self,
        session: &mut S,
        key: K,
        request: impl Into<Bytes>,
        work: W,
    ) -> Result<Done<Bytes>, RunError>
    where
        S: Session,
        K: TryInto<Key>,
        K::Error: Into<KeyError>,
        W: AsyncFnOnce(&mut S, &Operation) -> Result<Bytes, E>,
        E: Into<BoxError>,
    {
        run(self, session, key, None, Ok(request.into()), work).await
    }
}

#[cfg(feature = "json")]
impl crate::once::JsonOnce {
    /// [`Once::in_transaction`] with JSON.
    ///
    /// # Errors
    ///
    /// As [`Once::in_transaction`].
    pub async fn in_transaction<S, K, Q, T, W, E>(
        &self,
        session: &mut S,
        key: K,
        request: Q,
        work: W,
    ) -> Result<Done<T>, RunError>
    where
        S: Session,
        K: TryInto<Key>,
        K::Error: Into<KeyError>,
        Q: serde::Serialize,
        T: serde::Serialize + serde::de::DeserializeOwned + Send + 'static,
        W: AsyncFnOnce(&mut S, &Operation) -> Result<T, E>,
        E: Into<BoxError>,
    {
        use crate::once::Json;

        let request = serde_json::to_vec(&request).map(Bytes::from);
        let work =
            async |session: &mut S, operation: &Operation| work(session, operation).await.map(Json);
        let content_type = Some("application/json");
        let done = run(
            self.once(),
            session,
            key,
            content_type,
            request.map_err(RunError::Request),
            work,
        )
        .await?;
        let Done {
            value: Json(value),
            replayed,
        } = done;
        Ok(Done { value, replayed })
    }
}

async fn run<T, S, K, W, E>(
    once: &Once,
    session: &mut S,
    key: K,
    content_type: Option<&'static str>,
    request: Result<Bytes, RunError>,
    work: W,
) -> Result<Done<T>, RunError>
where
    T: Value,
    S: Session,
    K: TryInto<Key>,
    K::Error: Into<KeyError>,
    W: AsyncFnOnce(&mut S, &Operation) -> Result<T, E>,
    E: Into<BoxError>,
{
    let key = key.try_into().map_err(|error| RunError::Key(error.into()));
    let done = match key.and_then(|key| Ok(once.call(key, content_type, request?))) {
        Ok(call) => run_call(once.engine(), session, &call, work).await,
        Err(error) => Err(error),
    };
    if done.is_err() {
        break_transaction(once.engine(), session).await;
    }
    done
}

async fn run_call<T, S, W, E>(
    engine: &Arc<Engine>,
    session: &mut S,
    call: &Call,
    work: W,
) -> Result<Done<T>, RunError>
where
    T: Value,
    S: Session,
    W: AsyncFnOnce(&mut S, &Operation) -> Result<T, E>,
    E: Into<BoxError>,
{
    let started = match start(engine, session, call, Admission::New).await? {
        Found::Run(started) => started,
        Found::Replay { answer, .. } => {
            return Ok(Done {
                value: T::read(&answer.body)?,
                replayed: true,
            });
        }
    };
    let worked = work(session, &started.operation).await;
    let value = worked.map_err(|error| RunError::NotDone(error.into()))?;
    let Ended { outcome, live } = keep(value, &call.policy);
    if let Outcome::Kept { status, answer } = outcome {
        started.end(session, status, answer).await?;
    }
    Ok(Done {
        value: live?,
        replayed: false,
    })
}

/// Makes sure that the transaction commits nothing, whatever its owner does with it: a statement
/// that is refused takes the transaction with it, and no attempt can end as running.
pub(super) async fn break_transaction<S: Session>(engine: &Engine, session: &mut S) {
    let Some(joins) = engine.store.joins() else {
        return;
    };
    let statement = joins.statement(&Put {
        id: RecordId::from_bytes([0; 32]),
        condition: Condition::Held { fence: Fence::ZERO },
        change: Change::Finish(Finish {
            state: State::Running,
            status: None,
            answer: None,
            lifetime: Lifetime::default(),
        }),
    });
    if statement.dialect == session.dialect() {
        let _refused = session.run(&statement).await;
    }
}

/// What a key stands for when a transaction starts it.
pub(super) enum Found {
    /// Nothing: the work may run.
    Run(Box<Started>),
    /// A kept answer.
    Replay {
        head: Box<Head>,
        answer: Arc<Answer>,
    },
}

/// Why a key was not started, or not completed.
pub(super) enum NotStarted<E: std::error::Error + 'static> {
    Rejected(Rejection),
    Failed(StartError<E>),
}

/// Why the key was not claimed in a transaction, or not completed: the transaction can commit
/// nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError<E: std::error::Error + 'static> {
    /// No transaction is open. Nothing was done.
    #[error(
        "no transaction is open on this connection: begin one before the call; nothing was done"
    )]
    NoTransaction,
    /// The store keeps its records elsewhere.
    #[error(
        "the store takes no part in transactions: its records must be in the database of the transaction (`Postgres` or `Guest`)"
    )]
    NoTransactions,
    /// The transaction is in another kind of database than the store.
    #[error("the transaction is not in the database of the store")]
    AnotherDatabase,
    /// The claim is no longer in the transaction, so the work, or the database, has ended the
    /// transaction in between. What the work did since then may have been committed by itself.
    #[error(
        "the transaction was ended while the work ran: find out what it did since, because it may have committed by itself"
    )]
    Ended,
    /// The driver failed.
    #[error("the transaction can commit nothing: {0}")]
    Driver(#[source] E),
}

impl<E: std::error::Error + 'static> From<Rejection> for NotStarted<E> {
    fn from(rejection: Rejection) -> Self {
        NotStarted::Rejected(rejection)
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<NotStarted<E>> for RunError {
    fn from(error: NotStarted<E>) -> Self {
        match error {
            NotStarted::Rejected(rejection) => RunError::Rejected(rejection),
            NotStarted::Failed(error) => RunError::NotDone(error.into()),
        }
    }
}

/// A key that an open transaction has claimed.
pub(super) struct Started {
    pub(super) operation: Operation,
    pub(super) head: Head,
    engine: Arc<Engine>,
    policy: Arc<Policy>,
    room: Room,
}

/// Whether a key still has to be let in.
pub(super) enum Admission {
    New,
    /// It was, and ran: only its refusal is to be kept.
    Again(Room),
}

/// The longest that the database waits for another open transaction.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Rounds of one start. The second claims a record that the first has found, and that may run
/// again; nothing but a clock that jumps takes a third.
const ROUNDS_MAX: usize = 3;

/// A record is remembered for so long at least: the SQL that claims counts on it.
const RETENTION_MIN: Duration = Duration::from_secs(120);

/// Claims the key of the call in the session's transaction.
pub(super) async fn start<S: Session>(
    engine: &Arc<Engine>,
    session: &mut S,
    call: &Call,
    admission: Admission,
) -> Result<Found, NotStarted<S::Error>> {
    engine.start_background();
    let found = claim(engine, session, call, admission).await;
    let subject = call.subject(call.id);
    match &found {
        Ok(Found::Replay { .. }) => engine.observe(&Event::Replayed {
            subject,
            source: Source::Store,
        }),
        Err(NotStarted::Rejected(rejection)) => engine.observe(&Event::Rejected {
            subject: Some(subject),
            rejection,
        }),
        Ok(Found::Run(_)) | Err(NotStarted::Failed(_)) => {}
    }
    found
}

async fn claim<S: Session>(
    engine: &Arc<Engine>,
    session: &mut S,
    call: &Call,
    admission: Admission,
) -> Result<Found, NotStarted<S::Error>> {
    if session.depth() == Some(0) {
        return Err(NotStarted::Failed(StartError::NoTransaction));
    }
    let Some(joins) = engine.store.joins() else {
        return Err(NotStarted::Failed(StartError::NoTransactions));
    };
    let policy = &call.policy;
    let ids = engine.operation_ids(policy.store_timeout).await?;
    let mut fingerprint = call.fingerprint(&policy.fingerprint).await?;
    let mut over: Option<Head> = None;
    for _ in 0..ROUNDS_MAX {
        let preparing = joins.prepare_start(&fingerprint.policy);
        engine.ask_in(policy.store_timeout, preparing).await?;
        let put = claim_of(call, &fingerprint);
        let asked = Start {
            id: call.id,
            claim: &put,
            wait: call.wait.min(policy.wait_max).min(WAIT_MAX),
            over: over.as_ref(),
        };
        match ask(engine, joins, session, &asked).await? {
            Written::Won(won) => {
                let room = match admission {
                    Admission::New => admit(engine, call, &fingerprint, &won)?,
                    Admission::Again(room) => room,
                };
                return Ok(Found::Run(Box::new(Started {
                    operation: Operation::in_transaction(
                        &ids,
                        &won.head,
                        policy.clone(),
                        engine.store.clone(),
                        call.trace.clone(),
                    ),
                    head: won.head,
                    engine: engine.clone(),
                    policy: policy.clone(),
                    room,
                })));
            }
            Written::Lost(seen) => match judge(engine, call, seen).await? {
                Judged::Replay(found) => return Ok(found),
                Judged::MayRun {
                    head,
                    fingerprint: of_this_run,
                } => (over, fingerprint) = (Some(*head), of_this_run),
            },
        }
    }
    Err(Rejection::in_flight(Duration::ZERO).into())
}

/// Checks whether an attempt may begin. The claim comes first, because it tells whether the key is
/// new, and what time it is; if the answer is no, it is rolled back.
fn admit(
    engine: &Engine,
    call: &Call,
    fingerprint: &Fingerprint,
    won: &Won,
) -> Result<Room, Rejection> {
    if let Decision::Reject(rejection) = decide(None, &call.ask(fingerprint), won.now, &call.policy)
    {
        return Err(rejection);
    }
    if won.head.attempts > call.policy.attempts_max {
        return Err(Rejection::AttemptsExhausted);
    }
    if won.head.attempts == 1 {
        call.check_key()?;
    }
    engine.room(&call.policy)
}

/// Sends the claim through the session, and reads the reply.
async fn ask<S: Session>(
    engine: &Engine,
    joins: &dyn Joins,
    session: &mut S,
    asked: &Start<'_>,
) -> Result<Written, NotStarted<S::Error>> {
    let statement = joins.start(asked);
    if statement.dialect != session.dialect() {
        return Err(NotStarted::Failed(StartError::AnotherDatabase));
    }
    let row = session
        .run(&statement)
        .await
        .map_err(|error| match S::code(&error) {
            Some(code) if is_in_flight(&code) => Rejection::in_flight(Duration::ZERO).into(),
            _ => NotStarted::Failed(StartError::Driver(error)),
        })?;
    joins
        .started(asked, row)
        .map_err(|error| engine.reject_for(&error).into())
}

/// A driver that does not expose codes gives the message, which begins with its word.
fn is_in_flight(code: &str) -> bool {
    code.starts_with(IN_FLIGHT) || code.starts_with("in-flight")
}

fn claim_of(call: &Call, fingerprint: &Fingerprint) -> Claim {
    Claim {
        scope: call.scope.clone(),
        key: call.key.clone(),
        fingerprint: fingerprint.clone(),
        token: AttemptToken::from_bytes(*uuid::Uuid::new_v4().as_bytes()),
        lease: Duration::ZERO,
        terms: None,
        request_id: call.request_id.clone(),
    }
}

enum Judged {
    Replay(Found),
    /// The record may be claimed again, by a request with this fingerprint.
    MayRun {
        head: Box<Head>,
        fingerprint: Fingerprint,
    },
}

/// What a record means for the call.
async fn judge(engine: &Engine, call: &Call, seen: Seen) -> Result<Judged, Rejection> {
    let fingerprint = call.fingerprint_for(seen.head()).await?;
    let decision = decide(seen.head(), &call.ask(&fingerprint), seen.now, &call.policy);
    let Some(Record { head, answer }) = seen.record else {
        return Err(Rejection::in_flight(Duration::ZERO));
    };
    match decision {
        Decision::Replay => {
            let answer = answer.ok_or(Rejection::AnswerCorrupt)?;
            if !is_of_version(&answer, &call.policy) {
                return Err(not_kept(&head));
            }
            let head = Box::new(head);
            Ok(Judged::Replay(Found::Replay { head, answer }))
        }
        Decision::Reject(rejection) => Err(rejection),
        // A new life of the key: the record's policy counts no more.
        Decision::Attempt(Condition::Absent) => Ok(Judged::MayRun {
            head: Box::new(head),
            fingerprint: call.fingerprint(&call.policy.fingerprint).await?,
        }),
        Decision::Attempt(_) if head.state == State::Retryable => Ok(Judged::MayRun {
            head: Box::new(head),
            fingerprint,
        }),
        // Begun by this transaction itself, and not completed: nobody else would see it.
        Decision::Attempt(_) | Decision::WriteLost(_) if is_begun_here(&head) => {
            Err(Rejection::in_flight(Duration::ZERO))
        }
        // Of an attempt outside of a transaction like this one, so that a rollback of this one says
        // nothing about it.
        Decision::Attempt(_) | Decision::WriteLost(_) => Err(Rejection::OutcomeUnknown),
        Decision::Wait => {
            engine.observe(&Event::Waiting(call.subject(call.id)));
            Err(Rejection::in_flight(seen.now.since(head.claimed_at)))
        }
    }
}

/// In Postgres a transaction is the token of its own claims, after these bytes, and none of them is
/// visible before it is completed.
fn is_begun_here(head: &Head) -> bool {
    head.state == State::Running && head.token.as_bytes().starts_with(b"hapaxtx\0")
}

impl Started {
    pub(super) fn into_room(self) -> Room {
        self.room
    }

    /// Completes the record, in the transaction that has claimed it. The statement is returned with
    /// what it will have done when the transaction commits.
    pub(super) fn ending<E: std::error::Error>(
        &self,
        status: u16,
        answer: Option<Arc<Answer>>,
    ) -> Result<(Statement, Finish), NotStarted<E>> {
        let version = self.policy.answer_version.as_deref();
        let answer = answer
            .filter(|answer| answer.encoded_len() <= ANSWER_BYTES_MAX)
            .map(|answer| Arc::new(Answer::clone(&answer).under(version)));
        let finish = Finish {
            state: Outcome::Kept {
                status,
                answer: None,
            }
            .state(),
            status: Some(status),
            answer,
            lifetime: Lifetime {
                retention: self.policy.retention.max(RETENTION_MIN),
                tombstone: self.policy.tombstone,
            },
        };
        Ok((self.statement(finish.clone())?, finish))
    }

    pub(super) async fn end<S: Session>(
        &self,
        session: &mut S,
        status: u16,
        answer: Option<Arc<Answer>>,
    ) -> Result<(), NotStarted<S::Error>> {
        let (statement, _) = self.ending(status, answer)?;
        let ran = session.run(&statement).await;
        ran.map(drop)
            .map_err(|error| NotStarted::Failed(not_ended::<S>(error)))
    }

    fn statement<E: std::error::Error>(&self, finish: Finish) -> Result<Statement, NotStarted<E>> {
        let joins = self.engine.store.joins();
        let joins = joins.ok_or(NotStarted::Failed(StartError::NoTransactions))?;
        Ok(joins.statement(&Put {
            id: self.head.id,
            condition: Condition::Held {
                fence: self.head.fence,
            },
            change: Change::Finish(finish),
        }))
    }
}

/// Why the record could not be completed: the transaction still has its claim, or it was ended.
pub(super) fn not_ended<S: Session + ?Sized>(error: S::Error) -> StartError<S::Error> {
    match refused::<S>(error) {
        FinishError::FencedOut | FinishError::FinishedAlready => StartError::Ended,
        FinishError::RolledBack(error) | FinishError::Unclear(error) => StartError::Driver(error),
        _ => StartError::Ended,
    }
}
