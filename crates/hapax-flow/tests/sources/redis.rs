//! Redis Streams, with a real server.

use std::time::Duration;

use hapax_flow::consume::{RedisId, RedisStreamOptions, RedisStreamSource, Retention, Source};
use hapax_flow::publish::{Envelope, Publisher, RedisOptions, RedisStreams, Verdict};
use hapax_testkit::servers::{Redis as Server, SecuredRedis};

use super::broker::{Broker, Mortal};
use super::messages::batch;
use super::storm::{ACK_TIME, Remote};

suite!(of all: start);
suite!(of mortal: start);
super::storm::storm!(
    Redis,
    start,
    "redis::a_storm_of_kills_and_repeats_has_each_effect_once"
);

/// A server that has on disk what it has confirmed.
struct Redis(Server);

async fn start() -> Option<Redis> {
    let on_disk = [("appendonly", "yes"), ("appendfsync", "always")];
    Server::start(&on_disk).map(Redis)
}

fn options(url: &str, ack_time: Duration) -> RedisStreamOptions {
    let mut options = RedisStreamOptions::new(url, "orders", "stock");
    options.idle = ack_time;
    options.server.timeout = Duration::from_secs(3);
    options
}

impl Redis {
    fn with(&self, change: impl FnOnce(&mut RedisStreamOptions)) -> RedisStreamSource {
        let mut options = options(&self.0.url(), Duration::from_secs(30));
        change(&mut options);
        RedisStreamSource::new(options).unwrap()
    }
}

impl Broker for Redis {
    type Source = RedisStreamSource;

    fn source(&self, ack_time: Duration) -> RedisStreamSource {
        self.with(|options| options.idle = ack_time)
    }

    async fn publish(&self, messages: &[Envelope]) {
        let publisher = RedisStreams::new(RedisOptions::new(self.0.url())).unwrap();
        loop {
            match publisher.publish(messages).await {
                Ok(verdicts) if verdicts.iter().all(Verdict::is_accepted) => return,
                Ok(verdicts) => panic!("{verdicts:?}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }
}

impl Mortal for Redis {
    fn kill(&mut self) {
        self.0.kill();
    }

    fn restart(&mut self) {
        self.0.restart();
    }
}

impl Remote for Redis {
    fn envs(&self) -> Vec<(&'static str, String)> {
        vec![("STORM_REDIS", self.0.url())]
    }

    fn connect() -> RedisStreamSource {
        let url = std::env::var("STORM_REDIS").expect("the parent says where");
        RedisStreamSource::new(options(&url, ACK_TIME)).unwrap()
    }
}

#[tokio::test]
async fn a_stream_that_was_flushed_is_made_again() {
    let Some(redis) = start().await else { return };
    let mut source = redis.with(|_| {});
    redis.publish(&batch("orders", 0, 3, 3)).await;
    let received = source.receive(3).await.unwrap();
    redis.0.cli(&["FLUSHALL"]);
    let tags: Vec<_> = received.iter().map(|one| one.tag.clone()).collect();
    // There is nothing to tell the server about them.
    source.keep(&tags).await.unwrap();
    source.acknowledge(&tags).await.unwrap();
    source.give_back(&tags).await.unwrap();
    assert_eq!(source.lag().await.unwrap(), None);
    let (received, ()) = tokio::join!(source.receive(9), async {
        redis.publish(&batch("orders", 3, 2, 2)).await;
    });
    assert_eq!(received.unwrap()[0].message.id.as_deref(), Some(ID_OF_3));
}

/// The id of the message with the number 3.
const ID_OF_3: &str = "00000000-0000-0003-0000-000000000000";

#[tokio::test]
async fn deliveries_are_counted_across_members() {
    let Some(redis) = start().await else { return };
    redis.publish(&batch("orders", 0, 1, 1)).await;
    for count in 1..=4 {
        let mut source = redis.with(|_| {});
        let received = source.receive(1).await.unwrap();
        assert_eq!(received[0].message.deliveries, Some(count));
        source.give_back(&[received[0].tag.clone()]).await.unwrap();
    }
}

#[tokio::test]
async fn what_another_member_took_over_is_not_kept() {
    let Some(redis) = start().await else { return };
    let short = Duration::from_millis(300);
    redis.publish(&batch("orders", 0, 1, 1)).await;
    let mut zombie = redis.with(|options| options.idle = short);
    let received = zombie.receive(1).await.unwrap();
    let mut other = redis.with(|options| options.idle = short);
    assert_eq!(other.receive(1).await.unwrap().len(), 1);
    let owner = || redis.0.cli(&["XPENDING", "orders", "stock", "-", "+", "9"]);
    let before = owner();
    let tags = [received[0].tag.clone()];
    zombie.keep(&tags).await.unwrap();
    zombie.give_back(&tags).await.unwrap();
    let name = |text: &str| text.lines().nth(1).map(str::to_owned);
    assert_eq!(name(&owner()), name(&before), "{before}");
}

#[tokio::test]
async fn what_was_removed_while_it_was_open_is_not_delivered_again() {
    let Some(redis) = start().await else { return };
    redis.publish(&batch("orders", 0, 2, 2)).await;
    let mut source = redis.with(|_| {});
    let received = source.receive(2).await.unwrap();
    redis.0.cli(&["XTRIM", "orders", "MAXLEN", "1"]);
    let tags: Vec<_> = received.iter().map(|one| one.tag.clone()).collect();
    source.give_back(&tags).await.unwrap();
    let again = source.receive(9).await.unwrap();
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].message.id, received[1].message.id);
    assert_eq!(source.retention().await.unwrap(), Retention::Unknown);
}

#[tokio::test]
async fn the_id_of_a_producer_without_cloud_events_may_be_in_another_field() {
    let Some(redis) = start().await else { return };
    redis.0.cli(&[
        "XADD",
        "orders",
        "*",
        "Event",
        "17/placed",
        "data",
        "{}",
        "item",
        "hat",
    ]);
    let mut source = redis.with(|options| {
        options.id = RedisId::Field("Event".to_owned());
        options.payload = "data".to_owned();
    });
    let received = source.receive(1).await.unwrap();
    let message = &received[0].message;
    assert_eq!(message.id.as_deref(), Some("17/placed"));
    assert_eq!(message.header("item"), Some("hat"));
    assert_eq!((&message.payload[..], message.at), (&b"{}"[..], None));
}

#[tokio::test]
async fn a_wrong_password_is_an_outage_that_does_not_tell_it() {
    let Some(server) = Server::start(&[("requirepass", "secret")]) else {
        return;
    };
    let right = options(&server.url(), Duration::from_secs(30));
    let mut right = RedisStreamSource::new(right).unwrap();
    assert_eq!(right.lag().await.unwrap(), Some(0));
    for credentials in ["", ":wrong-secret@"] {
        let url = format!("redis://{credentials}{}", server.address());
        let wrong = options(&url, Duration::from_secs(30));
        let outage = RedisStreamSource::new(wrong).unwrap().receive(1).await;
        let outage = outage.unwrap_err();
        assert!(outage.reason.contains("password"), "{outage}");
        assert!(!outage.reason.contains("secret"), "{outage}");
    }
}

#[tokio::test]
async fn tls_is_spoken_with_those_whom_the_consumer_trusts() {
    let Some(redis) = SecuredRedis::start(&[]) else {
        return;
    };
    let publisher = RedisStreams::new(RedisOptions::new(redis.server().url())).unwrap();
    publisher.publish(&batch("orders", 0, 1, 1)).await.unwrap();
    let source = |ca_file| {
        let mut options = options(&redis.url(), ACK_TIME);
        options.server.ca_file = Some(ca_file);
        RedisStreamSource::new(options).unwrap()
    };
    let received = source(redis.authority()).receive(1).await.unwrap();
    assert_eq!(received.len(), 1);
    let outage = source(redis.other_authority()).receive(1).await;
    let said = format!("{outage:?}");
    assert!(outage.is_err() && !said.contains("s3cret"), "{said}");
}
