//! Sources of messages, a file for each broker.

pub(super) mod kafka;
mod nats;
mod rabbitmq;
mod redis;

pub use self::kafka::{KafkaSource, KafkaSourceOptions, KafkaTag};
pub use self::nats::{NatsId, NatsSource, NatsSourceOptions, NatsTag};
pub use self::rabbitmq::{RabbitId, RabbitSource, RabbitSourceOptions, RabbitTag, RabbitTime};
pub use self::redis::{RedisId, RedisStreamOptions, RedisStreamSource, RedisTag};
pub use crate::kafka::{KafkaCredentials, KafkaError, KafkaServers, KafkaTls};
pub use crate::nats::{NatsCredentials, NatsError, NatsServers};
pub use crate::rabbitmq::{RabbitError, RabbitServers};
pub use crate::redis::{RedisError, RedisServer};
