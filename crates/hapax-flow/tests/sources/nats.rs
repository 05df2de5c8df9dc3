//! NATS JetStream, with a real server.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::stream::Config;
use async_nats::jetstream::{self, Context};
use hapax_flow::consume::{NatsId, NatsSource, NatsSourceOptions, Retention, Source};
use hapax_flow::publish::{Envelope, Nats, NatsCredentials, NatsOptions, Publisher, Verdict};
use hapax_testkit::harness::Authority;
use hapax_testkit::servers::Nats as Server;

use super::broker::{Broker, Mortal};
use super::messages::{batch, message};
use super::storm::{ACK_TIME, Remote};

suite!(of all: start);
suite!(of mortal: start);
super::storm::storm!(
    Stream,
    start,
    "nats::a_storm_of_kills_and_repeats_has_each_effect_once"
);

/// Large enough for the largest message with its headers.
const LARGE: &str = "max_payload: 2MB";
/// The shortest that NATS allows: repeats are what is tested.
const DUPLICATE_WINDOW: Duration = Duration::from_millis(100);

/// A server with the stream `ORDERS` of the subject `orders`.
struct Stream(Server);

async fn start() -> Option<Stream> {
    with_stream(|_| {}).await
}

async fn with_stream(change: impl FnOnce(&mut Config)) -> Option<Stream> {
    let stream = Stream(Server::start(LARGE)?);
    let mut config = Config {
        name: "ORDERS".to_owned(),
        subjects: vec!["orders".to_owned()],
        duplicate_window: DUPLICATE_WINDOW,
        ..Config::default()
    };
    change(&mut config);
    stream.context().await.create_stream(config).await.unwrap();
    Some(stream)
}

fn options(url: &str, ack_time: Duration) -> NatsSourceOptions {
    let mut options = NatsSourceOptions::new([url], "ORDERS", "stock");
    options.ack_wait = ack_time;
    options.servers.timeout = Duration::from_secs(3);
    options
}

impl Stream {
    async fn context(&self) -> Context {
        jetstream::new(async_nats::connect(self.0.url()).await.unwrap())
    }

    fn with(&self, change: impl FnOnce(&mut NatsSourceOptions)) -> NatsSource {
        let mut options = options(&self.0.url(), Duration::from_secs(30));
        change(&mut options);
        NatsSource::new(options).unwrap()
    }
}

impl Broker for Stream {
    type Source = NatsSource;

    fn source(&self, ack_time: Duration) -> NatsSource {
        NatsSource::new(options(&self.0.url(), ack_time)).unwrap()
    }

    /// A repeat that the stream recognises is published again when it no longer does.
    async fn publish(&self, messages: &[Envelope]) {
        let publisher = Nats::new(NatsOptions::new([self.0.url()])).unwrap();
        let mut left = messages.to_vec();
        while !left.is_empty() {
            let Ok(verdicts) = publisher.publish(&left).await else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            let stored = |verdict: &Verdict| *verdict == Verdict::ACCEPTED;
            let again = left.into_iter().zip(&verdicts);
            left = again
                .filter(|(_, verdict)| !stored(verdict))
                .map(|(message, _)| message)
                .collect();
            if !left.is_empty() {
                tokio::time::sleep(DUPLICATE_WINDOW).await;
            }
        }
    }
}

impl Mortal for Stream {
    fn kill(&mut self) {
        self.0.kill();
    }

    fn restart(&mut self) {
        self.0.restart();
    }
}

impl Remote for Stream {
    fn envs(&self) -> Vec<(&'static str, String)> {
        vec![("STORM_NATS", self.0.url())]
    }

    fn connect() -> NatsSource {
        let url = std::env::var("STORM_NATS").expect("the parent says where");
        NatsSource::new(options(&url, ACK_TIME)).unwrap()
    }
}

#[tokio::test]
async fn a_consumer_that_is_there_is_used_as_it_is() {
    let Some(stream) = start().await else { return };
    let ack_wait = Duration::from_secs(9);
    let config = pull::Config {
        durable_name: Some("stock".to_owned()),
        ack_policy: AckPolicy::Explicit,
        ack_wait,
        max_ack_pending: 3,
        ..pull::Config::default()
    };
    let orders = stream.context().await.get_stream("ORDERS").await.unwrap();
    let mut there = orders.create_consumer(config).await.unwrap();
    stream.publish(&batch("orders", 0, 10, 10)).await;
    let mut source = stream.with(|_| {});
    let received = source.receive(10).await.unwrap();
    // No more may be open.
    assert_eq!(received.len(), 3);
    assert_eq!(source.keep_every(), Some(ack_wait / 3));
    let more = tokio::time::timeout(Duration::from_millis(500), source.receive(10)).await;
    assert!(more.is_err(), "{more:?}");
    let tags: Vec<_> = received.into_iter().map(|one| one.tag).collect();
    source.acknowledge(&tags).await.unwrap();
    assert_eq!(source.receive(10).await.unwrap().len(), 3);
    assert_eq!(there.info().await.unwrap().config.ack_wait, ack_wait);
}

#[tokio::test]
async fn a_consumer_without_explicit_acknowledgements_is_refused() {
    let Some(stream) = start().await else { return };
    let config = pull::Config {
        durable_name: Some("stock".to_owned()),
        ack_policy: AckPolicy::None,
        ..pull::Config::default()
    };
    let orders = stream.context().await.get_stream("ORDERS").await.unwrap();
    orders.create_consumer(config).await.unwrap();
    let outage = stream.with(|_| {}).receive(1).await.unwrap_err();
    assert!(outage.reason.contains("`explicit`"), "{outage}");
}

#[tokio::test]
async fn a_stream_that_is_missing_is_an_outage_with_its_remedy() {
    let Some(stream) = start().await else { return };
    let mut source = stream.with(|options| options.stream = "OTHER".to_owned());
    let outage = source.receive(1).await.unwrap_err();
    assert!(outage.reason.contains("nats stream add OTHER"), "{outage}");
}

#[tokio::test]
async fn an_acknowledged_message_is_known_as_such() {
    let Some(stream) = start().await else { return };
    stream.publish(&batch("orders", 0, 2, 2)).await;
    let mut source = stream.with(|_| {});
    let received = source.receive(2).await.unwrap();
    let tags: Vec<_> = received.into_iter().map(|one| one.tag).collect();
    source.acknowledge(&tags).await.unwrap();
    let orders = stream.context().await.get_stream("ORDERS").await.unwrap();
    let mut there = orders.get_consumer::<pull::Config>("stock").await.unwrap();
    let info = there.info().await.unwrap();
    assert_eq!((info.num_ack_pending, info.num_pending), (0, 0));
    // Again, as after an answer that was lost; and when the consumer is no more.
    source.acknowledge(&tags).await.unwrap();
    orders.delete_consumer("stock").await.unwrap();
    source.acknowledge(&tags).await.unwrap();
}

#[tokio::test]
async fn a_consumer_that_is_deleted_is_made_again() {
    let Some(stream) = start().await else { return };
    let mut source = stream.with(|_| {});
    stream.publish(&batch("orders", 0, 3, 3)).await;
    assert_eq!(source.receive(3).await.unwrap().len(), 3);
    let orders = stream.context().await.get_stream("ORDERS").await.unwrap();
    let (outage, ()) = tokio::join!(source.receive(1), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        orders.delete_consumer("stock").await.unwrap();
    });
    assert!(!outage.unwrap_err().reason.is_empty());
    assert_eq!(source.receive(3).await.unwrap().len(), 3);
}

#[tokio::test]
async fn deliveries_are_counted() {
    let Some(stream) = start().await else { return };
    stream.publish(&batch("orders", 0, 1, 1)).await;
    let mut source = stream.with(|_| {});
    for count in 1..=4 {
        let received = source.receive(1).await.unwrap();
        assert_eq!(received[0].message.deliveries, Some(count));
        source.give_back(&[received[0].tag.clone()]).await.unwrap();
    }
}

#[tokio::test]
async fn the_retention_is_that_of_the_stream() {
    let Some(stream) = start().await else { return };
    let retention = stream.with(|_| {}).retention().await.unwrap();
    assert_eq!(retention, Retention::Forever);
    let age = Duration::from_secs(86_400 * 3);
    let limited = with_stream(|config| config.max_age = age).await.unwrap();
    let retention = limited.with(|_| {}).retention().await.unwrap();
    assert_eq!(retention, Retention::Limited(age));
}

#[tokio::test]
async fn only_chosen_subjects_are_delivered() {
    let several = |config: &mut Config| {
        config.subjects = ["orders.*", "payments", "returns"]
            .map(str::to_owned)
            .into();
    };
    let Some(stream) = with_stream(several).await else {
        return;
    };
    let of = ["orders.eu", "orders.us", "payments", "returns"];
    let sent: Vec<_> = (0..)
        .zip(of)
        .map(|(number, topic)| message(topic, number, None))
        .collect();
    stream.publish(&sent).await;
    for (consumer, subjects, expected) in [
        ("one", vec!["payments"], vec!["payments"]),
        (
            "two",
            vec!["orders.*", "returns"],
            vec!["orders.eu", "orders.us", "returns"],
        ),
    ] {
        let mut source = stream.with(|options| {
            options.consumer = consumer.to_owned();
            options.subjects = subjects.into_iter().map(str::to_owned).collect();
        });
        let mut topics = Vec::new();
        while topics.len() < expected.len() {
            let received = source.receive(9).await.unwrap();
            topics.extend(received.into_iter().map(|one| one.message.topic));
        }
        topics.sort();
        assert_eq!(topics, expected);
    }
}

#[tokio::test]
async fn the_id_of_a_producer_without_cloud_events_may_be_in_another_header() {
    let Some(stream) = start().await else { return };
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Nats-Msg-Id", "order-17-placed");
    headers.insert("Order-Event", "17/placed");
    let context = stream.context().await;
    let sent = context.publish_with_headers("orders", headers, "{}".into());
    sent.await.unwrap().await.unwrap();
    for (consumer, id, expected) in [
        ("ce", NatsId::CloudEvents, None),
        ("nats", NatsId::MessageId, Some("order-17-placed")),
        (
            "named",
            NatsId::Header("Order-Event".to_owned()),
            Some("17/placed"),
        ),
    ] {
        let mut source = stream.with(|options| {
            options.consumer = consumer.to_owned();
            options.id = id;
        });
        let received = source.receive(1).await.unwrap();
        assert_eq!(received[0].message.id.as_deref(), expected);
        assert_eq!(received[0].message.at, None);
    }
}

#[tokio::test]
async fn credentials_and_tls_are_those_of_the_publisher() {
    let (files, authority) = (tempfile::tempdir().unwrap(), Authority::default());
    let trusted = files.path().join("authority.pem");
    authority.write(&trusted);
    let (certificate, key) = authority.issue().write(files.path(), "server");
    let settings = format!(
        "tls {{ cert_file: {certificate:?}, key_file: {key:?} }}\n\
         authorization {{ user: u, password: secret }}"
    );
    let Some(server) = Server::start(&settings) else {
        return;
    };
    for (name, password) in [("u", "secret"), ("u", "other-secret")] {
        let mut options = options(
            &format!("tls://{}", server.address()),
            Duration::from_secs(30),
        );
        options.servers.root_certificates = vec![trusted.clone()];
        options.servers.credentials = NatsCredentials::User {
            name: name.into(),
            password: password.into(),
        };
        let outage = NatsSource::new(options)
            .unwrap()
            .receive(1)
            .await
            .unwrap_err();
        let is_let_in = outage.reason.contains("no stream");
        assert_eq!(is_let_in, password == "secret", "{outage}");
        assert!(!outage.reason.contains("secret"), "{outage}");
    }
}
