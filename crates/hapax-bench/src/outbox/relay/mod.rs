//! How fast the relay publishes a backlog: to nowhere, and to each broker against its bare client.

mod kafka;
mod nats;
mod rabbitmq;
mod redis;

use std::time::{Duration, Instant};

use hapax_flow::publish::{Null, Publisher};

use crate::Error;
use crate::postgres::Cluster;
use crate::report::{Table, at_least, number};
use crate::stats::Rounds;

use super::Scale;
use super::backlog::{PAYLOAD_BYTES, drain, fill};

const NULL_MIN: f64 = 40_000.0;
const BARE_MIN: f64 = 0.5;

/// A broker of its own for these measurements.
trait Broker: Sized {
    const NAME: &'static str;
    /// What the bare client does.
    const BARE: &'static str;
    type Publisher: Publisher;

    /// Starts it. `None`: it is not installed.
    async fn start() -> Result<Option<Self>, Error>;

    /// Removes all messages.
    async fn clear(&mut self) -> Result<(), Error>;

    /// The number of messages that are there.
    async fn count(&mut self) -> Result<usize, Error>;

    fn publisher(&self) -> Result<Self::Publisher, Error>;

    /// Publishes as many messages as a relay that look the same, by the client alone.
    async fn publish(&mut self, messages: usize) -> Result<(), Error>;
}

pub(super) async fn run(cluster: &Cluster, scale: Scale) -> Result<(), Error> {
    let Scale {
        messages, rounds, ..
    } = scale;
    let title = format!(
        "outbox: {messages} messages of {PAYLOAD_BYTES} bytes wait and are published; medians of {rounds} interleaved rounds"
    );
    let url = cluster.migrated().await?;
    let mut null = Rounds::default();
    for round in 1..=rounds {
        eprintln!("  relay to null: round {round} of {rounds}");
        fill(&url, messages).await?;
        null.rates
            .push(rate(messages, drain(&url, Null, messages).await?));
    }
    let measured = [
        measure::<nats::Nats>(&url, scale).await?,
        measure::<kafka::Kafka>(&url, scale).await?,
        measure::<rabbitmq::RabbitMq>(&url, scale).await?,
        measure::<redis::Redis>(&url, scale).await?,
    ];
    let measured: Vec<Measured> = measured.into_iter().flatten().collect();
    let mut table = Table::new(&title, &["", "per second", "of the bare client"]);
    table.row("relay to null:", [number(null.rate())]);
    for broker in &measured {
        table.row(&broker.client, [number(broker.bare.rate())]);
        let relay = format!("relay to {}", broker.name);
        let numbers = [number(broker.relayed.rate()), number(broker.ratio())];
        table.row(&relay, numbers);
    }
    table.print();
    at_least("relay to null:", null.rate(), NULL_MIN, "/s");
    for broker in &measured {
        let what = format!("relay to {}, of its bare client", broker.name);
        at_least(&what, broker.ratio(), BARE_MIN, "");
    }
    Ok(())
}

/// The rates of the relay and of the bare client.
struct Measured {
    name: &'static str,
    client: String,
    relayed: Rounds,
    bare: Rounds,
}

impl Measured {
    fn ratio(&self) -> f64 {
        self.relayed.against(&self.bare)
    }
}

/// The relay and the bare client in turns.
async fn measure<B: Broker>(url: &str, scale: Scale) -> Result<Option<Measured>, Error> {
    let Scale {
        messages, rounds, ..
    } = scale;
    let Some(mut broker) = B::start().await? else {
        return Ok(None);
    };
    let mut measured = Measured {
        name: B::NAME,
        client: format!("bare {} client, {}", B::NAME, B::BARE),
        relayed: Rounds::default(),
        bare: Rounds::default(),
    };
    for round in 1..=rounds {
        eprintln!("  relay to {}: round {round} of {rounds}", B::NAME);
        fill(url, messages).await?;
        broker.clear().await?;
        let took = drain(url, broker.publisher()?, messages).await?;
        measured.relayed.rates.push(rate(messages, took));
        check(&mut broker, messages).await?;
        broker.clear().await?;
        let began = Instant::now();
        broker.publish(messages).await?;
        measured.bare.rates.push(rate(messages, began.elapsed()));
        check(&mut broker, messages).await?;
    }
    Ok(Some(measured))
}

fn rate(messages: usize, took: Duration) -> f64 {
    messages as f64 / took.as_secs_f64()
}

/// Fails if the broker does not have each message once.
async fn check<B: Broker>(broker: &mut B, messages: usize) -> Result<(), Error> {
    let stored = broker.count().await?;
    if stored != messages {
        return Err(format!("{} has {stored} messages of {messages}", B::NAME).into());
    }
    Ok(())
}

/// The payload, as the relay sends it.
fn payload() -> Vec<u8> {
    vec![b'x'; PAYLOAD_BYTES]
}

fn key(number: usize) -> String {
    format!("order-{}", number % 10_007)
}

/// The attributes of a CloudEvent as the relay sends them, with a prefix before their names.
fn attributes(prefix: &str, id: &str, key: &str) -> Vec<(String, String)> {
    let attributes = [
        ("specversion", "1.0"),
        ("id", id),
        ("source", "/hapax"),
        ("type", "order.placed"),
        ("time", "2026-11-19T17:48:38.123456Z"),
        ("subject", key),
        ("partitionkey", key),
    ];
    let attributes = attributes.map(|(name, value)| (format!("{prefix}{name}"), value.to_owned()));
    attributes.into()
}
