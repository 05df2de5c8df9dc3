//! Why a message was not received.

use hapax_core::flow::receipt::RECEIVED_ID_BYTES_MAX;

use crate::join::Session;

/// Why a message was not received, or not parked. Except for [`Invalid`](ReceiveError::Invalid) and
/// [`NoTransaction`](ReceiveError::NoTransaction), which send nothing to the database, the
/// transaction can only be rolled back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError<E: std::error::Error + 'static> {
    /// A name or a window is not allowed.
    #[error(transparent)]
    Invalid(InboxError),
    /// No transaction is open, so the receipt could not commit together with the effect.
    #[error("no transaction is open on this connection: begin one before the message is received")]
    NoTransaction,
    /// A parked message is older than the receipts of its consumer by now, so nobody can tell
    /// whether it was applied. Roll back: the next one that takes it parks it again.
    #[error(
        "the message is older than the receipts of this consumer: roll back, and it is parked again"
    )]
    TooOld,
    /// The window of the consumer has just been changed from or to one without end: run the
    /// transaction again.
    #[error("the window of this consumer has just been changed: run the transaction again")]
    WindowChanged(#[source] E),
    /// The database has no inbox.
    #[error(
        "the database has no inbox: run `hapax migrate`, or open the SQLite file once with this version of Hapax"
    )]
    NoInbox(#[source] E),
    /// The role may not receive.
    #[error("this role may not receive messages: run `hapax migrate --receiver ROLE`")]
    NotAllowed(#[source] E),
    /// The database answered something that cannot be.
    #[error("the database answered nonsense: {0}")]
    Corrupt(&'static str),
    /// The driver failed. After a deadlock or a serialization failure, run the transaction again.
    #[error("the message was not received: {0}")]
    Driver(#[source] E),
}

/// What is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InboxError {
    /// The name of the consumer is empty, too long, or has a zero byte.
    #[error("the name of a consumer has 1 to {RECEIVED_ID_BYTES_MAX} bytes, none of them zero")]
    Consumer,
    /// The id is empty, too long, or has a zero byte.
    #[error("the id of a message has 1 to {RECEIVED_ID_BYTES_MAX} bytes, none of them zero")]
    Id,
    /// The window is too short or too long.
    #[error("a window is one hour to 39 days long, or without end")]
    Window,
}

impl<E: std::error::Error + 'static> ReceiveError<E> {
    pub(super) fn of<S: Session<Error = E>>(error: E) -> Self {
        let code = S::code(&error).unwrap_or_default();
        let has = |codes: &[&str]| codes.iter().any(|known| code.starts_with(known));
        // A driver that does not tell codes tells the message.
        if has(&["HX007", "the message is older than the receipts"]) {
            ReceiveError::TooOld
        } else if has(&["40001", "the window of this consumer has just been changed"])
            && error_says(&error, "the window of this consumer has just been changed")
        {
            ReceiveError::WindowChanged(error)
        } else if has(&[
            "42883",
            "42P01",
            "3F000",
            "function hapax.",
            "schema \"hapax\" does not exist",
            "no such table: hapax_",
        ]) {
            ReceiveError::NoInbox(error)
        } else if has(&["42501", "permission denied for"]) {
            ReceiveError::NotAllowed(error)
        } else {
            ReceiveError::Driver(error)
        }
    }
}

/// Whether the error, or a cause of it, says this. Drivers do not all print the message itself.
fn error_says(error: &(dyn std::error::Error + 'static), text: &str) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.to_string().contains(text) {
            return true;
        }
        cause = error.source();
    }
    false
}
