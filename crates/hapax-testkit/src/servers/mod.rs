//! Real servers, private to a test: each has its own directory and port, and ends with the test.
//!
//! No existing service is used or disturbed. A server ends when its handle is dropped, and also
//! when the test process ends in any way. If a server is not installed, that is reported as
//! `SKIPPED`, and the test returns early:
//!
//! ```no_run
//! use hapax_testkit::servers::Postgres;
//!
//! let Some(postgres) = Postgres::shared() else { return };
//! let url = postgres.database();
//! assert_eq!(postgres.psql("postgres", "SELECT 1"), "1");
//! # drop(url);
//! ```
//!
//! [`Postgres`] has standbys to fail over to. [`Redis`], or Valkey, is one server; with replicas
//! and sentinels it is a [`RedisSentinel`], and with its keys on many nodes a [`RedisCluster`].
//! [`Nats`] is a server with JetStream, [`Kafka`] one of Apache Kafka, and [`RabbitMq`] one of
//! RabbitMQ.
//! [`PgBouncer`], [`HaProxy`] and [`FaultProxy`] stand in front of a server, and [`faketime`] gives
//! one another clock.

mod directory;
mod faketime;
mod faults;
mod haproxy;
mod kafka;
mod nats;
mod pgbouncer;
mod port;
mod postgres;
mod process;
mod programs;
mod rabbitmq;
mod redis;
mod standby;
mod template;

pub use faketime::{faketime, faketime_file};
pub use faults::FaultProxy;
pub use haproxy::HaProxy;
pub use kafka::Kafka;
#[cfg(feature = "harness")]
pub use kafka::SecuredKafka;
pub use nats::Nats;
pub use pgbouncer::PgBouncer;
pub use port::Port;
pub use postgres::Postgres;
pub use rabbitmq::RabbitMq;
#[cfg(feature = "harness")]
pub use redis::SecuredRedis;
pub use redis::{Redis, RedisCluster, RedisProgram, RedisSentinel};
