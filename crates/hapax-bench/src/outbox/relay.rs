//! How fast the relay publishes a backlog: to nowhere, and to NATS against its bare client.

use std::time::{Duration, Instant};

use async_nats::header::{HeaderMap, NATS_MESSAGE_ID};
use async_nats::jetstream::stream::{Config, StorageType};
use async_nats::jetstream::{self, Context};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use hapax_flow::publish::{Nats, NatsOptions, Null};
use hapax_testkit::servers;
use uuid::Uuid;

use crate::Error;
use crate::postgres::Cluster;
use crate::report::{Table, at_least, number};
use crate::stats::Rounds;

use super::Scale;
use super::backlog::{PAYLOAD_BYTES, drain, fill};

const NULL_MIN: f64 = 40_000.0;
const NATS_MIN: f64 = 0.5;
const STREAM: &str = "ORDERS";
/// Messages of the bare client that wait for their acknowledgement at a time: as many as of the
/// relay.
const IN_FLIGHT: usize = 256;

pub(super) async fn run(cluster: &Cluster, scale: Scale) -> Result<(), Error> {
    let Scale {
        messages, rounds, ..
    } = scale;
    let title = format!(
        "outbox: {messages} messages of {PAYLOAD_BYTES} bytes wait and are published; medians of {rounds} interleaved rounds"
    );
    let url = cluster.migrated().await?;
    let nats = servers::Nats::start("");
    let [mut null, mut relayed, mut bare] = [(); 3].map(|()| Rounds::default());
    for round in 1..=rounds {
        eprintln!("  relay: round {round} of {rounds}");
        fill(&url, messages).await?;
        null.rates
            .push(rate(messages, drain(&url, Null, messages).await?));
        let Some(nats) = &nats else {
            continue;
        };
        let context = jetstream::new(async_nats::connect(nats.url()).await?);
        fill(&url, messages).await?;
        make_stream(&context).await?;
        let publisher = Nats::new(NatsOptions::new([nats.url()]))?;
        relayed
            .rates
            .push(rate(messages, drain(&url, publisher, messages).await?));
        check_stream(&context, messages).await?;
        make_stream(&context).await?;
        bare.rates
            .push(rate(messages, publish(&context, messages).await?));
        check_stream(&context, messages).await?;
    }
    let mut table = Table::new(&title, &["", "per second", "of the bare client"]);
    table.row("relay to null:", [number(null.rate())]);
    if nats.is_some() {
        let ratio = relayed.against(&bare);
        table.row(
            "bare NATS client, with acknowledgements",
            [number(bare.rate())],
        );
        table.row("relay to NATS", [number(relayed.rate()), number(ratio)]);
    }
    table.print();
    at_least("relay to null:", null.rate(), NULL_MIN, "/s");
    if nats.is_some() {
        let ratio = relayed.against(&bare);
        at_least("relay to NATS, of its bare client", ratio, NATS_MIN, "");
    }
    Ok(())
}

fn rate(messages: usize, took: Duration) -> f64 {
    messages as f64 / took.as_secs_f64()
}

/// A new stream, in files as by default.
async fn make_stream(context: &Context) -> Result<(), Error> {
    // The first time there is none.
    drop(context.delete_stream(STREAM).await);
    let config = Config {
        name: STREAM.to_owned(),
        subjects: vec!["orders".to_owned()],
        storage: StorageType::File,
        ..Config::default()
    };
    context.create_stream(config).await?;
    Ok(())
}

/// Fails if the stream does not have each message once.
async fn check_stream(context: &Context, messages: usize) -> Result<(), Error> {
    let stream = context.get_stream(STREAM).await?;
    let stored = stream.cached_info().state.messages;
    if stored != messages as u64 {
        return Err(format!("the stream has {stored} messages of {messages}").into());
    }
    Ok(())
}

/// Publishes the same messages as the relay by the client alone.
async fn publish(context: &Context, messages: usize) -> Result<Duration, Error> {
    let payload = Bytes::from(vec![b'x'; PAYLOAD_BYTES]);
    let began = Instant::now();
    let sent = stream::iter(0..messages).map(|number| {
        let (headers, payload) = (headers(number), payload.clone());
        async move {
            let acknowledged = context.publish_with_headers("orders", headers, payload);
            acknowledged.await?.await?;
            Ok::<_, Error>(())
        }
    });
    let mut sent = sent.buffer_unordered(IN_FLIGHT);
    while sent.try_next().await?.is_some() {}
    Ok(began.elapsed())
}

/// The headers that the relay sends.
fn headers(number: usize) -> HeaderMap {
    let id = Uuid::new_v4().to_string();
    let key = format!("order-{}", number % 10_007);
    let mut headers = HeaderMap::new();
    headers.insert(NATS_MESSAGE_ID, id.as_str());
    headers.insert("Hapax-Key", key.as_str());
    headers.insert("content-type", "application/json");
    headers.insert("ce-specversion", "1.0");
    headers.insert("ce-id", id.as_str());
    headers.insert("ce-source", "/hapax");
    headers.insert("ce-type", "order.placed");
    headers.insert("ce-time", "2026-11-19T17:48:38.123456Z");
    headers.insert("ce-subject", key.as_str());
    headers.insert("ce-partitionkey", key.as_str());
    headers
}
