//! Kafka, with a real server.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hapax_flow::publish::cloud_events::{CloudEvents, Mode};
use hapax_flow::publish::{
    Envelope, Kafka, KafkaCredentials, KafkaOptions, KafkaServers, KafkaTls, Publisher, Verdict,
};
use hapax_testkit::servers;
use krafka::admin::{
    AdminClient, CreateTopicsOptions, DescribeTopicsOptions, DescribeTransactionsOptions,
    ListOffsetsOptions, NewTopic, OffsetSpec,
};
use krafka::auth::{AuthConfig, TlsConfig};
use krafka::consumer::{IsolationLevel, TopicPartition};
use krafka::error::ErrorCode;
use krafka::{Kafka as Client, KrafkaError};

use super::destination::{Arrived, Destination, LIMIT, Mortal, Refusing};
use super::messages::{batch, message};

suite!(of all: start);
suite!(of refusing: start);

mod mortal {
    use super::mortal;
    suite!(of mortal: mortal);
}

/// Large enough for the largest message with its headers.
const LARGE: &str = "message.max.bytes=2097152";

/// A topic of its own, at a server of its own or at one that tests share: a server takes a second
/// or two to start.
struct Topic {
    own: Option<servers::Kafka>,
    bootstrap: String,
    name: &'static str,
}

async fn start() -> Option<Topic> {
    static SHARED: OnceLock<Option<servers::Kafka>> = OnceLock::new();
    let shared = SHARED.get_or_init(|| servers::Kafka::start(LARGE));
    let bootstrap = shared.as_ref()?.bootstrap();
    Some(Topic::make(None, bootstrap).await)
}

async fn mortal() -> Option<Topic> {
    of_own(LARGE).await
}

async fn of_own(settings: &str) -> Option<Topic> {
    let own = servers::Kafka::start(settings)?;
    let bootstrap = own.bootstrap();
    let topic = Topic::make(Some(own), bootstrap).await;
    // The first transaction of a server takes long.
    let first = topic.with(|options| options.timeout = 10 * LIMIT);
    drop(first.publish(&[message(topic.name, 0, None)]).await);
    topic.create("orders", &[]).await;
    Some(Topic {
        name: "orders",
        ..topic
    })
}

impl Topic {
    async fn make(own: Option<servers::Kafka>, bootstrap: String) -> Topic {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let topic = Topic {
            own,
            bootstrap,
            name: Box::leak(format!("orders-{number}").into_boxed_str()),
        };
        topic.create(topic.name, &[]).await;
        topic
    }

    async fn client(&self) -> Client {
        Client::builder(&self.bootstrap).connect().await.unwrap()
    }

    async fn create(&self, name: &str, settings: &[(&str, &str)]) {
        create(&self.client().await, name, settings).await;
    }

    fn options(&self) -> KafkaOptions {
        let servers = KafkaServers::new([self.bootstrap.as_str()]);
        let mut options = KafkaOptions::new(servers, format!("relay-{}", self.name));
        // There are tests in which many calls have to wait for the end of it.
        options.timeout = if self.own.is_some() { LIMIT / 2 } else { LIMIT };
        options
    }

    fn with(&self, change: impl FnOnce(&mut KafkaOptions)) -> Kafka {
        let mut options = self.options();
        change(&mut options);
        Kafka::new(options).unwrap()
    }

    /// Kafka says that a transaction is committed when it is decided, and not only when readers see
    /// it.
    async fn wait_for_marks(&self, admin: &AdminClient) {
        let name = self.options().name;
        let ended = Instant::now() + 4 * LIMIT;
        loop {
            let options = DescribeTransactionsOptions::default();
            let described = admin.describe_transactions([&name], options).await.unwrap();
            match described.into_values().next() {
                Some(Ok(described)) if !described.state.starts_with("Prepare") => return,
                Some(Err(KrafkaError::Broker {
                    code: ErrorCode::TransactionalIdNotFound,
                    ..
                })) => return,
                other => assert!(Instant::now() < ended, "{other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// All messages of a topic, partition by partition.
    async fn read(&self, topic: &str) -> Vec<Arrived> {
        let client = self.client().await;
        let admin = client.admin();
        self.wait_for_marks(&admin).await;
        let described = admin.describe_topics([topic], DescribeTopicsOptions::default());
        let described = described.await.unwrap().remove(topic).unwrap().unwrap();
        let numbers = described.partitions.iter().map(|found| found.partition);
        let places = numbers.map(|number| TopicPartition::new(topic, number));
        let latest = places.map(|place| (place, OffsetSpec::Latest));
        let options = ListOffsetsOptions::default().read_committed(true);
        let ends = admin.list_offsets(latest, options).await.unwrap();
        let reader = client.consumer_without_group();
        let reader = reader.isolation_level(IsolationLevel::ReadCommitted);
        let reader = reader.build().await.unwrap();
        let numbers = ends.keys().map(|place| place.partition()).collect();
        reader.assign(topic, numbers).await.unwrap();
        for place in ends.keys() {
            reader.seek(topic, place.partition(), 0).await.unwrap();
        }
        let mut arrived = Vec::new();
        for (place, end) in &ends {
            let end = end.as_ref().unwrap().offset;
            let position = async || reader.fetch_position(topic, place.partition()).await;
            while position().await.unwrap_or(0) < end {
                let records = reader.poll(Duration::from_millis(100)).await.unwrap();
                arrived.extend(records.into_iter().map(arrived_of));
            }
        }
        // What was fetched with the last of it.
        loop {
            let rest = reader.poll(Duration::from_millis(1)).await.unwrap();
            if rest.is_empty() {
                break;
            }
            arrived.extend(rest.into_iter().map(arrived_of));
        }
        reader.close().await.unwrap();
        arrived
    }
}

async fn create(client: &Client, name: &str, settings: &[(&str, &str)]) {
    let mut topic = NewTopic::new(name, 4, 1).unwrap();
    for (setting, value) in settings {
        topic = topic.with_config(*setting, *value);
    }
    let admin = client.admin();
    let made = admin.create_topics([topic], CreateTopicsOptions::default());
    for made in made.await.unwrap().into_values() {
        made.unwrap();
    }
}

fn arrived_of(record: krafka::ConsumerRecord) -> Arrived {
    let header = |name| record.header_str(name).map(str::to_owned);
    Arrived {
        id: header("ce_id").unwrap_or_default(),
        key: record.key_str().map(str::to_owned),
        headers: record
            .headers
            .iter()
            .map(|(name, value)| {
                let value = value.clone().unwrap_or_default().to_vec();
                (name.clone(), String::from_utf8(value).unwrap())
            })
            .collect(),
        payload: record.value.unwrap_or_default().to_vec(),
    }
}

impl Destination for Topic {
    type Publisher = Kafka;

    fn publisher(&self) -> Kafka {
        self.with(|_| {})
    }

    fn topic(&self) -> &'static str {
        self.name
    }

    async fn arrived(&self) -> Vec<Arrived> {
        self.read(self.name).await
    }
}

impl Refusing for Topic {
    fn spoil(&self, message: &mut Envelope) {
        message.payload = vec![b'x'; 3 << 20].into();
    }
}

impl Mortal for Topic {
    fn kill(&mut self) {
        self.own.as_mut().unwrap().kill();
    }

    fn restart(&mut self) {
        self.own.as_mut().unwrap().restart();
    }

    fn pause(&self) {
        self.own.as_ref().unwrap().pause();
    }

    fn resume(&self) {
        self.own.as_ref().unwrap().resume();
    }
}

fn reason(verdict: &Verdict) -> &str {
    verdict.reason().unwrap_or_default()
}

#[tokio::test]
async fn a_message_is_a_cloud_event_in_binary_mode() {
    let Some(topic) = start().await else { return };
    let mut sent = message(topic.name, 7, Some("order 1".to_owned()));
    sent.version = Some(3);
    sent.headers = vec![("ce-type".to_owned(), "order.größe".to_owned())];
    topic.publisher().publish(&[sent.clone()]).await.unwrap();
    let arrived = topic.arrived().await.remove(0);
    for (name, value) in [
        ("ce_specversion", "1.0"),
        ("ce_type", "order.größe"),
        ("ce_subject", "order 1"),
        ("ce_partitionkey", "order 1"),
        ("ce_entityversion", "3"),
        ("content-type", "application/octet-stream"),
    ] {
        assert_eq!(arrived.header(name), Some(value), "{name}");
    }
    assert_eq!(arrived.payload, b"7");
}

#[tokio::test]
async fn a_message_may_be_one_json_object() {
    let Some(topic) = start().await else { return };
    let publisher = topic.with(|options| {
        options.events = CloudEvents::new("/shop", Mode::Structured).unwrap();
    });
    publisher
        .publish(&[message(topic.name, 7, None)])
        .await
        .unwrap();
    let arrived = topic.arrived().await.remove(0);
    let media = arrived.header("content-type");
    assert_eq!(media, Some("application/cloudevents+json"));
    let json: serde_json::Value = serde_json::from_slice(&arrived.payload).unwrap();
    assert_eq!(json["source"], "/shop");
}

#[tokio::test]
async fn topics_are_made_by_the_template() {
    let Some(topic) = start().await else { return };
    let name = format!("shop.{}.v1", topic.name);
    topic.create(&name, &[]).await;
    let publisher = topic.with(|options| options.topic = "shop.{topic}.v1".to_owned());
    let sent = [message(topic.name, 0, None)];
    assert_eq!(publisher.publish(&sent).await.unwrap(), [Verdict::ACCEPTED]);
    assert_eq!(topic.read(&name).await.len(), 1);
}

#[tokio::test]
async fn what_is_no_topic_is_refused_without_sending() {
    let Some(topic) = start().await else { return };
    let own = format!("relay-{}", topic.name);
    let topics = ["a b", "..", "größe", "__consumer_offsets", &own];
    let sent: Vec<_> = (0..)
        .zip(topics)
        .map(|(number, name)| message(name, number, None))
        .collect();
    let verdicts = topic.publisher().publish(&sent).await.unwrap();
    for (name, verdict) in topics.iter().zip(verdicts) {
        assert!(
            matches!(verdict, Verdict::Refused(_)),
            "{name}: {verdict:?}"
        );
    }
}

#[tokio::test]
async fn a_small_message_that_is_too_large_for_its_topic_stops_only_its_key() {
    let Some(topic) = start().await else { return };
    let name = format!("small-{}", topic.name);
    topic.create(&name, &[("max.message.bytes", "1500")]).await;
    // One partition has all of them, so that they are sent together.
    let mut sent: Vec<_> = (0..8)
        .map(|number| message(&name, number, Some(format!("key {}", number % 2))))
        .collect();
    for message in &mut sent {
        message.payload = vec![b'x'; 200].into();
    }
    sent[2].payload = vec![b'x'; 2000].into();
    let verdicts = topic.publisher().publish(&sent).await.unwrap();
    assert!(
        reason(&verdicts[2]).contains("max.message.bytes"),
        "{verdicts:?}"
    );
    for place in [4, 6] {
        assert_eq!(verdicts[place], Verdict::NotSent);
    }
    for place in [0, 1, 3, 5, 7] {
        assert_eq!(verdicts[place], Verdict::ACCEPTED, "{verdicts:?}");
    }
    assert_eq!(topic.read(&name).await.len(), 5);
}

#[tokio::test]
async fn a_topic_that_is_missing_is_an_outage_with_its_remedy() {
    let Some(topic) = of_own("auto.create.topics.enable=false").await else {
        return;
    };
    let publisher = topic.publisher();
    let missing = batch("payments", 0, 3, 3);
    let outage = publisher.publish(&missing).await.unwrap_err();
    let remedy = "--create --topic payments";
    assert!(outage.reason.contains(remedy), "{outage}");
    // As long as other topics are taken, it concerns its own messages.
    let mixed = [message("payments", 0, None), message(topic.name, 1, None)];
    let verdicts = publisher.publish(&mixed).await.unwrap();
    assert!(reason(&verdicts[0]).contains(remedy), "{verdicts:?}");
    assert_eq!(verdicts[1], Verdict::ACCEPTED);
    topic.create("payments", &[]).await;
    let verdicts = publisher.publish(&missing).await.unwrap();
    assert!(verdicts.iter().all(Verdict::is_accepted), "{verdicts:?}");
}

/// Another relay has taken over while one was paused, and publishes the same.
#[tokio::test]
async fn of_two_relays_only_one_writes_and_nothing_is_there_twice() {
    let Some(topic) = start().await else { return };
    let sent = batch(topic.name, 0, 300, 20);
    let (one, other) = (topic.publisher(), topic.publisher());
    one.publish(&sent[..100]).await.unwrap();
    let again = other.publish(&sent[..200]).await.unwrap();
    let known = |verdict: &&Verdict| **verdict == Verdict::Accepted { duplicate: true };
    assert_eq!(again.iter().filter(known).count(), 100);
    // The first does not know yet that it is fenced. Its call fails before anything is written.
    let outage = one.publish(&sent[100..300]).await.unwrap_err();
    assert!(outage.reason.contains("somebody else"), "{outage}");
    // It would be wrong for it to go on, but still nothing would be there twice.
    let last = one.publish(&sent[100..300]).await.unwrap();
    assert_eq!(last.iter().filter(known).count(), 100);
    let arrived = topic.arrived().await;
    super::destination::assert_once(&sent, &arrived);
    super::destination::assert_in_order(&sent, &arrived);
}

/// A server with TLS, at which a user has to say who it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_says_who_it_is_over_tls() {
    let secured = tokio::task::block_in_place(|| servers::SecuredKafka::start("relay", "s3cret"));
    let Some(secured) = secured else { return };
    let security = AuthConfig::sasl_plain("relay", "s3cret")
        .with_tls(TlsConfig::new().with_ca_cert(secured.authority().to_string_lossy()));
    let client = Client::builder(secured.server().bootstrap()).security(security);
    create(&client.connect().await.unwrap(), "orders", &[]).await;
    let publisher = |password: &str| {
        let mut servers = KafkaServers::new([secured.server().bootstrap()]);
        servers.credentials = KafkaCredentials::Plain {
            name: "relay".to_owned(),
            password: password.to_owned(),
        };
        servers.tls = Some(KafkaTls {
            root_certificates: Some(secured.authority()),
            client_certificate: None,
        });
        let mut options = KafkaOptions::new(servers, "relay");
        options.timeout = LIMIT;
        Kafka::new(options).unwrap()
    };
    let welcome = publisher("s3cret");
    for number in 0..3 {
        let published = welcome.publish(&batch("orders", 10 * number, 10, 3)).await;
        let verdicts = published.unwrap_or_else(|outage| panic!("{outage}"));
        assert!(verdicts.iter().all(Verdict::is_accepted), "{verdicts:?}");
    }
    let outage = publisher("wr0ng").publish(&batch("orders", 30, 1, 1)).await;
    let said = format!("{outage:?}");
    assert!(outage.is_err() && !said.contains("wr0ng"), "{said}");
}

#[test]
fn wrong_options_are_refused() {
    let error = |change: fn(&mut KafkaOptions)| {
        let mut options = KafkaOptions::new(KafkaServers::new(["localhost:9092"]), "relay");
        change(&mut options);
        Kafka::new(options).unwrap_err().to_string()
    };
    assert!(error(|options| options.name = "a b".to_owned()).contains("a b"));
    assert!(error(|options| options.topic = "{key}".to_owned()).contains("{topic}"));
    assert!(error(|options| options.topic = "a b".to_owned()).contains("other characters"));
    assert!(error(|options| options.servers.addresses.clear()).contains("none is given"));
}
