//! Destinations of messages.
//!
//! A destination is a [`Publisher`]. It must pass the suite in `tests/publishers/`.

mod chains;
pub mod cloud_events;
mod kafka;
mod nats;
mod null;
mod rabbitmq;
mod redis;
mod stdout;
mod template;
pub mod webhook;

use std::pin::Pin;

pub use self::redis::{RedisOptions, RedisStreams, RedisTrim};
pub use crate::kafka::{KafkaCredentials, KafkaError, KafkaServers, KafkaTls};
pub use crate::nats::{NatsCredentials, NatsError, NatsServers};
pub use crate::rabbitmq::{RabbitError, RabbitServers};
pub use crate::redis::{RedisError, RedisServer};
pub use hapax_core::flow::{Envelope, Outage, Verdict};
pub(crate) use kafka::entry_of;
pub use kafka::{Kafka, KafkaOptions};
pub use nats::{Nats, NatsOptions};
pub use null::Null;
pub use rabbitmq::{RabbitMq, RabbitOptions};
pub use stdout::Stdout;
pub use webhook::Webhook;

/// A future that a [`Publisher`] returns.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Sends messages to one destination.
pub trait Publisher: Send + Sync + 'static {
    /// Sends a batch and says what became of each message, in the order of the batch.
    ///
    /// Messages with the same [`ordered_key`](Envelope::ordered_key) are sent one after the other:
    /// the next only when the one before is accepted. If one is not accepted, the later ones of its
    /// key are not sent, and are [`NotSent`](Verdict::NotSent). Messages of different keys may be
    /// sent in any order and at the same time.
    ///
    /// The call ends by itself: the publisher has a time limit for each message.
    ///
    /// It may be called again before an earlier call has ended; the relay never has one ordered key
    /// in two calls at a time. A call that is dropped may have sent any part of the batch.
    ///
    /// # Errors
    ///
    /// [`Outage`] if the destination as a whole cannot be reached or used now. Any message of the
    /// batch may have arrived; the relay repeats the whole batch later.
    fn publish<'a>(&'a self, batch: &'a [Envelope]) -> Reply<'a, Result<Vec<Verdict>, Outage>>;

    /// Takes the place of whoever publishes for this reader, if it does not have it: from then on
    /// the destination takes nothing from them, if it can keep a relay out that was paused. A relay
    /// calls it before it makes sure that it still has the reader: at the start, and after each
    /// outage. Without it a publisher takes no part in this.
    ///
    /// # Errors
    ///
    /// [`Outage`] if the destination cannot be reached. Then publishing fails too.
    fn take_place<'a>(&'a self, _reader: &'a str) -> Reply<'a, Result<(), Outage>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// The most messages that are worth sending in one call. A destination that takes messages one
    /// by one has a small number, so that a call to one that hangs soon ends.
    fn batch_max(&self) -> usize {
        1000
    }
}
