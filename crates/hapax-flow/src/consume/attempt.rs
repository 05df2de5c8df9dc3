//! One try: receipts, effects and what is parked, in one transaction.

use std::error::Error;
use std::panic::AssertUnwindSafe;
use std::time::SystemTime;

use futures_util::FutureExt;
use hapax::BoxError;
use hapax::inbox::{self, Cause, Receipt, ReceiveError};
use hapax::join::{Committed, Database, Session, Transaction};
use hapax_core::flow::ReceiptId;
use hapax_core::planted::{self, Bug};
use hapax_core::store::{Column, Dialect, Statement, Value};
use hapax_core::time::Timestamp;
use tokio::time::timeout;

use super::received::Received;
use super::rules::{Guarantee, Rules};

/// What a transaction that has committed did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) applied: usize,
    pub(super) duplicates: usize,
    pub(super) stale: usize,
    pub(super) parked: usize,
}

/// Why nothing of a transaction is known to be there.
#[derive(Debug)]
pub(super) enum Failure {
    /// The handler failed: one of the messages may be the cause.
    Handler(String),
    /// Another transaction holds what this one needs. That passes.
    Busy(String),
    /// The database cannot be used now, whatever the messages are.
    Database(String),
    /// The commit may have taken place.
    Unclear(String),
}

/// What a handler of effects in a database is.
pub(super) trait Handler<D: Database>:
    AsyncFn(&[Received], &mut D::Transaction) -> Result<(), BoxError>
{
}

impl<D: Database, H> Handler<D> for H where
    H: AsyncFn(&[Received], &mut D::Transaction) -> Result<(), BoxError>
{
}

/// Applies those of the messages that were not applied before, and commits.
pub(super) async fn apply<D: Database>(
    database: &mut D,
    handler: &impl Handler<D>,
    rules: &Rules,
    batch: &[Received],
    have_failed: bool,
) -> Result<Done, Failure> {
    if planted::is(Bug::FlowReceiptsOutside) {
        return apply_outside(database, handler, rules, batch).await;
    }
    let mut transaction = begin(database).await?;
    let applied = async {
        let (fresh, mut done) = take_in(&mut transaction, rules, batch).await?;
        if have_failed {
            for message in batch {
                let recovered = inbox::recovered(&mut transaction, &rules.name, message.id());
                recovered
                    .await
                    .map_err(|error| judge_receive::<D::Transaction>(&error))?;
            }
        }
        done.applied = fresh.len();
        if !fresh.is_empty() {
            handle::<D>(handler, &fresh, &mut transaction).await?;
        }
        Ok((rules.receipt(fresh.first()), done))
    };
    match applied.await {
        Ok((receipt, done)) => commit::<D>(transaction, receipt).await.map(|()| done),
        Err(failure) => {
            roll_back::<D>(transaction).await;
            Err(failure)
        }
    }
}

/// A planted bug: receipts commit before the effects.
async fn apply_outside<D: Database>(
    database: &mut D,
    handler: &impl Handler<D>,
    rules: &Rules,
    batch: &[Received],
) -> Result<Done, Failure> {
    let mut receipts = begin(database).await?;
    let (fresh, mut done) = take_in(&mut receipts, rules, batch).await?;
    commit::<D>(receipts, None).await?;
    let mut effects = begin(database).await?;
    done.applied = fresh.len();
    handle::<D>(handler, &fresh, &mut effects).await?;
    commit::<D>(effects, None).await?;
    Ok(done)
}

/// Applies a parked message that an operator wants to be tried again, if there is one. `None` if
/// there is none.
pub(super) async fn apply_parked<D: Database>(
    database: &mut D,
    handler: &impl Handler<D>,
    rules: &Rules,
) -> Result<Option<Done>, Failure> {
    let mut transaction = begin(database).await?;
    let mut taken = None;
    let work = async {
        let parked = inbox::take_parked(&mut transaction, &rules.name).await;
        let Some(parked) = parked.map_err(|error| judge_receive::<D::Transaction>(&error))? else {
            return Ok(None);
        };
        let message = &*taken.insert(rules.of_parked(parked));
        let is_new = inbox::parked_done(&mut transaction, &rules.name, message.id()).await;
        if !is_new.map_err(|error| judge_receive::<D::Transaction>(&error))? {
            let duplicates = 1;
            return Ok(Some(Done {
                duplicates,
                ..Done::default()
            }));
        }
        handle::<D>(handler, std::slice::from_ref(message), &mut transaction).await?;
        let applied = 1;
        Ok(Some(Done {
            applied,
            ..Done::default()
        }))
    };
    let worked = timeout(rules.batch_time_max, work).await;
    let receipt = |message: &Received| ReceiptId::of(&rules.name, message.id());
    let failure = match worked {
        Ok(Ok(done)) => match commit::<D>(transaction, taken.as_ref().map(receipt)).await {
            Ok(()) => return Ok(done),
            Err(failure) => failure,
        },
        Ok(Err(failure)) => {
            roll_back::<D>(transaction).await;
            failure
        }
        // It may be in the middle of a statement, for which a rollback would wait.
        Err(_) => {
            drop(transaction);
            late(rules)
        }
    };
    if let (Some(message), Failure::Handler(reason)) = (taken, &failure) {
        count_parked(database, rules, message.id(), reason).await?;
    }
    Err(failure)
}

/// What took longer than it may.
pub(super) fn late(rules: &Rules) -> Failure {
    Failure::Handler(format!("it took longer than {:?}", rules.batch_time_max))
}

/// Counts a failure of one message, in a transaction of its own, and parks the message if it has
/// failed too often. Returns the number of failures, or `None` if it is parked.
pub(super) async fn count_failure<D: Database>(
    database: &mut D,
    rules: &Rules,
    message: &Received,
    reason: &str,
) -> Result<Option<u32>, Failure> {
    let mut transaction = begin(database).await?;
    let counted = async {
        let failed = inbox::failed(&mut transaction, &rules.name, message.id(), reason);
        let attempts = failed.await?;
        if attempts < rules.retry.attempts_max {
            return Ok(Some(attempts));
        }
        park(&mut transaction, rules, message, Cause::Failed, reason).await?;
        Ok(None)
    };
    let counted = counted
        .await
        .map_err(|error| judge_receive::<D::Transaction>(&error));
    end::<D, _>(transaction, counted).await
}

/// The same for a message that was parked: after too many failures it is parked again.
async fn count_parked<D: Database>(
    database: &mut D,
    rules: &Rules,
    id: &str,
    reason: &str,
) -> Result<(), Failure> {
    let mut transaction = begin(database).await?;
    let counted = async {
        let attempts = inbox::failed(&mut transaction, &rules.name, id, reason).await?;
        if attempts >= rules.retry.attempts_max {
            inbox::park_again(&mut transaction, &rules.name, id, reason).await?;
        }
        Ok(())
    };
    let counted = counted
        .await
        .map_err(|error| judge_receive::<D::Transaction>(&error));
    end::<D, _>(transaction, counted).await
}

/// Removes receipts that no window needs any more, and returns of how many rows or tables.
pub(super) async fn sweep<D: Database>(database: &mut D) -> Result<u64, Failure> {
    let mut transaction = begin(database).await?;
    let now = Timestamp::from_system_time(SystemTime::now());
    let swept = inbox::sweep(&mut transaction, now).await;
    let swept = swept.map_err(|error| judge_receive::<D::Transaction>(&error));
    end::<D, _>(transaction, swept).await
}

/// Commits, or rolls back what failed.
async fn end<D: Database, T>(
    transaction: D::Transaction,
    result: Result<T, Failure>,
) -> Result<T, Failure> {
    match result {
        Ok(value) => commit::<D>(transaction, None).await.map(|()| value),
        Err(failure) => {
            roll_back::<D>(transaction).await;
            Err(failure)
        }
    }
}

async fn park<T: Session>(
    transaction: &mut T,
    rules: &Rules,
    message: &Received,
    cause: Cause,
    reason: &str,
) -> Result<(), ReceiveError<T::Error>> {
    let entity = rules.entity(message);
    let parked = inbox::ToPark {
        id: Some(message.id()),
        cause,
        reason,
        topic: Some(&message.topic)
            .filter(|topic| !topic.is_empty())
            .map(String::as_str),
        key: message.key.as_deref(),
        entity: entity
            .as_ref()
            .map(|(entity, version)| (&**entity, *version)),
        at: message.at,
        headers: &message.headers,
        payload: &message.payload,
    };
    inbox::park(transaction, &rules.name, &parked)
        .await
        .map(drop)
}

/// Writes receipts for those that may be applied and returns them; parks those that never may.
async fn take_in<T: Session>(
    transaction: &mut T,
    rules: &Rules,
    batch: &[Received],
) -> Result<(Vec<Received>, Done), Failure> {
    let mut done = Done::default();
    if rules.guarantee != Guarantee::Once {
        return Ok((batch.to_vec(), done));
    }
    let (known, unknown): (Vec<_>, Vec<_>) = batch.iter().partition(|message| message.has_id());
    let entities: Vec<_> = known.iter().map(|message| rules.entity(message)).collect();
    let asked: Vec<_> = known
        .iter()
        .zip(&entities)
        .map(|(message, entity)| inbox::Received {
            id: message.id(),
            at: message.at,
            entity: entity
                .as_ref()
                .map(|(entity, version)| (&**entity, *version)),
        })
        .collect();
    let receipts = match asked.is_empty() {
        true => Vec::new(),
        false => inbox::receive_all(transaction, &rules.name, &asked, rules.gaps())
            .await
            .map_err(|error| judge_receive::<T>(&error))?,
    };
    let mut fresh = Vec::new();
    let mut aside: Vec<_> = unknown
        .into_iter()
        .map(|message| (message, Cause::NoId))
        .collect();
    for (message, receipt) in known.into_iter().zip(receipts) {
        match receipt {
            Receipt::New => fresh.push(message.clone()),
            Receipt::Duplicate => done.duplicates += 1,
            Receipt::Stale => done.stale += 1,
            Receipt::TooOld => aside.push((message, Cause::TooOld)),
            Receipt::Ahead => aside.push((message, Cause::Ahead)),
            Receipt::Gap => aside.push((message, Cause::Gap)),
        }
    }
    done.parked = aside.len();
    for (message, why) in aside {
        let parked = park(transaction, rules, message, why, reason(why)).await;
        parked.map_err(|error| judge_receive::<T>(&error))?;
    }
    Ok((fresh, done))
}

async fn handle<D: Database>(
    handler: &impl Handler<D>,
    batch: &[Received],
    transaction: &mut D::Transaction,
) -> Result<(), Failure> {
    // In a block, because a handler may panic before it returns a future.
    let handled = AssertUnwindSafe(async { handler(batch, transaction).await }).catch_unwind();
    match handled.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(judge::<D::Transaction>(&*error)),
        Err(panic) => Err(Failure::Handler(format!(
            "the handler panicked: {}",
            said(&*panic)
        ))),
    }
}

pub(super) fn said(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a text")
}

async fn begin<D: Database>(database: &mut D) -> Result<D::Transaction, Failure> {
    let begun = database.begin().await;
    begun.map_err(|error| Failure::Database(in_a_line(&*error)))
}

/// Commits, if the transaction is still whole: after an error that a handler did not pass on,
/// Postgres answers a commit by rolling back, and says that all is well.
async fn commit<D: Database>(
    transaction: D::Transaction,
    receipt: Option<ReceiptId>,
) -> Result<(), Failure> {
    let is_whole = is_whole(transaction.dialect(), receipt);
    match transaction.run_and_commit(&is_whole).await {
        Committed::Yes(Some(_)) => Ok(()),
        Committed::Yes(None) => Err(Failure::Handler(
            "the database has rolled the transaction back in the middle".to_owned(),
        )),
        Committed::No(error) => Err(judge::<D::Transaction>(&error)),
        Committed::Unclear(error) => Err(Failure::Unclear(in_a_line(&error))),
    }
}

/// Returns a row if the transaction is still the one in which this receipt was written. In Postgres
/// any statement fails if it is not.
fn is_whole(dialect: Dialect, receipt: Option<ReceiptId>) -> Statement {
    let (sql, values) = match (dialect, receipt) {
        (Dialect::Sqlite, Some(receipt)) => (
            "SELECT 1 FROM hapax_receipts WHERE id = ?1",
            vec![Value::Bytes(Some(receipt.as_bytes().to_vec()))],
        ),
        (Dialect::Sqlite, None) => ("SELECT 1", Vec::new()),
        (Dialect::Postgres, _) => ("SELECT 1::int8", Vec::new()),
    };
    Statement {
        dialect,
        sql,
        values,
        columns: &[Column::Int],
        now: None,
    }
}

/// If this fails, the connection is broken, and the database rolls back by itself.
async fn roll_back<D: Database>(transaction: D::Transaction) {
    if let Err(error) = D::roll_back(transaction).await {
        tracing::debug!(
            error,
            "a transaction of a consumer could not be rolled back"
        );
    }
}

/// Judges an error of a handler. If the driver is somewhere among its causes, the database's code
/// tells whether it passes.
fn judge<S: Session>(error: &(dyn Error + 'static)) -> Failure {
    let text = in_a_line(error);
    let causes = std::iter::successors(Some(error), |cause| (**cause).source());
    let codes = causes
        .filter_map(|cause| cause.downcast_ref::<S::Error>())
        .filter_map(S::code);
    match codes.into_iter().any(|code| passes(&code)) {
        true => Failure::Busy(text),
        false => Failure::Handler(text),
    }
}

/// Judges an error of the inbox. A value that the database cannot take is of one message, and the
/// others must not wait for it.
fn judge_receive<S: Session>(error: &ReceiveError<S::Error>) -> Failure {
    let text = in_a_line(error);
    let code = match error {
        ReceiveError::WindowChanged(_) => return Failure::Busy(text),
        ReceiveError::Invalid(_) => return Failure::Handler(text),
        ReceiveError::Driver(error) => S::code(error).unwrap_or_default(),
        _ => String::new(),
    };
    match code {
        code if passes(&code) => Failure::Busy(text),
        // SQLSTATE: a data exception.
        code if code.len() == 5 && code.starts_with("22") => Failure::Handler(text),
        _ => Failure::Database(text),
    }
}

/// Why a message is parked that was never tried, for an operator.
fn reason(cause: Cause) -> &'static str {
    match cause {
        Cause::TooOld => "it is older than the receipts: nobody can tell whether it was applied",
        Cause::Ahead => "its time is more than five minutes ahead of the database's clock",
        Cause::Gap => "a version before it is missing",
        Cause::NoId => "it has no id that can be used",
        Cause::Failed => "it failed",
    }
}

/// Whether an error of the database passes by itself: serialization failures, deadlocks, locks that
/// were not to be had. Some drivers tell the message in place of the code.
fn passes(code: &str) -> bool {
    const TEXTS: [&str; 5] = [
        "could not serialize",
        "deadlock detected",
        "canceling statement due to lock timeout",
        "database is locked",
        "database table is locked",
    ];
    matches!(code, "40001" | "40P01" | "55P03") || TEXTS.iter().any(|text| code.starts_with(text))
}

/// An error and what caused it.
pub(super) fn in_a_line(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let causes = std::iter::successors(error.source(), |cause| (**cause).source());
    for cause in causes.map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}
