//! RabbitMQ, with a real server.

use std::net::SocketAddr;
use std::sync::MutexGuard;

use hapax_flow::publish::RabbitServers;
use hapax_flow::publish::cloud_events::{CloudEvents, Mode};
use hapax_flow::publish::{Envelope, Publisher, RabbitMq, RabbitOptions, Verdict};
use hapax_testkit::harness::Authority;
use hapax_testkit::servers::{Port, RabbitMq as Server};
use lapin::options::{
    BasicGetOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
    QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::destination::{Arrived, Destination, LIMIT, Mortal, Refusing};
use super::messages::{batch, message};

/// A virtual host with the durable queue `orders`.
struct Queue {
    url: String,
    exchange: &'static str,
}

suite!(of all: start);
suite!(of refusing: choosy);

mod killed {
    suite!(of mortal: super::mortal);
}

async fn start() -> Option<Queue> {
    let url = Server::shared()?.virtual_host();
    Some(Queue::new(url).await)
}

/// Takes only what is an order.
async fn choosy() -> Option<Queue> {
    let mut queue = start().await?;
    queue.exchange = "orders only";
    let channel = queue.channel().await;
    let durable = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    let name = queue.exchange;
    let declared = channel.exchange_declare(
        name.into(),
        ExchangeKind::Headers,
        durable,
        FieldTable::default(),
    );
    declared.await.unwrap();
    let mut only = FieldTable::default();
    let text = |text: &str| AMQPValue::LongString(text.into());
    only.insert("x-match".into(), text("all"));
    only.insert("cloudEvents:type".into(), text("orders"));
    let options = QueueBindOptions::default();
    let bound = channel.queue_bind("orders".into(), name.into(), "".into(), options, only);
    bound.await.unwrap();
    Some(queue)
}

/// A queue whose server the test may kill.
struct MortalQueue {
    server: MutexGuard<'static, Server>,
    queue: Queue,
}

#[expect(
    clippy::await_holding_lock,
    reason = "each test has a runtime of its own"
)]
async fn mortal() -> Option<MortalQueue> {
    let server = Server::mortal()?;
    let queue = Queue::new(server.virtual_host()).await;
    server.write_declarations();
    Some(MortalQueue { server, queue })
}

impl Queue {
    async fn new(url: String) -> Queue {
        let queue = Queue { url, exchange: "" };
        queue.declare("orders", FieldTable::default()).await;
        queue
    }

    async fn channel(&self) -> Channel {
        let connection = Connection::connect(&self.url, ConnectionProperties::default());
        connection.await.unwrap().create_channel().await.unwrap()
    }

    async fn declare(&self, name: &str, arguments: FieldTable) {
        let options = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let channel = self.channel().await;
        let declared = channel.queue_declare(name.into(), options, arguments).await;
        declared.unwrap();
    }

    fn with(&self, change: impl FnOnce(&mut RabbitOptions)) -> RabbitMq {
        let mut servers = RabbitServers::new([&self.url]);
        servers.timeout = LIMIT;
        let mut options = RabbitOptions::new(servers);
        options.exchange = self.exchange.to_owned();
        change(&mut options);
        RabbitMq::new(options).unwrap()
    }

    /// Everything in the queue, in its order. It stays there: what is not acknowledged goes back to
    /// its place.
    async fn messages(&self) -> Vec<lapin::message::Delivery> {
        let channel = self.channel().await;
        let mut messages = Vec::new();
        while let Some(one) = channel
            .basic_get("orders".into(), BasicGetOptions::default())
            .await
            .unwrap()
        {
            messages.push(one.delivery);
        }
        // The next reader finds them back.
        let purged = channel.basic_recover(lapin::options::BasicRecoverOptions { requeue: true });
        purged.await.unwrap();
        messages
    }
}

fn headers(delivery: &lapin::message::Delivery) -> Vec<(String, String)> {
    let properties = &delivery.properties;
    let content_type = properties.content_type().as_ref();
    let content_type = content_type.map(|text| ("content-type".to_owned(), text.to_string()));
    let table = properties.headers().clone().unwrap_or_default();
    let text = |value: &AMQPValue| value.as_long_string().expect("text").to_string();
    let mut headers: Vec<_> = table
        .into_iter()
        .map(|(name, value)| (name.to_string(), text(value)))
        .collect();
    headers.extend(content_type);
    headers
}

impl Destination for Queue {
    type Publisher = RabbitMq;

    fn publisher(&self) -> RabbitMq {
        self.with(|_| {})
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let arrived = self.messages().await.into_iter().map(|delivery| {
            let headers = headers(&delivery);
            let key = headers
                .iter()
                .find(|(name, _)| name == "cloudEvents:partitionkey");
            assert_eq!(*delivery.properties.delivery_mode(), Some(2), "persistent");
            Arrived {
                id: delivery.properties.message_id().clone().unwrap().into(),
                key: key.map(|(_, value)| value.clone()),
                headers,
                payload: delivery.data,
            }
        });
        arrived.collect()
    }
}

impl Refusing for Queue {
    fn spoil(&self, message: &mut Envelope) {
        message.headers = vec![("ce-type".to_owned(), "no order".to_owned())];
    }
}

impl Destination for MortalQueue {
    type Publisher = RabbitMq;

    fn publisher(&self) -> RabbitMq {
        self.queue.publisher()
    }

    async fn arrived(&self) -> Vec<Arrived> {
        self.queue.arrived().await
    }
}

impl Mortal for MortalQueue {
    fn kill(&mut self) {
        self.server.kill();
    }

    fn restart(&mut self) {
        self.server.restart();
    }

    fn pause(&self) {
        self.server.pause();
    }

    fn resume(&self) {
        self.server.resume();
    }

    fn kills(&self) -> usize {
        // It takes seconds to start.
        match std::env::var("HAPAX_CAMPAIGN").is_ok_and(|size| size == "full") {
            true => 20,
            false => 2,
        }
    }
}

#[tokio::test]
async fn what_no_queue_is_bound_for_is_refused_with_its_remedy() {
    let Some(queue) = start().await else { return };
    let sent = [message("payments", 0, None), message("orders", 1, None)];
    let publisher = queue.publisher();
    for sent in [&sent[..], &sent[..1]] {
        let verdicts = publisher.publish(sent).await.unwrap();
        let remedy = "no queue of RabbitMQ is bound for the queue \"payments\"";
        assert!(
            matches!(&verdicts[0], Verdict::Refused(reason) if reason.contains(remedy)),
            "{verdicts:?}"
        );
        assert!(verdicts[1..].iter().all(Verdict::is_accepted));
    }
    assert_eq!(queue.messages().await.len(), 1);
}

#[tokio::test]
async fn returned_messages_are_told_from_those_beside_them() {
    let Some(queue) = start().await else { return };
    // Each second message goes nowhere, and all of them are under way at the same time.
    let topic = |number| ["orders", "nowhere"][number as usize % 2];
    let sent: Vec<_> = (0..600)
        .map(|number| message(topic(number), number, Some(format!("key {}", number / 2))))
        .collect();
    let verdicts = queue.publisher().publish(&sent).await.unwrap();
    for (message, verdict) in sent.iter().zip(verdicts) {
        assert_eq!(
            verdict.is_accepted(),
            message.topic == "orders",
            "{verdict:?}"
        );
    }
    assert_eq!(queue.messages().await.len(), 300);
}

#[tokio::test]
async fn exchanges_and_routing_keys_are_made_by_templates() {
    let Some(queue) = start().await else { return };
    let channel = queue.channel().await;
    let kind = ExchangeKind::Topic;
    let options = ExchangeDeclareOptions::default();
    let declared =
        channel.exchange_declare("shop-paid".into(), kind, options, FieldTable::default());
    declared.await.unwrap();
    let options = QueueBindOptions::default();
    let key = "v1.*";
    let bound = channel.queue_bind(
        "orders".into(),
        "shop-paid".into(),
        key.into(),
        options,
        FieldTable::default(),
    );
    bound.await.unwrap();
    let publisher = queue.with(|options| {
        options.exchange = "shop-{topic}".into();
        options.routing_key = "v1.{topic}".into();
    });
    let verdicts = publisher
        .publish(&[message("paid", 0, None)])
        .await
        .unwrap();
    assert_eq!(verdicts, [Verdict::ACCEPTED]);
    let stored = queue.messages().await;
    assert_eq!(stored[0].routing_key.as_str(), "v1.paid");
}

#[tokio::test]
async fn an_exchange_that_is_not_there_is_an_outage_unless_others_are() {
    let Some(queue) = start().await else { return };
    let channel = queue.channel().await;
    let publisher = queue.with(|options| {
        options.exchange = "shop-{topic}".into();
        options.routing_key = "orders".into();
    });
    let sent = [message("a", 0, None), message("b", 1, None)];
    let outage = publisher.publish(&sent).await.unwrap_err();
    assert!(outage.reason.contains("no exchange 'shop-"), "{outage}");
    let kind = ExchangeKind::Fanout;
    let options = ExchangeDeclareOptions::default();
    let declared = channel.exchange_declare("shop-a".into(), kind, options, FieldTable::default());
    declared.await.unwrap();
    let options = QueueBindOptions::default();
    let bound = channel.queue_bind(
        "orders".into(),
        "shop-a".into(),
        "".into(),
        options,
        FieldTable::default(),
    );
    bound.await.unwrap();
    let verdicts = publisher.publish(&sent).await.unwrap();
    assert_eq!(verdicts[0], Verdict::ACCEPTED);
    assert!(matches!(verdicts[1], Verdict::Failed(_)), "{verdicts:?}");
}

#[tokio::test]
async fn a_full_queue_fails_messages_and_takes_them_later() {
    let Some(queue) = start().await else { return };
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(2));
    let reject = AMQPValue::LongString("reject-publish".into());
    arguments.insert("x-overflow".into(), reject);
    queue.declare("small", arguments).await;
    let publisher = queue.publisher();
    let sent = batch("small", 0, 4, 1);
    let verdicts = publisher.publish(&sent).await.unwrap();
    assert!(verdicts[..2].iter().all(Verdict::is_accepted));
    assert!(
        matches!(&verdicts[2], Verdict::Failed(reason) if reason.contains("full")),
        "{verdicts:?}"
    );
    assert_eq!(verdicts[3], Verdict::NotSent);
    let channel = queue.channel().await;
    let purged = channel.queue_purge("small".into(), QueuePurgeOptions::default());
    purged.await.unwrap();
    let verdicts = publisher.publish(&sent[2..]).await.unwrap();
    assert!(verdicts.iter().all(Verdict::is_accepted), "{verdicts:?}");
}

#[tokio::test]
async fn a_structured_message_is_one_json_object() {
    let Some(queue) = start().await else { return };
    let publisher = queue.with(|options| {
        options.events = CloudEvents::new("/shop", Mode::Structured).unwrap();
    });
    let sent = message("orders", 7, None);
    let verdicts = publisher
        .publish(std::slice::from_ref(&sent))
        .await
        .unwrap();
    assert_eq!(verdicts, [Verdict::ACCEPTED]);
    let stored = queue.messages().await;
    let properties = &stored[0].properties;
    let media = "application/cloudevents+json";
    assert_eq!(*properties.content_type(), Some(media.into()));
    let json: serde_json::Value = serde_json::from_slice(&stored[0].data).unwrap();
    assert_eq!(json["id"], sent.id.to_string());
    assert_eq!(json["source"], "/shop");
}

#[tokio::test]
async fn a_server_that_is_down_does_not_keep_the_relay_from_the_next_one() {
    let Some(queue) = start().await else { return };
    let nobody = Port::free();
    let publisher = queue.with(|options| {
        let down = format!("amqp://u:secret@{}", nobody.address());
        options.servers.urls.insert(0, down);
    });
    let sent = batch("orders", 0, 10, 10);
    let verdicts = publisher.publish(&sent).await.unwrap();
    assert!(verdicts.iter().all(Verdict::is_accepted), "{verdicts:?}");
}

#[tokio::test]
async fn no_outage_tells_a_password() {
    let Some(server) = Server::shared() else {
        return;
    };
    let nobody = Port::free();
    for url in [
        format!("amqp://guest:secret@{}", server.address()),
        format!("amqp://guest:secret@{}", nobody.address()),
        format!("amqps://guest:secret@{}", server.address()),
        format!("amqp://guest:guest@{}/secret", server.address()),
    ] {
        let mut servers = RabbitServers::new([url]);
        servers.timeout = LIMIT;
        let publisher = RabbitMq::new(RabbitOptions::new(servers)).unwrap();
        let sent = [message("orders", 0, None)];
        let outage = publisher.publish(&sent).await.unwrap_err();
        assert!(!outage.reason.contains("guest:"), "{outage}");
        assert!(!format!("{publisher:?}").contains("secret"));
    }
}

#[tokio::test]
async fn tls_is_spoken_with_those_whom_the_relay_trusts() {
    let Some(queue) = start().await else { return };
    let (files, authority) = (tempfile::tempdir().unwrap(), Authority::default());
    let trusted = files.path().join("authority.pem");
    authority.write(&trusted);
    let other = files.path().join("other.pem");
    Authority::default().write(&other);
    let (_, behind) = queue.url.rsplit_once('@').unwrap();
    let (address, virtual_host) = behind.split_once('/').unwrap();
    let front = in_front_of(address.parse().unwrap(), &authority).await;
    for (root, is_trusted) in [(trusted, true), (other, false)] {
        let publisher = queue.with(|options| {
            options.servers.urls = vec![format!("amqps://guest:guest@{front}/{virtual_host}")];
            options.servers.ca_file = Some(root);
        });
        let sent = batch("orders", 0, 10, 3);
        let published = publisher.publish(&sent).await;
        assert_eq!(published.is_ok(), is_trusted, "{published:?}");
    }
    assert_eq!(queue.messages().await.len(), 10);
}

/// Speaks TLS in front of a server that does not.
async fn in_front_of(server: SocketAddr, authority: &Authority) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(authority.issue().server(&[]));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut client = acceptor.accept(client).await?;
                let mut server = TcpStream::connect(server).await?;
                tokio::io::copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    address
}

/// A way to a server that can be closed: then it takes nothing more from clients, and keeps their
/// connections.
struct Gate {
    address: SocketAddr,
    is_open: watch::Sender<bool>,
    /// Connections that clients have ended.
    ended: watch::Receiver<usize>,
}

impl Gate {
    async fn before(server: SocketAddr) -> Gate {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (is_open, opened) = watch::channel(true);
        let (ending, ended) = watch::channel(0);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (ending, mut opened) = (ending.clone(), opened.clone());
                tokio::spawn(async move {
                    let (mut answers, mut requests) =
                        TcpStream::connect(server).await.unwrap().into_split();
                    let (mut client, mut asking) = client.into_split();
                    tokio::spawn(async move { tokio::io::copy(&mut answers, &mut asking).await });
                    let mut bytes = vec![0; 64 << 10];
                    loop {
                        opened.wait_for(|is_open| *is_open).await.unwrap();
                        match client.read(&mut bytes).await {
                            Ok(0) | Err(_) => break ending.send_modify(|ended| *ended += 1),
                            Ok(read) => requests.write_all(&bytes[..read]).await.unwrap(),
                        }
                    }
                });
            }
        });
        Gate {
            address,
            is_open,
            ended,
        }
    }
}

/// It would arrive after what was published in the meantime, and so out of order.
#[tokio::test]
async fn what_waits_when_the_connection_is_given_up_is_never_sent_later() {
    let Some(queue) = start().await else { return };
    let (_, behind) = queue.url.rsplit_once('@').unwrap();
    let (address, virtual_host) = behind.split_once('/').unwrap();
    let mut gate = Gate::before(address.parse().unwrap()).await;
    let publisher = queue.with(|options| {
        options.servers.urls = vec![format!(
            "amqp://guest:guest@{}/{virtual_host}",
            gate.address
        )];
    });
    publisher.publish(&batch("orders", 0, 1, 1)).await.unwrap();
    gate.is_open.send_replace(false);
    // More than fits into the buffers of the sockets, so that most of it stays in the client.
    let mut stuck = batch("orders", 1, 64, 64);
    for message in &mut stuck {
        message.payload = vec![0; 1 << 20].into();
    }
    let outage = publisher.publish(&stuck).await.unwrap_err();
    assert!(outage.reason.contains("does not answer"), "{outage}");
    gate.is_open.send_replace(true);
    let later = batch("orders", 1000, 100, 100);
    let verdicts = publisher.publish(&later).await.unwrap();
    assert!(verdicts.iter().all(Verdict::is_accepted), "{verdicts:?}");
    let given_up = gate.ended.wait_for(|ended| *ended == 1);
    tokio::time::timeout(LIMIT, given_up)
        .await
        .expect("the connection that was given up has ended")
        .unwrap();
    let arrived = queue.messages().await.len();
    assert!(arrived < 101 + stuck.len() / 2, "{arrived}");
}
