//! RabbitMQ, with a real server: classic and quorum queues.

use std::sync::MutexGuard;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::time::Timestamp;
use hapax_flow::consume::{
    Incoming, RabbitId, RabbitSource, RabbitSourceOptions, RabbitTime, Retention, Source,
};
use hapax_flow::publish::RabbitServers;
use hapax_flow::publish::{Envelope, Publisher, RabbitMq, RabbitOptions};
use hapax_testkit::servers::RabbitMq as Server;
use lapin::options::{BasicPublishOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};

use super::broker::{Broker, Mortal};
use super::messages::{batch, message};
use super::storm::Remote;

const QUEUE: &str = "orders";
/// Longer than any answer takes.
const LIMIT: Duration = Duration::from_secs(5);

/// A virtual host with a queue.
struct Queue {
    url: String,
}

/// The same, at a server that the test may kill.
struct MortalQueue {
    server: MutexGuard<'static, Server>,
    queue: Queue,
}

mod classic {
    use super::{MortalQueue, Queue};

    async fn start() -> Option<Queue> {
        Queue::start("classic").await
    }

    async fn mortal() -> Option<MortalQueue> {
        MortalQueue::start("classic").await
    }

    /// Every run has a storm over the other kind.
    async fn stormy() -> Option<MortalQueue> {
        match std::env::var("HAPAX_CAMPAIGN").is_ok_and(|size| size == "full") {
            true => mortal().await,
            false => None,
        }
    }

    suite!(of all: start);
    suite!(of mortal: mortal);
    crate::storm::storm!(
        MortalQueue,
        stormy,
        "rabbitmq::classic::a_storm_of_kills_and_repeats_has_each_effect_once"
    );
}

mod quorum {
    use super::{MortalQueue, Queue};

    async fn start() -> Option<Queue> {
        Queue::start("quorum").await
    }

    async fn mortal() -> Option<MortalQueue> {
        MortalQueue::start("quorum").await
    }

    suite!(of all: start);
    suite!(of mortal: mortal);
    crate::storm::storm!(
        MortalQueue,
        mortal,
        "rabbitmq::quorum::a_storm_of_kills_and_repeats_has_each_effect_once"
    );
}

impl Queue {
    async fn start(kind: &str) -> Option<Queue> {
        let url = Server::shared()?.virtual_host();
        Some(Queue::declared(url, kind).await)
    }

    async fn declared(url: String, kind: &str) -> Queue {
        let queue = Queue { url };
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let mut arguments = FieldTable::default();
        let kind = AMQPValue::LongString(kind.into());
        arguments.insert("x-queue-type".into(), kind);
        let channel = queue.channel().await;
        let declared = channel.queue_declare(QUEUE.into(), durable, arguments);
        declared.await.unwrap();
        queue
    }

    async fn channel(&self) -> Channel {
        let connection = Connection::connect(&self.url, ConnectionProperties::default());
        connection.await.unwrap().create_channel().await.unwrap()
    }

    fn with(&self, change: impl FnOnce(&mut RabbitSourceOptions)) -> RabbitSource {
        let mut options = options(&self.url);
        change(&mut options);
        RabbitSource::new(options).unwrap()
    }

    /// What a source makes of a message of some other producer.
    async fn made_of(
        &self,
        properties: BasicProperties,
        change: impl FnOnce(&mut RabbitSourceOptions),
    ) -> Incoming {
        let channel = self.channel().await;
        let options = BasicPublishOptions::default();
        let published = channel.basic_publish("".into(), QUEUE.into(), options, b"{}", properties);
        published.await.unwrap();
        let mut source = self.with(change);
        let received = source.receive(1).await.unwrap().remove(0);
        source.acknowledge(&[received.tag]).await.unwrap();
        received.message
    }
}

fn servers(url: &str) -> RabbitServers {
    let mut servers = RabbitServers::new([url]);
    servers.timeout = LIMIT;
    servers
}

fn options(url: &str) -> RabbitSourceOptions {
    RabbitSourceOptions::new(servers(url), QUEUE)
}

impl Broker for Queue {
    type Source = RabbitSource;

    /// A delivery stays with its connection, however long.
    fn source(&self, _ack_time: Duration) -> RabbitSource {
        self.with(|_| {})
    }

    async fn publish(&self, messages: &[Envelope]) {
        let publisher = RabbitMq::new(RabbitOptions::new(servers(&self.url))).unwrap();
        let mut left = messages.to_vec();
        while !left.is_empty() {
            let Ok(verdicts) = publisher.publish(&left).await else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            let again = left.into_iter().zip(&verdicts);
            left = again
                .filter(|(_, verdict)| !verdict.is_accepted())
                .map(|(message, _)| message)
                .collect();
        }
    }
}

impl MortalQueue {
    #[expect(
        clippy::await_holding_lock,
        reason = "each test has a runtime of its own"
    )]
    async fn start(kind: &str) -> Option<MortalQueue> {
        let server = Server::mortal()?;
        let queue = Queue::declared(server.virtual_host(), kind).await;
        server.write_declarations();
        Some(MortalQueue { server, queue })
    }
}

impl Broker for MortalQueue {
    type Source = RabbitSource;

    fn source(&self, ack_time: Duration) -> RabbitSource {
        self.queue.source(ack_time)
    }

    async fn publish(&self, messages: &[Envelope]) {
        self.queue.publish(messages).await;
    }
}

impl Mortal for MortalQueue {
    fn kill(&mut self) {
        self.server.kill();
    }

    fn restart(&mut self) {
        self.server.restart();
    }
}

impl Remote for MortalQueue {
    fn envs(&self) -> Vec<(&'static str, String)> {
        // A member that is stopped loses its messages to others before it wakes.
        vec![("STORM_RABBITMQ", format!("{}?heartbeat=1", self.queue.url))]
    }

    fn connect() -> RabbitSource {
        let url = std::env::var("STORM_RABBITMQ").expect("the parent says where");
        RabbitSource::new(options(&url)).unwrap()
    }
}

fn header(name: &str, value: &str) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert(name.into(), AMQPValue::LongString(value.into()));
    BasicProperties::default().with_headers(headers)
}

#[tokio::test]
async fn attributes_are_known_by_every_prefix() {
    let Some(queue) = Queue::start("classic").await else {
        return;
    };
    for name in ["cloudEvents:id", "cloudEvents_id", "ce-id", "ce_id"] {
        let message = queue.made_of(header(name, "7"), |_| {}).await;
        assert_eq!(message.id.as_deref(), Some("7"), "{name}");
        assert_eq!(message.topic, QUEUE);
        assert_eq!(message.payload, Bytes::from_static(b"{}"));
    }
}

#[tokio::test]
async fn a_producer_that_knows_no_cloud_events_may_have_an_id_and_a_time_elsewhere() {
    let Some(queue) = Queue::start("classic").await else {
        return;
    };
    let given = || {
        header("X-Order", "order 7")
            .with_message_id("7".into())
            .with_timestamp(1_700_000_000)
            .with_content_type("application/json".into())
    };
    let plain = queue.made_of(given(), |_| {}).await;
    assert_eq!((plain.id, plain.at), (None, None));
    let by_property = |options: &mut RabbitSourceOptions| {
        options.id = RabbitId::MessageId;
        options.time = RabbitTime::Timestamp;
    };
    let message = queue.made_of(given(), by_property).await;
    assert_eq!(message.id.as_deref(), Some("7"));
    let at = Timestamp::from_micros(1_700_000_000_000_000);
    assert_eq!(message.at, Some(at));
    assert_eq!(message.header("content-type"), Some("application/json"));
    let by_header = |options: &mut RabbitSourceOptions| {
        options.id = RabbitId::Header("x-order".to_owned());
    };
    let message = queue.made_of(given(), by_header).await;
    assert_eq!(message.id.as_deref(), Some("order 7"));
    let without = BasicProperties::default();
    let message = queue.made_of(without, by_property).await;
    assert_eq!((message.id, message.at), (None, None));
}

#[tokio::test]
async fn a_quorum_queue_counts_deliveries() {
    let Some(queue) = Queue::start("quorum").await else {
        return;
    };
    queue.publish(&[message(QUEUE, 0, None)]).await;
    let mut source = queue.with(|_| {});
    for count in [None, Some(2), Some(3)] {
        let received = source.receive(1).await.unwrap().remove(0);
        assert_eq!(received.message.deliveries, count);
        source.give_back(&[received.tag]).await.unwrap();
    }
    assert_eq!(source.retention().await, Ok(Retention::Unknown));
}

#[tokio::test]
async fn no_more_comes_than_is_asked_for_ahead() {
    let Some(queue) = Queue::start("quorum").await else {
        return;
    };
    queue.publish(&batch(QUEUE, 0, 50, 10)).await;
    let mut source = queue.with(|options| options.prefetch = 10);
    let mut open = Vec::new();
    while open.len() < 10 {
        open.extend(source.receive(100).await.unwrap());
    }
    assert_eq!(open.len(), 10);
    assert_eq!(source.lag().await, Ok(Some(40)));
    // What is acknowledged makes room for as many.
    let tags: Vec<_> = open.drain(..4).map(|delivery| delivery.tag).collect();
    source.acknowledge(&tags).await.unwrap();
    while open.len() < 10 {
        open.extend(source.receive(100).await.unwrap());
    }
    assert_eq!(open.len(), 10);
}

#[tokio::test]
async fn a_queue_that_is_gone_is_an_outage_until_it_is_there_again() {
    let Some(queue) = Queue::start("classic").await else {
        return;
    };
    let mut source = queue.with(|_| {});
    queue.publish(&[message(QUEUE, 0, None)]).await;
    let stale = source.receive(1).await.unwrap().remove(0).tag;
    let channel = queue.channel().await;
    let options = QueueDeleteOptions::default();
    channel.queue_delete(QUEUE.into(), options).await.unwrap();
    let outage = source.receive(1).await.unwrap_err();
    assert!(outage.reason.contains("deleted"), "{outage}");
    for _ in 0..2 {
        let outage = source.receive(1).await.unwrap_err();
        assert!(outage.reason.contains("no queue 'orders'"), "{outage}");
        assert!(source.lag().await.is_err());
    }
    let again = Queue::declared(queue.url.clone(), "classic").await;
    again.publish(&[message(QUEUE, 1, None)]).await;
    let received = source.receive(1).await.unwrap().remove(0);
    assert_eq!(received.message.payload, Bytes::from_static(b"1"));
    // A tag of a connection that is no more does nothing, also when numbers begin anew.
    source
        .acknowledge(std::slice::from_ref(&stale))
        .await
        .unwrap();
    source.give_back(&[stale]).await.unwrap();
    drop(source);
    let mut next = queue.with(|_| {});
    let received = next.receive(1).await.unwrap().remove(0);
    assert_eq!(received.message.payload, Bytes::from_static(b"1"));
}
