//! Emitting messages in the transaction of their effect: a message exists if and only if that
//! transaction commits.
//!
//! An operation emits with [`Operation::emit`], so that a repeat of the operation emits the same
//! message. Other code calls [`emit`].
//!
//! ```no_run
//! # #[cfg(feature = "sqlx-0_9-postgres")] mod example {
//! use hapax::outbox::{Message, emit};
//!
//! async fn ship(pool: &sqlx::PgPool, order: &str) -> Result<(), Box<dyn std::error::Error>> {
//!     let mut tx = pool.begin().await?;
//!     sqlx::query("UPDATE orders SET shipped = true WHERE id = $1").bind(order).execute(&mut *tx).await?;
//!     emit(&mut tx, Message::new("orders", order, r#"{"shipped":true}"#).json()).await?;
//!     tx.commit().await?;
//!     Ok(())
//! }
//! # }
//! ```
//!
//! Customised, by an operation:
//!
//! ```no_run
//! # use hapax::outbox::{EmitError, Message};
//! # async fn example<S: hapax::join::Session>(op: hapax::Operation, mut tx: S) -> Result<(), EmitError<S::Error>> {
//! let message = Message::new("orders", "order-17", r#"{"total":"12.00"}"#)
//!     .json()
//!     .step("placed")
//!     .version(1)
//!     .header("ce-type", "com.example.order.placed");
//! op.emit(&mut tx, message).await?;
//! # Ok(()) }
//! ```
//!
//! Messages of one topic and key are published in the order in which their transactions commit. So
//! an emit locks its key until the transaction ends: emit last. Two transactions that emit for the
//! keys A, B and B, A one by one wait for each other, and the database ends one of them with a
//! deadlock error; [`emit_all`] locks the keys in one order. A message that needs no order is
//! [`unordered`](Message::unordered).
//!
//! The relay publishes what was emitted: `hapax relay`, or the crate `hapax-flow`.

mod error;
mod message;
mod statement;

pub use error::EmitError;
pub use hapax_core::flow::MessageId;
pub use message::Message;

use hapax_core::flow::headers;

use crate::join::Session;
use crate::once::{Operation, Trace};

/// Emits a message in this session's transaction, and returns its id.
///
/// # Errors
///
/// See [`EmitError`]. After an error of the database the transaction can only be rolled back.
pub async fn emit<S: Session>(
    session: &mut S,
    message: Message,
) -> Result<MessageId, EmitError<S::Error>> {
    let id = message.own_id().unwrap_or_else(new_id);
    write(session, &message, id).await?;
    Ok(id)
}

/// Emits messages in this session's transaction, and returns their ids in the same order. Their
/// keys are locked in one order, so that two such calls never wait for each other in a circle.
///
/// # Errors
///
/// As [`emit`].
pub async fn emit_all<S: Session>(
    session: &mut S,
    messages: impl IntoIterator<Item = Message>,
) -> Result<Vec<MessageId>, EmitError<S::Error>> {
    let messages = messages
        .into_iter()
        .map(|message| (message.own_id().unwrap_or_else(new_id), message));
    write_all(session, messages.collect()).await
}

impl Operation {
    /// Emits a message in this session's transaction, and returns its id.
    ///
    /// The id is made of the operation and the [step](Message::step), so an operation that runs
    /// again emits the same message again. The message carries the id of the request, and the trace
    /// that it belongs to.
    ///
    /// The transaction must be the one that this operation [finishes](Operation::finish) in:
    /// otherwise an attempt that lost its fence may still emit.
    ///
    /// # Errors
    ///
    /// As [`emit`].
    pub async fn emit<S: Session>(
        &self,
        session: &mut S,
        message: Message,
    ) -> Result<MessageId, EmitError<S::Error>> {
        let (id, message) = self.identify(message);
        write(session, &message, id).await?;
        Ok(id)
    }

    /// [`emit_all`] for an operation.
    ///
    /// # Errors
    ///
    /// As [`emit`].
    pub async fn emit_all<S: Session>(
        &self,
        session: &mut S,
        messages: impl IntoIterator<Item = Message>,
    ) -> Result<Vec<MessageId>, EmitError<S::Error>> {
        let messages = messages.into_iter().map(|message| self.identify(message));
        write_all(session, messages.collect()).await
    }

    /// [`emit`](Operation::emit) for blocking drivers, such as rusqlite. Call it inside
    /// `tokio::task::spawn_blocking`.
    ///
    /// # Errors
    ///
    /// As [`emit`].
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime, and on one of its worker threads.
    pub fn emit_blocking<S: Session>(
        &self,
        session: &mut S,
        message: Message,
    ) -> Result<MessageId, EmitError<S::Error>> {
        tokio::runtime::Handle::current().block_on(self.emit(session, message))
    }

    /// The message with what the operation adds to it, and its id. A message without a step gets its
    /// number among those of this attempt as its step.
    fn identify(&self, message: Message) -> (MessageId, Message) {
        self.begin_step();
        // Counted with a name too, as `hapax.emit` does.
        let number = format!("#{}", self.next_message());
        let id = message.own_id().unwrap_or_else(|| {
            MessageId::of(self.of_this_life(), message.own_step().unwrap_or(&number))
        });
        let request_id = self.request_id().map(|id| id.as_str());
        let message = message.default_header(headers::CORRELATION_ID, request_id);
        (id, in_trace(message, self.trace()))
    }
}

/// The message with the trace of the request, unless it names one of its own.
fn in_trace(message: Message, trace: Option<&Trace>) -> Message {
    match trace {
        Some(trace) if !message.has_header(headers::TRACEPARENT) => message
            .default_header(headers::TRACEPARENT, Some(&*trace.parent))
            .default_header(headers::TRACESTATE, trace.state.as_deref()),
        _ => message,
    }
}

async fn write_all<S: Session>(
    session: &mut S,
    messages: Vec<(MessageId, Message)>,
) -> Result<Vec<MessageId>, EmitError<S::Error>> {
    let ids = messages.iter().map(|(id, _)| *id).collect();
    let mut sorted: Vec<_> = messages.iter().collect();
    // Stable: messages of one key stay in their order.
    sorted.sort_by(|(_, one), (_, other)| one.ordered_key().cmp(&other.ordered_key()));
    for (id, message) in sorted {
        write(session, message, *id).await?;
    }
    Ok(ids)
}

/// An id that nothing else has.
fn new_id() -> MessageId {
    MessageId::from_bytes(uuid::Uuid::now_v7().into_bytes())
}

async fn write<S: Session>(
    session: &mut S,
    message: &Message,
    id: MessageId,
) -> Result<(), EmitError<S::Error>> {
    message.check().map_err(EmitError::Invalid)?;
    if session.depth() == Some(0) {
        return Err(EmitError::NoTransaction);
    }
    let statement = statement::insert(session.dialect(), message, id);
    match session.run(&statement).await {
        Ok(_) => Ok(()),
        Err(error) => Err(EmitError::of::<S>(error)),
    }
}
