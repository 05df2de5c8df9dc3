//! Kafka, with a real server.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hapax_flow::consume::{
    KafkaCredentials, KafkaServers, KafkaSource, KafkaSourceOptions, KafkaTls, Retention, Source,
};
use hapax_flow::publish::Envelope;
use hapax_flow::publish::cloud_events::CloudEvents;
use hapax_testkit::harness::Authority;
use hapax_testkit::servers;
use krafka::admin::{CreateTopicsOptions, NewTopic};
use krafka::auth::{AuthConfig, TlsConfig};
use krafka::{Kafka as Client, Record};

use super::broker::{Broker, Mortal};
use super::messages::message;
use super::storm::{ACK_TIME, Remote, storm};

suite!(of all: start);

mod mortal {
    use super::mortal;
    suite!(of mortal: mortal);
}

storm!(
    Topic,
    mortal,
    "kafka::a_storm_of_kills_and_repeats_has_each_effect_once"
);

/// Large enough for the largest message with its headers.
const LARGE: &str = "message.max.bytes=2097152";

/// Long enough for a machine that is busy.
const SESSION: Duration = Duration::from_secs(3);

/// A topic and a group of its own, at a server of its own or at one that tests share.
pub(crate) struct Topic {
    own: Option<servers::Kafka>,
    bootstrap: String,
    name: &'static str,
}

async fn start() -> Option<Topic> {
    static SHARED: OnceLock<Option<servers::Kafka>> = OnceLock::new();
    let shared = SHARED.get_or_init(|| servers::Kafka::start(LARGE));
    let bootstrap = shared.as_ref()?.bootstrap();
    Some(Topic::make(None, bootstrap, &[]).await)
}

pub(crate) async fn mortal() -> Option<Topic> {
    let own = servers::Kafka::start(LARGE)?;
    let bootstrap = own.bootstrap();
    Some(Topic::make(Some(own), bootstrap, &[]).await)
}

async fn with(settings: &[(&str, &str)]) -> Option<Topic> {
    let bootstrap = start().await?.bootstrap;
    Some(Topic::make(None, bootstrap, settings).await)
}

impl Topic {
    async fn make(
        own: Option<servers::Kafka>,
        bootstrap: String,
        settings: &[(&str, &str)],
    ) -> Topic {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name: &'static str = Box::leak(format!("orders-{number}").into_boxed_str());
        let topic = Topic {
            own,
            bootstrap,
            name,
        };
        topic.create(name, settings).await;
        topic
    }

    pub(crate) async fn create(&self, name: &str, settings: &[(&str, &str)]) {
        let mut topic = NewTopic::new(name, 4, 1).unwrap();
        for (setting, value) in settings {
            topic = topic.with_config(*setting, *value);
        }
        let client = Client::builder(&self.bootstrap).connect().await.unwrap();
        let admin = client.admin();
        let made = admin.create_topics([topic], CreateTopicsOptions::default());
        for made in made.await.unwrap().into_values() {
            made.unwrap();
        }
    }

    /// What Java reads under `read_committed`: of each message its headers and its payload.
    pub(crate) fn read_by_java(&self, topic: &str, expected: usize) -> Vec<String> {
        let own = self.own.as_ref().unwrap();
        tokio::task::block_in_place(|| own.read_by_java(topic, expected))
    }

    pub(crate) fn servers(&self) -> KafkaServers {
        KafkaServers::new([self.bootstrap.as_str()])
    }

    /// Writes messages as the destination does, in one transaction.
    async fn write(&self, messages: &[Envelope]) -> krafka::Result<()> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let limit = Duration::from_secs(3);
        let client = Client::builder(&self.bootstrap).request_timeout(limit);
        let producer = client.connect_timeout(limit).connect().await?.producer();
        let producer = producer
            .max_block(limit)
            .delivery_timeout(2 * limit)
            .build_transactional(format!("test-{}-{number}", self.name))
            .await?;
        let events = CloudEvents::default();
        producer.begin()?;
        for message in messages {
            let (headers, payload) = events.wrap_plainly(message, "ce_");
            let mut record = Record::new(self.name, payload);
            if let Some(key) = &message.key {
                record = record.key(key.clone());
            }
            for (name, value) in headers {
                record = record.header(name, value.into_owned());
            }
            drop(producer.enqueue(record).await?);
        }
        producer.commit().await?;
        producer.close().await
    }

    fn options(&self) -> KafkaSourceOptions {
        KafkaSourceOptions::new(self.servers(), self.name, [self.name])
    }
}

fn source(mut options: KafkaSourceOptions, ack_time: Duration, session: Duration) -> KafkaSource {
    options.timeout = Duration::from_secs(2);
    options.session = session;
    options.patience = ack_time.max(Duration::from_secs(5));
    KafkaSource::new(options).unwrap()
}

impl Broker for Topic {
    type Source = KafkaSource;

    fn topic(&self) -> &'static str {
        self.name
    }

    fn source(&self, ack_time: Duration) -> KafkaSource {
        source(self.options(), ack_time, SESSION)
    }

    /// Not with the destination, which knows a repeat.
    async fn publish(&self, messages: &[Envelope]) {
        while let Err(error) = self.write(messages).await {
            println!("{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Mortal for Topic {
    fn kill(&mut self) {
        self.own.as_mut().unwrap().kill();
    }

    fn restart(&mut self) {
        self.own.as_mut().unwrap().restart();
    }
}

impl Remote for Topic {
    fn envs(&self) -> Vec<(&'static str, String)> {
        vec![
            ("STORM_KAFKA", self.bootstrap.clone()),
            ("STORM_TOPIC", self.name.to_owned()),
        ]
    }

    fn connect() -> KafkaSource {
        let read = |name| std::env::var(name).expect("the parent says where");
        let (servers, topic) = (
            KafkaServers::new([read("STORM_KAFKA")]),
            read("STORM_TOPIC"),
        );
        source(
            KafkaSourceOptions::new(servers, topic.as_str(), [topic.as_str()]),
            ACK_TIME,
            ACK_TIME,
        )
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_is_that_of_the_topic() {
    let hour = Duration::from_hours(1);
    for (settings, retention) in [
        (&[("retention.ms", "3600000")][..], Retention::Limited(hour)),
        (&[("retention.ms", "-1")], Retention::Forever),
        (&[("cleanup.policy", "compact")], Retention::Forever),
        (&[], Retention::Limited(7 * 24 * hour)),
    ] {
        let Some(topic) = with(settings).await else {
            return;
        };
        let mut source = topic.source(ACK_TIME);
        // A topic that has just been made may not be known yet.
        let ended = Instant::now() + Duration::from_secs(20);
        let told = loop {
            match source.retention().await {
                Ok(told) => break told,
                Err(outage) => assert!(Instant::now() < ended, "{outage}"),
            }
        };
        assert_eq!(told, retention, "{settings:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_missing_is_an_outage() {
    let Some(topic) = start().await else { return };
    let mut options = topic.options();
    options.topics.push("payments".to_owned());
    let mut source = source(options, ACK_TIME, SESSION);
    let outage = source.retention().await.unwrap_err();
    assert!(outage.reason.contains("payments"), "{outage}");
}

/// What Kafka's own tools write is no CloudEvent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_another_producer_arrives_without_an_id() {
    let Some(server) = servers::Kafka::start(LARGE) else {
        return;
    };
    let bootstrap = server.bootstrap();
    let topic = Topic::make(Some(server), bootstrap, &[]).await;
    topic
        .own
        .as_ref()
        .unwrap()
        .write_by_java(topic.name, &["{}"]);
    let mut source = topic.source(ACK_TIME);
    let received = source.receive(10).await.unwrap();
    let message = &received[0].message;
    assert_eq!((&message.id, &message.key), (&None, &None));
    assert_eq!(message.payload, "{}");
}

/// A member that comes waits for what the first works on, and gets none of it if it is
/// acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_member_does_not_get_what_another_has_done_meanwhile() {
    let Some(topic) = start().await else { return };
    let sent: Vec<_> = (0..100)
        .map(|number| message(topic.name, number, Some(format!("key {number}"))))
        .collect();
    topic.publish(&sent).await;
    let mut one = topic.source(Duration::from_secs(60));
    let mut received = Vec::new();
    while received.len() < sent.len() {
        received.extend(one.receive(100).await.unwrap());
    }
    let mut other = topic.source(Duration::from_secs(60));
    let working = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let tags: Vec<_> = received.iter().map(|one| one.tag.clone()).collect();
        one.acknowledge(&tags).await.unwrap();
        // Until the other has its partitions.
        tokio::time::sleep(Duration::from_secs(3)).await;
    };
    tokio::select! {
        () = working => {}
        again = other.receive(10) => panic!("{again:?} came"),
    }
}

/// A server with TLS, at which a user has to say who it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_says_who_it_is_over_tls() {
    let Some(secured) = servers::SecuredKafka::start("relay", "s3cret") else {
        return;
    };
    let (server, trusted) = (secured.server(), secured.authority());
    let files = tempfile::tempdir().unwrap();
    let other = files.path().join("other.pem");
    Authority::default().write(&other);
    let security = AuthConfig::sasl_plain("relay", "s3cret")
        .with_tls(TlsConfig::new().with_ca_cert(trusted.to_string_lossy()));
    let client = Client::builder(server.bootstrap()).security(security);
    let client = client.connect().await.unwrap();
    let admin = client.admin();
    let topic = NewTopic::new("orders", 1, 1).unwrap();
    let made = admin.create_topics([topic], CreateTopicsOptions::default());
    assert!(made.await.unwrap().into_values().all(|made| made.is_ok()));
    let producer = client.producer().build().await.unwrap();
    drop(producer.send(Record::new("orders", "{}")).await.unwrap());
    producer.close().await.unwrap();
    tokio::task::block_in_place(|| secured.add_scram("scr4m"));
    let (name, wrong) = ("relay".to_owned(), "wr0ng".to_owned());
    let plain = |password: &str| KafkaCredentials::Plain {
        name: name.clone(),
        password: password.to_owned(),
    };
    let scram256 = |password: &str| KafkaCredentials::ScramSha256 {
        name: name.clone(),
        password: password.to_owned(),
    };
    let scram512 = |password: &str| KafkaCredentials::ScramSha512 {
        name: name.clone(),
        password: password.to_owned(),
    };
    for (credentials, root, is_right) in [
        (plain("s3cret"), &trusted, true),
        (scram256("scr4m"), &trusted, true),
        (scram512("scr4m"), &trusted, true),
        (scram512(&wrong), &trusted, false),
        (plain("s3cret"), &other, false),
        (plain(&wrong), &trusted, false),
        (KafkaCredentials::None, &trusted, false),
    ] {
        let shown = format!("{credentials:?}");
        let mut servers = KafkaServers::new([server.bootstrap()]);
        servers.credentials = credentials;
        servers.tls = Some(KafkaTls {
            root_certificates: Some(root.clone()),
            client_certificate: None,
        });
        let mut options = KafkaSourceOptions::new(servers, shown.as_str(), ["orders"]);
        options.timeout = Duration::from_secs(20);
        let mut source = KafkaSource::new(options).unwrap();
        let told = source.retention().await;
        assert_eq!(told.is_ok(), is_right, "{shown}: {told:?}");
        if is_right {
            let received = source.receive(10).await.unwrap();
            assert_eq!(received[0].message.payload, "{}");
            assert_eq!(received.len(), 1);
        }
        let said = format!("{told:?} {source:?}");
        let secrets = ["s3cret", "scr4m", "wr0ng"];
        assert!(
            !secrets.iter().any(|secret| said.contains(secret)),
            "{said}"
        );
    }
}
