//! The snippets of the docs that use this crate, compiled. `crates/hapax/tests/snippets.rs` compares
//! them with the pages.

#![allow(
    dead_code,
    unused_variables,
    reason = "the snippets are compiled, not run"
)]

use std::time::Duration;

use hapax::outbox::Message;
use hapax::{Hapax, Key, Operation};
use hapax_flow::consume::{
    KafkaPipe, KafkaPipeOptions, KafkaServers, KafkaSource, KafkaSourceOptions, NatsSource,
    NatsSourceOptions, RabbitId, RabbitServers, RabbitSourceOptions, RabbitTime,
    RedisStreamOptions, RedisStreamSource, Source,
};
use serde::Deserialize;
use sqlx::{PgPool, Postgres, Transaction};
use tokio_util::sync::CancellationToken;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Deserialize)]
struct Order {
    item: String,
    count: i32,
}

#[rustfmt::skip]
async fn in_a_database(source: impl Source, pool: PgPool, stop: CancellationToken) -> Result<(), BoxError> {
    use hapax_flow::consume::{Consumer, Received};

    let consumer = Consumer::new("inventory").source(source).database(pool).handle(
        async |batch: &[Received], tx: &mut Transaction<'static, Postgres>| {
            for message in batch {
                let order: Order = message.json()?;
                sqlx::query("UPDATE stock SET left = left - $1 WHERE item = $2")
                    .bind(order.count).bind(&order.item).execute(&mut **tx).await?;
                message.emit(tx, "reserved", Message::new("stock", order.item, "{}").json()).await?;
            }
            Ok(())
        },
    );
    consumer.run(stop).await?;
    Ok(())
}

use hapax_flow::consume::{Consumer, Received};

#[derive(Clone)]
struct Mailer;

impl Mailer {
    async fn send(&self, message: &Received, key: Key) -> Result<(), BoxError> {
        Ok(())
    }
}

#[rustfmt::skip]
fn outside_the_database(source: impl Source, hapax: &Hapax, mailer: Mailer) {
    let consumer = Consumer::new("mail").source(source).once(hapax.once("order-mail")).handle(
        move |message: Received, operation: Operation| {
            let mailer = mailer.clone();
            async move { mailer.send(&message, operation.derive("mail")).await }
        },
    );
}

#[rustfmt::skip]
fn from_nats() -> Result<(), BoxError> {
    let mut options = NatsSourceOptions::new(["nats://nats.internal"], "SHOP", "inventory");
    options.subjects = vec!["orders".into()];
    let consumer = Consumer::new("inventory").source(NatsSource::new(options)?);
    Ok(())
}

#[rustfmt::skip]
fn from_redis() -> Result<(), BoxError> {
    let mut options = RedisStreamOptions::new("redis://redis.internal", "orders", "inventory");
    options.idle = Duration::from_secs(60);
    let consumer = Consumer::new("inventory").source(RedisStreamSource::new(options)?);
    Ok(())
}

#[rustfmt::skip]
fn from_kafka() -> Result<(), BoxError> {
    let servers = KafkaServers::new(["k1:9092", "k2:9092"]);
    let source = KafkaSource::new(KafkaSourceOptions::new(servers, "inventory", ["shop.orders"]))?;
    Ok(())
}

#[rustfmt::skip]
fn from_rabbitmq() {
    let mut options = RabbitSourceOptions::new(RabbitServers::new(["amqp://shop:word@rabbit.internal/shop"]), "orders");
    options.id = RabbitId::MessageId;          // of a producer that sends no CloudEvents; or Header("x-order-id")
    options.time = RabbitTime::Timestamp;      // the property, if the producer writes it
}

#[rustfmt::skip]
async fn from_kafka_to_kafka(stop: CancellationToken) -> Result<(), BoxError> {
    let servers = KafkaServers::new(["k1:9092", "k2:9092"]);
    let pipe = KafkaPipe::new(KafkaPipeOptions::new(servers, "shipping", ["orders"]))?;
    pipe.run(stop, async |order: Received| {
        let key = order.key.clone().ok_or("an order without a key")?;
        let shipment = Message::new("shipments", key, order.payload.clone());
        Ok::<_, BoxError>(vec![order.causes("shipped", shipment)])
    }).await;
    Ok(())
}
