//! Why a message was not emitted.

use hapax_core::flow::EnvelopeError;

use crate::join::Session;

/// Why a message was not emitted. Except for [`Invalid`](EmitError::Invalid) and
/// [`NoTransaction`](EmitError::NoTransaction), which send nothing to the database, the transaction
/// can only be rolled back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmitError<E: std::error::Error + 'static> {
    /// The message is over a limit, or malformed.
    #[error(transparent)]
    Invalid(EnvelopeError),
    /// No transaction is open, so the message could not commit together with its effect.
    #[error("no transaction is open on this connection: begin one before the effect")]
    NoTransaction,
    /// The transaction emits messages of too many ordered keys.
    #[error(
        "a transaction may emit messages of {max} ordered keys, because each is locked until it ends: use several transactions, or unordered messages",
        max = hapax_core::flow::limits::ORDERED_KEYS_MAX
    )]
    TooManyKeys(#[source] E),
    /// The database has no outbox.
    #[error(
        "the database has no outbox: run `hapax migrate`, or open the SQLite file once with this version of Hapax"
    )]
    NoOutbox(#[source] E),
    /// The role may not emit.
    #[error("this role may not emit messages: run `hapax migrate --emitter ROLE`")]
    NotAllowed(#[source] E),
    /// The driver failed. After a deadlock or a serialization failure, run the transaction again.
    #[error("the message was not emitted: {0}")]
    Driver(#[source] E),
}

impl<E: std::error::Error + 'static> EmitError<E> {
    pub(super) fn of<S: Session<Error = E>>(error: E) -> Self {
        let code = S::code(&error).unwrap_or_default();
        let has = |codes: &[&str]| codes.iter().any(|known| code.starts_with(known));
        // A driver that does not tell codes tells the message.
        if has(&["HX011", "a transaction may emit messages of"]) {
            EmitError::TooManyKeys(error)
        } else if has(&[
            "42883",
            "3F000",
            "function hapax.",
            "schema \"hapax\" does not exist",
            "no such table: hapax_outbox",
        ]) {
            EmitError::NoOutbox(error)
        } else if has(&["42501", "permission denied for"]) {
            EmitError::NotAllowed(error)
        } else {
            EmitError::Driver(error)
        }
    }
}
