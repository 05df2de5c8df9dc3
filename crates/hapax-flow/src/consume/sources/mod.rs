//! Sources of messages, a file for each broker.

mod nats;

pub use nats::{NatsId, NatsSource, NatsSourceOptions, NatsTag};
