//! From Kafka to Kafka: what is made of each message is there once, whoever dies and whenever.

use std::collections::BTreeMap;
use std::time::Duration;

use hapax::BoxError;
use hapax::outbox::Message;
use hapax_flow::consume::{KafkaPipe, KafkaPipeOptions, KafkaServers, Received};
use hapax_flow::publish::Envelope;
use hapax_testkit::crash::{announce, role};
use hapax_testkit::random::Random;
use tokio_util::sync::CancellationToken;

use super::broker::Broker;
use super::kafka::{self, Topic};
use super::messages::message;
use super::storm::{ACK_TIME, Members, Remote, Step, deliveries, finish, pass, told_to_stop};

const MADE: &str = "shipments";
const PARKED: &str = "parked";

/// A pipe that reads a topic, as a group of the same name.
fn pipe(servers: KafkaServers, topic: &str) -> KafkaPipe {
    KafkaPipe::new(options(servers, topic)).unwrap()
}

fn options(servers: KafkaServers, topic: &str) -> KafkaPipeOptions {
    let mut options = KafkaPipeOptions::new(servers, topic, [topic]);
    options.parked = PARKED.to_owned();
    options.session = ACK_TIME;
    options.timeout = Duration::from_secs(2);
    options.batch_max = 50;
    options.retry.attempts_max = 2;
    options.try_timeout = Duration::from_secs(2);
    options
}

/// Campaigns publish 20,000 messages one to ten times.
#[test]
fn what_is_made_of_each_message_is_there_once() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    if role().is_some() {
        return runtime.block_on(member());
    }
    runtime.block_on(async {
        if let Some(topic) = kafka::mortal().await {
            storm_over(topic).await;
        }
    });
}

async fn member() {
    let read = |name| std::env::var(name).unwrap();
    let pipe = pipe(
        KafkaServers::new([read("STORM_KAFKA")]),
        &read("STORM_TOPIC"),
    );
    let progress = pipe.progress();
    pipe.run(told_to_stop(), ship).await;
    announce(format!("duplicates {}", progress.counts().duplicates));
}

async fn ship(order: Received) -> Result<Vec<Message>, BoxError> {
    pass(Step::Received);
    let key = order.key.clone().ok_or("no key")?;
    let shipment = Message::new(MADE, key, order.id().to_owned());
    pass(Step::EffectWritten);
    Ok(vec![order.causes("shipped", shipment)])
}

async fn storm_over(mut topic: Topic) {
    let is_full = std::env::var("HAPAX_CAMPAIGN").is_ok_and(|size| size == "full");
    let count = if is_full { 20_000 } else { 500 };
    for name in [MADE, PARKED] {
        topic.create(name, &[]).await;
    }
    let mut random = Random::from_env(23);
    let published = deliveries(topic.topic(), count, &mut random);
    let test = "pipe::what_is_made_of_each_message_is_there_once";
    let passes_max = if is_full { 1_000 } else { 100 };
    let mut members = Members::begin(test, topic.envs(), passes_max, random);
    let chunks = if is_full { 120 } else { 12 };
    for chunk in published.chunks(published.len().div_ceil(chunks)) {
        topic.publish(chunk).await;
        tokio::task::block_in_place(|| {
            members.replace_ended();
            members.strike(&mut topic);
        });
    }
    finish(&mut members, &topic).await;
    let placed = topic.read_by_java(topic.topic(), published.len());
    let placed: Vec<[String; 2]> = placed.iter().map(|line| [key(line), id(line)]).collect();
    let shipped = topic.read_by_java(MADE, placed.len());
    let shipped: Vec<[String; 2]> = shipped
        .iter()
        .map(|line| [key(line), payload(line)])
        .collect();
    let faults = &members.faults;
    hapax_testkit::report!(
        "pipe: {count} messages stood in {} places, {} were made of them; {faults}",
        placed.len(),
        shipped.len()
    );
    assert!(
        faults.kills > 0 && faults.stops > 0 && faults.broker_kills > 0,
        "void: {faults}"
    );
    assert!(placed.len() >= published.len());
    assert_eq!(by_key(&placed), by_key(&shipped), "{faults}");
    let parked = topic.read_by_java(PARKED, 0);
    assert!(parked.is_empty(), "{parked:?}");
}

/// Runs a pipe until so many messages are done with.
async fn run_until_done<F>(
    pipe: KafkaPipe,
    count: u64,
    handler: impl Fn(Received) -> F + Send + Sync,
) where
    F: Future<Output = Result<Vec<Message>, BoxError>> + Send,
{
    let (stop, progress) = (CancellationToken::new(), pipe.progress());
    let done = async {
        while progress.counts().applied + progress.counts().parked < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.cancel();
    };
    let both = async { tokio::join!(pipe.run(stop.clone(), handler), done) };
    let ended = tokio::time::timeout(Duration::from_secs(60), both).await;
    ended.unwrap_or_else(|_| panic!("{:?} of {count}", progress.counts()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_handled_is_parked_and_the_others_go_on() {
    let Some(topic) = kafka::mortal().await else {
        return;
    };
    topic.create(MADE, &[("max.message.bytes", "2000")]).await;
    topic.create(PARKED, &[]).await;
    let sent: Vec<Envelope> = (0..20)
        .map(|number| message(topic.topic(), number, Some(format!("k-{}", number % 3))))
        .collect();
    topic.publish(&sent).await;
    let name = topic.topic();
    let handler = |order: Received| async move {
        let key = order.key.clone().unwrap_or_default();
        let made = match &order.payload[..] {
            b"3" => return Err("no stock".into()),
            b"5" => panic!("at the disco"),
            b"7" => Message::new(MADE, key, vec![b'x'; 5000]),
            b"9" => Message::new(name, key, "again"),
            b"11" => Message::new("a/b", key, ""),
            b"13" => std::future::pending().await,
            payload => Message::new(MADE, key, payload.to_vec()),
        };
        Ok::<_, BoxError>(vec![order.causes("shipped", made)])
    };
    run_until_done(pipe(topic.servers(), name), 20, handler).await;
    let made = topic.read_by_java(MADE, 14);
    assert_eq!(made.len(), 14, "{made:?}");
    let parked = topic.read_by_java(PARKED, 6);
    for (number, reason) in [
        ("3", "no stock"),
        ("5", "the handler panicked: at the disco"),
        ("7", "max.message.bytes"),
        ("9", "would be read again"),
        ("11", "no name of a topic"),
        ("13", "took longer than"),
    ] {
        let line = parked.iter().find(|line| payload(line) == number);
        let line = line.unwrap_or_else(|| panic!("{number} is not parked: {parked:?}"));
        let told = header(line, "hapax-parked-reason");
        assert!(told.contains(reason), "{number}: {told}");
        assert!(header(line, "hapax-parked-from").starts_with(&format!("{name}/")));
        // It is still the message that it was.
        assert!(!key(line).is_empty() && !id(line).is_empty());
    }
    assert_eq!(parked.len(), 6);
}

/// All of it together takes longer than the group waits for a member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_takes_long_is_written_in_parts() {
    let Some(topic) = kafka::mortal().await else {
        return;
    };
    for name in [MADE, PARKED] {
        topic.create(name, &[]).await;
    }
    let sent: Vec<Envelope> = (0..30)
        .map(|number| message(topic.topic(), number, Some("k".to_owned())))
        .collect();
    topic.publish(&sent).await;
    let mut options = options(topic.servers(), topic.topic());
    options.try_timeout = Duration::from_millis(500);
    options.patience = Duration::from_secs(3);
    let pipe = KafkaPipe::new(options).unwrap();
    let progress = pipe.progress();
    let slow = |order: Received| async move {
        tokio::time::sleep(Duration::from_millis(150)).await;
        ship(order).await
    };
    run_until_done(pipe, 30, slow).await;
    assert!(progress.counts().batches > 1, "{:?}", progress.counts());
    assert_eq!(topic.read_by_java(MADE, 30).len(), 30);
}

#[test]
fn a_pipe_that_would_outlast_its_place_in_the_group_is_refused() {
    let mut options = KafkaPipeOptions::new(KafkaServers::new(["a:9092"]), "shipping", ["orders"]);
    options.patience = Duration::from_mins(3);
    let error = KafkaPipe::new(options.clone()).unwrap_err();
    assert!(error.to_string().contains("203"), "{error}");
    options.parked = "orders".to_owned();
    let error = KafkaPipe::new(options).unwrap_err();
    assert!(error.to_string().contains("read again"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stands_there_twice_makes_messages_of_the_same_id() {
    let Some(topic) = kafka::mortal().await else {
        return;
    };
    topic.create(MADE, &[]).await;
    let sent = message(topic.topic(), 1, Some("k".to_owned()));
    topic.publish(&[sent.clone(), sent.clone()]).await;
    // It waits until there is a topic for what cannot be handled.
    let pipe = pipe(topic.servers(), topic.topic());
    let progress = pipe.progress();
    let made = async {
        while progress.counts().outages == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        topic.create(PARKED, &[]).await;
    };
    tokio::join!(run_until_done(pipe, 2, ship), made);
    let shipped = topic.read_by_java(MADE, 2);
    assert_eq!(shipped.len(), 2);
    for name in ["ce_id", "ce_time", "ce_causationid"] {
        assert_eq!(header(&shipped[0], name), header(&shipped[1], name));
    }
    assert_eq!(header(&shipped[0], "ce_causationid"), sent.id.to_string());
}

/// The messages of each key in their order.
fn by_key(messages: &[[String; 2]]) -> BTreeMap<&str, Vec<&str>> {
    let mut keys: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for [key, id] in messages {
        keys.entry(key).or_default().push(id);
    }
    keys
}

fn header(line: &str, name: &str) -> String {
    let (headers, _) = line.split_once('\t').unwrap();
    let mut headers = headers
        .split(',')
        .filter_map(|header| header.split_once(':'));
    let found = headers.find(|(given, _)| *given == name);
    found
        .unwrap_or_else(|| panic!("no {name}: {line}"))
        .1
        .to_owned()
}

fn key(line: &str) -> String {
    header(line, "ce_partitionkey")
}

fn id(line: &str) -> String {
    header(line, "ce_id")
}

fn payload(line: &str) -> String {
    line.split_once('\t').unwrap().1.to_owned()
}
