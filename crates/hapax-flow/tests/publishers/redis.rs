//! Redis Streams, with a real server.

use std::time::Duration;

use hapax_flow::publish::{
    Envelope, Outage, Publisher, RedisOptions, RedisStreams, RedisTrim, Verdict,
};
use hapax_testkit::servers::{Redis as Server, RedisProgram, SecuredRedis};
use redis::FromRedisValue;

use super::destination::{Arrived, Destination, LIMIT, Mortal, assert_once};
use super::messages::{batch, message};

suite!(of all: start);
suite!(of mortal: start);

/// A server that has on disk what it has confirmed.
struct Redis(Server);

const ON_DISK: [(&str, &str); 2] = [("appendonly", "yes"), ("appendfsync", "always")];

async fn start() -> Option<Redis> {
    Server::start(&ON_DISK).map(Redis)
}

impl Redis {
    fn with(&self, change: impl FnOnce(&mut RedisOptions)) -> RedisStreams {
        let mut options = RedisOptions::new(self.0.url());
        options.server.timeout = LIMIT;
        change(&mut options);
        RedisStreams::new(options).unwrap()
    }

    fn count(&self, stream: &str) -> u64 {
        self.0.cli(&["XLEN", stream]).trim().parse().unwrap()
    }
}

impl Destination for Redis {
    type Publisher = RedisStreams;

    fn publisher(&self) -> RedisStreams {
        self.with(|_| {})
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let client = redis::Client::open(self.0.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        connection.set_response_timeout(Duration::from_secs(20));
        let mut command = redis::cmd("XRANGE");
        command.arg("orders").arg("-").arg("+");
        let entries: Vec<redis::Value> = command.query_async(&mut connection).await.unwrap();
        entries.into_iter().map(arrived).collect()
    }
}

fn arrived(entry: redis::Value) -> Arrived {
    let (_, fields): (String, Vec<(String, Vec<u8>)>) =
        FromRedisValue::from_redis_value(entry).unwrap();
    let find = |name: &str| {
        let found = fields.iter().find(|(given, _)| given == name);
        found.map(|(_, value)| value.clone())
    };
    let text = |value: Vec<u8>| String::from_utf8(value).unwrap();
    Arrived {
        id: text(find("ce-id").unwrap()),
        key: find("ce-partitionkey").map(text),
        payload: find("payload").unwrap(),
        headers: fields
            .into_iter()
            .filter(|(name, _)| name != "payload")
            .map(|(name, value)| (name, text(value)))
            .collect(),
    }
}

impl Mortal for Redis {
    fn kill(&mut self) {
        self.0.kill();
    }

    fn restart(&mut self) {
        self.0.restart();
    }

    fn pause(&self) {
        self.0.pause();
    }

    fn resume(&self) {
        self.0.resume();
    }
}

async fn outage(publisher: &RedisStreams, batch: &[Envelope]) -> Outage {
    publisher.publish(batch).await.unwrap_err()
}

#[tokio::test]
async fn streams_are_named_by_the_template() {
    let Some(redis) = start().await else { return };
    let publisher = redis.with(|options| options.stream = "shop:{topic}:v1".into());
    let sent = [message("orders", 0, None), message("payments", 1, None)];
    publisher.publish(&sent).await.unwrap();
    assert_eq!(redis.count("shop:orders:v1"), 1);
    assert_eq!(redis.count("shop:payments:v1"), 1);
}

#[tokio::test]
async fn a_name_that_something_else_has_stops_only_its_keys() {
    let Some(redis) = start().await else { return };
    redis.0.cli(&["SET", "payments", "not a stream"]);
    let key = || Some("a".to_owned());
    let sent = [
        message("payments", 0, key()),
        message("orders", 1, key()),
        message("payments", 2, key()),
        message("payments", 3, None),
    ];
    let verdicts = redis.publisher().publish(&sent).await.unwrap();
    let why = |verdict: &Verdict| match verdict {
        Verdict::Failed(why) => why.contains("other than a stream"),
        _ => false,
    };
    assert!(why(&verdicts[0]) && why(&verdicts[3]), "{verdicts:?}");
    assert_eq!(verdicts[1..3], [Verdict::ACCEPTED, Verdict::NotSent]);
    assert_once(&sent[1..2], &redis.arrived().await);
}

#[tokio::test]
async fn a_full_server_is_an_outage_until_it_has_room() {
    let Some(redis) = start().await else { return };
    let publisher = redis.publisher();
    redis.0.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let sent = batch("orders", 0, 10, 3);
    let reason = outage(&publisher, &sent).await.reason;
    assert!(reason.contains("raise its maxmemory"), "{reason}");
    redis.0.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    publisher.publish(&sent).await.unwrap();
    assert_once(&sent, &redis.arrived().await);
}

#[tokio::test]
async fn a_server_that_may_not_write_is_an_outage() {
    let Some(redis) = start().await else { return };
    let Some(other) = Server::start(&[]) else {
        return;
    };
    let sent = batch("orders", 0, 3, 3);
    let publisher = redis.publisher();
    let port = other.port().to_string();
    redis.0.cli(&["REPLICAOF", "127.0.0.1", &port]);
    let reason = outage(&publisher, &sent).await.reason;
    assert!(reason.contains("takes no writes"), "{reason}");
    redis.0.cli(&["REPLICAOF", "NO", "ONE"]);
    redis
        .0
        .cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let reason = outage(&publisher, &sent).await.reason;
    assert!(reason.contains("fewer replicas"), "{reason}");
    redis
        .0
        .cli(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    publisher.publish(&sent).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_still_reads_its_data_is_an_outage() {
    let Some(mut redis) = start().await else {
        return;
    };
    let publisher = redis.publisher();
    let sent = batch("orders", 0, 300, 30);
    publisher.publish(&sent).await.unwrap();
    // Each of these takes it a while to read.
    let fill = "for i = 1, 8000 do redis.call('SET', 'k' .. i, i) end";
    redis.0.cli(&["EVAL", fill, "0"]);
    redis.0.cli(&["CONFIG", "SET", "key-load-delay", "100"]);
    redis.0.cli(&["CONFIG", "REWRITE"]);
    redis.kill();
    let more = batch("orders", 300, 10, 10);
    let publishing = tokio::spawn(async move {
        let mut reasons = Vec::new();
        while let Err(outage) = publisher.publish(&more).await {
            reasons.push(outage.reason);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        reasons
    });
    tokio::task::block_in_place(|| redis.0.restart());
    let reasons = publishing.await.unwrap();
    let loading = |reason: &String| reason.contains("still reads its data");
    assert!(reasons.iter().any(loading), "{reasons:?}");
}

#[tokio::test]
async fn a_relay_that_was_paused_is_kept_out() {
    let Some(redis) = start().await else { return };
    let (one, other) = (redis.publisher(), redis.publisher());
    let sent = batch("orders", 0, 3, 3);
    one.take_place("to-redis").await.unwrap();
    one.publish(&sent[..1]).await.unwrap();
    // The lease of the first is over, and another relay has taken the reader.
    other.take_place("to-redis").await.unwrap();
    other.publish(&sent[1..2]).await.unwrap();
    for _ in 0..2 {
        let reason = outage(&one, &sent[2..]).await.reason;
        assert!(reason.contains("to-redis"), "{reason}");
    }
    assert_once(&sent[..2], &redis.arrived().await);
    // Another reader has another place.
    let third = redis.publisher();
    third.take_place("another").await.unwrap();
    other.publish(&sent[2..]).await.unwrap();
    // It gets the reader back.
    one.take_place("to-redis").await.unwrap();
    one.publish(&sent[2..]).await.unwrap();
    outage(&other, &sent).await;
    assert_eq!(redis.count("orders"), 4);
}

#[tokio::test]
async fn what_arrives_late_is_kept_out() {
    let Some(redis) = start().await else { return };
    let publisher = redis.publisher();
    publisher.take_place("to-redis").await.unwrap();
    let sent = batch("orders", 0, 2, 1);
    redis.pause();
    // It stays in the buffer of the connection.
    outage(&publisher, &sent[..1]).await;
    let outage = outage(&publisher, &sent[1..]).await;
    assert!(!outage.reason.is_empty());
    redis.resume();
    publisher.take_place("to-redis").await.unwrap();
    publisher.publish(&sent).await.unwrap();
    let arrived = redis.arrived().await;
    super::destination::assert_in_order(&sent, &arrived);
}

#[tokio::test]
async fn streams_are_trimmed_by_length_or_age() {
    let Some(redis) = start().await else { return };
    let sent = batch("orders", 0, 1000, 10);
    let by_length = redis.with(|options| options.trim = RedisTrim::Length(100));
    by_length.publish(&sent).await.unwrap();
    let left = redis.count("orders");
    assert!((100..400).contains(&left), "{left}");
    redis.0.cli(&["DEL", "orders"]);
    let by_age = |age| redis.with(|options| options.trim = RedisTrim::Age(age));
    by_age(Duration::from_secs(3600))
        .publish(&sent)
        .await
        .unwrap();
    assert_eq!(redis.count("orders"), 1000);
    tokio::time::sleep(Duration::from_millis(20)).await;
    let short = by_age(Duration::from_millis(1));
    short.publish(&sent[..100]).await.unwrap();
    let left = redis.count("orders");
    assert!((100..400).contains(&left), "{left}");
}

#[tokio::test]
async fn valkey_takes_messages_too() {
    let Some(server) = Server::start_with(RedisProgram::Valkey, &ON_DISK, &[]) else {
        return;
    };
    let valkey = Redis(server);
    let sent = batch("orders", 0, 100, 10);
    let publisher = valkey.publisher();
    publisher.take_place("to-valkey").await.unwrap();
    publisher.publish(&sent).await.unwrap();
    assert_once(&sent, &valkey.arrived().await);
}

#[tokio::test]
async fn tls_is_spoken_with_those_whom_the_relay_trusts() {
    let Some(redis) = SecuredRedis::start(&ON_DISK) else {
        return;
    };
    let publisher = |ca_file| {
        let mut options = RedisOptions::new(redis.url());
        options.server.ca_file = Some(ca_file);
        options.server.timeout = LIMIT;
        RedisStreams::new(options).unwrap()
    };
    let sent = batch("orders", 0, 10, 3);
    let verdicts = publisher(redis.authority()).publish(&sent).await.unwrap();
    assert!(verdicts.iter().all(Verdict::is_accepted), "{verdicts:?}");
    let outage = publisher(redis.other_authority()).publish(&sent).await;
    let said = format!("{outage:?}");
    assert!(outage.is_err() && !said.contains("s3cret"), "{said}");
    assert_eq!(redis.server().cli(&["XLEN", "orders"]).trim(), "10");
}
