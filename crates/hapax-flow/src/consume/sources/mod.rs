//! Sources of messages, a file for each broker.

mod nats;
mod redis;

pub use self::nats::{NatsId, NatsSource, NatsSourceOptions, NatsTag};
pub use self::redis::{RedisId, RedisStreamOptions, RedisStreamSource, RedisTag};
