//! Receiving messages in the transaction of their effect: each message has its effect once, however
//! often and in whatever order it is delivered.
//!
//! A receipt is one row that commits together with the effect. A duplicate finds it; one that comes
//! while the first is still under way waits for that transaction to end.
//!
//! ```no_run
//! # #[cfg(feature = "sqlx-0_9-postgres")] mod example {
//! use hapax::core::Timestamp;
//! use hapax::inbox::{Receipt, receive};
//!
//! async fn handle(pool: &sqlx::PgPool, id: &str, at: Timestamp, item: &str) -> Result<(), Box<dyn std::error::Error>> {
//!     let mut tx = pool.begin().await?;
//!     if receive(&mut tx, "inventory", id, Some(at)).await? == Receipt::New {
//!         sqlx::query("UPDATE stock SET reserved = reserved + 1 WHERE item = $1").bind(item).execute(&mut *tx).await?;
//!     }
//!     tx.commit().await?;
//!     // Only now is the message acknowledged.
//!     Ok(())
//! }
//! # }
//! ```
//!
//! Customised, a batch whose messages carry versions of entities:
//!
//! ```no_run
//! # use hapax::inbox::{Gaps, ReceiveError, Received, Receipt, receive_all};
//! # async fn example<S: hapax::join::Session>(mut tx: S) -> Result<(), ReceiveError<S::Error>> {
//! let batch = [
//!     Received { id: "m-1", at: None, entity: Some(("order-17", 1)) },
//!     Received { id: "m-2", at: None, entity: Some(("order-17", 2)) },
//! ];
//! let receipts = receive_all(&mut tx, "inventory", &batch, Gaps::Park).await?;
//! # assert_eq!(receipts, [Receipt::New; 2]);
//! # Ok(()) }
//! ```
//!
//! Four rules:
//!
//! - The id is the producer's: never a delivery tag or an offset, which another delivery changes.
//! - The time is the producer's too, and the same in each delivery. A consumer that passes the
//!   time of some messages passes it for each delivery of them. Without a time, a receipt is looked
//!   for everywhere, which is slower, and a message that is delivered again after its receipt is
//!   gone is applied again.
//! - The consumer's [`Window`] is longer than the broker keeps messages. An older message is
//!   [`Receipt::TooOld`]: [`park`] it.
//! - Receive first, then write the effect, then commit, then acknowledge.
//!
//! On Postgres the transaction is under READ COMMITTED. On SQLite begin it as IMMEDIATE.

mod error;
mod parked;
mod postgres;
mod sqlite;
mod statement;

pub use error::{InboxError, ReceiveError};
pub use hapax_core::flow::{Gaps, Receipt, Window};
pub use parked::{Cause, Parked, ToPark};

use hapax_core::flow::receipt::RECEIVED_ID_BYTES_MAX;
use hapax_core::store::Dialect;
use hapax_core::time::Timestamp;

use crate::join::Session;

/// A message that was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received<'a> {
    /// The id that its producer gave it.
    pub id: &'a str,
    /// The time that its producer gave it.
    pub at: Option<Timestamp>,
    /// The entity that it is about, and the version of that.
    pub entity: Option<(&'a str, i64)>,
}

/// Receives a message in this session's transaction.
///
/// # Errors
///
/// See [`ReceiveError`]. After an error of the database the transaction can only be rolled back.
pub async fn receive<S: Session>(
    session: &mut S,
    consumer: &str,
    id: &str,
    at: Option<Timestamp>,
) -> Result<Receipt, ReceiveError<S::Error>> {
    check_consumer(consumer)?;
    check_id(id).map_err(ReceiveError::Invalid)?;
    in_transaction(session)?;
    match session.dialect() {
        Dialect::Postgres => postgres::receive(session, consumer, id, at).await,
        Dialect::Sqlite => {
            let batch = [Received {
                id,
                at,
                entity: None,
            }];
            let receipts = sqlite::receive_all(session, consumer, &batch, Gaps::Apply).await?;
            Ok(receipts[0])
        }
    }
}

/// Receives a batch in this session's transaction, and returns what becomes of each message, in
/// their order. A repeat within the batch is a duplicate.
///
/// Two batches never wait for each other in a circle, if each transaction receives one.
///
/// # Errors
///
/// As [`receive`]. An id that is not allowed ([`check_id`]) fails the whole batch. On Postgres the
/// batch fails with the code 55P03 if another transaction is receiving one of its messages for
/// longer than 100 ms: run it again, or in parts.
pub async fn receive_all<S: Session>(
    session: &mut S,
    consumer: &str,
    batch: &[Received<'_>],
    gaps: Gaps,
) -> Result<Vec<Receipt>, ReceiveError<S::Error>> {
    check_consumer(consumer)?;
    for message in batch {
        check_id(message.id).map_err(ReceiveError::Invalid)?;
    }
    in_transaction(session)?;
    if batch.is_empty() {
        return Ok(Vec::new());
    }
    match session.dialect() {
        Dialect::Postgres => postgres::receive_all(session, consumer, batch, gaps).await,
        Dialect::Sqlite => sqlite::receive_all(session, consumer, batch, gaps).await,
    }
}

/// Registers a consumer, or changes its window. One that was never registered gets a window of 14
/// days with its first message.
///
/// A change from or to [`Window::Forever`] moves the consumer's receipts, and waits for everybody
/// who is receiving.
///
/// # Errors
///
/// As [`receive`].
pub async fn set_window<S: Session>(
    session: &mut S,
    consumer: &str,
    window: Window,
) -> Result<(), ReceiveError<S::Error>> {
    check_consumer(consumer)?;
    if !window.is_valid() {
        return Err(ReceiveError::Invalid(InboxError::Window));
    }
    match session.dialect() {
        Dialect::Postgres => postgres::set_window(session, consumer, window).await,
        Dialect::Sqlite => sqlite::set_window(session, consumer, window).await,
    }
}

/// Removes receipts that are over for every window, and returns how many tables (Postgres) or rows
/// (SQLite, up to 10,000 at once) were emptied. Call it every few minutes. `now` is the caller's clock: where that of a
/// Postgres is far ahead of it, nothing is removed.
///
/// # Errors
///
/// As [`receive`].
pub async fn sweep<S: Session>(
    session: &mut S,
    now: Timestamp,
) -> Result<u64, ReceiveError<S::Error>> {
    match session.dialect() {
        Dialect::Postgres => postgres::sweep(session, now).await,
        Dialect::Sqlite => sqlite::sweep(session, now).await,
    }
}

/// Counts an attempt at a message that failed, and returns how many there were. Commit it before
/// the message is tried again, in a transaction without the effect.
///
/// # Errors
///
/// As [`receive`].
pub async fn failed<S: Session>(
    session: &mut S,
    consumer: &str,
    id: &str,
    reason: &str,
) -> Result<u32, ReceiveError<S::Error>> {
    check_consumer(consumer)?;
    check_id(id).map_err(ReceiveError::Invalid)?;
    match session.dialect() {
        Dialect::Postgres => postgres::failed(session, consumer, id, reason).await,
        Dialect::Sqlite => sqlite::failed(session, consumer, id, reason).await,
    }
}

/// Forgets the failures of a message that is applied after all, in the transaction of its effect.
/// Returns whether there were any. A message that is parked stays parked.
///
/// # Errors
///
/// As [`receive`].
pub async fn recovered<S: Session>(
    session: &mut S,
    consumer: &str,
    id: &str,
) -> Result<bool, ReceiveError<S::Error>> {
    check_consumer(consumer)?;
    check_id(id).map_err(ReceiveError::Invalid)?;
    match session.dialect() {
        Dialect::Postgres => postgres::recovered(session, consumer, id).await,
        Dialect::Sqlite => sqlite::recovered(session, consumer, id).await,
    }
}

/// Parks a message, to be acknowledged after the commit. Returns whether it did: not if it is
/// parked already. A [gap](Cause::Gap) that has closed meanwhile is tried again at once.
///
/// # Errors
///
/// As [`receive`].
pub async fn park<S: Session>(
    session: &mut S,
    consumer: &str,
    message: &ToPark<'_>,
) -> Result<bool, ReceiveError<S::Error>> {
    check_consumer(consumer)?;
    match message.id {
        None if message.cause == Cause::NoId => {}
        id => check_id(id.unwrap_or_default()).map_err(ReceiveError::Invalid)?,
    }
    match session.dialect() {
        Dialect::Postgres => postgres::park(session, consumer, message).await,
        Dialect::Sqlite => sqlite::park(session, consumer, message).await,
    }
}

/// Parks a message again that was [taken](take_parked) and failed. Returns whether it did.
///
/// # Errors
///
/// As [`receive`].
pub async fn park_again<S: Session>(
    session: &mut S,
    consumer: &str,
    id: &str,
    reason: &str,
) -> Result<bool, ReceiveError<S::Error>> {
    check_consumer(consumer)?;
    check_id(id).map_err(ReceiveError::Invalid)?;
    match session.dialect() {
        Dialect::Postgres => postgres::park_again(session, consumer, id, reason).await,
        Dialect::Sqlite => sqlite::park_again(session, consumer, id, reason).await,
    }
}

/// Takes the next parked message that is to be tried again, until the session's transaction ends.
/// No other session gets it meanwhile. Apply it and call [`parked_done`] in the same transaction;
/// after a rollback, count the failure with [`failed`], and [`park_again`] after too many.
///
/// # Errors
///
/// As [`receive`].
pub async fn take_parked<S: Session>(
    session: &mut S,
    consumer: &str,
) -> Result<Option<Parked>, ReceiveError<S::Error>> {
    check_consumer(consumer)?;
    in_transaction(session)?;
    match session.dialect() {
        Dialect::Postgres => postgres::take_parked(session, consumer).await,
        Dialect::Sqlite => sqlite::take_parked(session, consumer).await,
    }
}

/// Receives a parked message in the transaction of its effect: it is no longer parked, and its
/// receipt is written, whatever its age is. `true`: apply it and commit. `false`: it was applied
/// already, or a later version of its entity was; commit, so that it is no longer parked.
///
/// # Errors
///
/// As [`receive`], and [`ReceiveError::TooOld`]. On Postgres it fails with the code 55P03 if another
/// transaction is receiving the message for longer than 100 ms.
pub async fn parked_done<S: Session>(
    session: &mut S,
    consumer: &str,
    id: &str,
) -> Result<bool, ReceiveError<S::Error>> {
    check_consumer(consumer)?;
    check_id(id).map_err(ReceiveError::Invalid)?;
    in_transaction(session)?;
    match session.dialect() {
        Dialect::Postgres => postgres::parked_done(session, consumer, id).await,
        Dialect::Sqlite => sqlite::parked_done(session, consumer, id).await,
    }
}

/// Checks the id of a message: it has 1 to 1024 bytes, and none of them is zero. A message with
/// another one counts as [without an id](Cause::NoId).
///
/// # Errors
///
/// [`InboxError::Id`].
pub fn check_id(id: &str) -> Result<(), InboxError> {
    if is_name(id) {
        Ok(())
    } else {
        Err(InboxError::Id)
    }
}

fn check_consumer<E: std::error::Error + 'static>(consumer: &str) -> Result<(), ReceiveError<E>> {
    if is_name(consumer) {
        Ok(())
    } else {
        Err(ReceiveError::Invalid(InboxError::Consumer))
    }
}

fn is_name(name: &str) -> bool {
    (1..=RECEIVED_ID_BYTES_MAX).contains(&name.len()) && !name.contains('\0')
}

fn in_transaction<S: Session>(session: &mut S) -> Result<(), ReceiveError<S::Error>> {
    match session.depth() {
        Some(0) => Err(ReceiveError::NoTransaction),
        _ => Ok(()),
    }
}
