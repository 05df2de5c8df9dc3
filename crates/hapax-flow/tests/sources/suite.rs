//! What every source must do.

use std::collections::HashSet;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hapax_flow::consume::{Delivery, Source};
use hapax_flow::publish::Envelope;
use tokio::time::timeout;

use super::broker::{Broker, Mortal};
use super::messages::{batch, message};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);
/// Short enough to be waited for.
const SHORT: Duration = Duration::from_secs(1);
/// After this a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

type Deliveries<S> = Vec<Delivery<<S as Source>::Tag>>;

/// Receives this many deliveries, through outages.
async fn receive<S: Source>(source: &mut S, count: usize) -> Deliveries<S> {
    let mut received = Vec::new();
    let ended = Instant::now() + PATIENCE;
    while received.len() < count {
        let left = ended.saturating_duration_since(Instant::now());
        let more = timeout(left, source.receive(count - received.len())).await;
        match more.unwrap_or_else(|_| panic!("{} of {count} came", received.len())) {
            Ok(more) => received.extend(more),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    received
}

async fn acknowledge<S: Source>(source: &mut S, deliveries: &[Delivery<S::Tag>]) {
    source.acknowledge(&tags(deliveries)).await.unwrap();
}

fn tags<T: Clone>(deliveries: &[Delivery<T>]) -> Vec<T> {
    deliveries
        .iter()
        .map(|delivery| delivery.tag.clone())
        .collect()
}

fn ids<T>(deliveries: &[Delivery<T>]) -> Vec<String> {
    let id = |delivery: &Delivery<T>| delivery.message.id.clone().expect("an id");
    deliveries.iter().map(id).collect()
}

fn sent_ids(messages: &[Envelope]) -> Vec<String> {
    messages
        .iter()
        .map(|message| message.id.to_string())
        .collect()
}

fn sorted(mut ids: Vec<String>) -> Vec<String> {
    ids.sort();
    ids
}

/// Nothing more comes within a time in which it would have come.
async fn assert_nothing_comes<S: Source>(source: &mut S, within: Duration) {
    if let Ok(received) = timeout(within, source.receive(10)).await {
        panic!("{received:?} came");
    }
}

pub(crate) async fn a_message_arrives_as_it_was_published(broker: impl Broker) {
    let mut source = broker.source(LONG);
    let mut sent = vec![
        message(broker.topic(), 0, Some("größe 1".to_owned())),
        message(broker.topic(), 1, None),
    ];
    sent[0].version = Some(7);
    sent[0].headers = vec![
        ("correlation-id".to_owned(), "request 7 ü".to_owned()),
        ("x-shop".to_owned(), "größe: 1".to_owned()),
    ];
    sent[0].payload = (0..1 << 20)
        .map(|place: u32| (place % 251) as u8)
        .collect::<Vec<u8>>()
        .into();
    sent[1].payload = Bytes::new();
    broker.publish(&sent).await;
    let mut received = receive(&mut source, 2).await;
    received.sort_by_key(|delivery| delivery.message.id.clone());
    for (sent, delivery) in sent.iter().zip(&received) {
        let message = &delivery.message;
        assert_eq!(message.id, Some(sent.id.to_string()));
        assert_eq!(message.message_id(), Some(sent.id));
        assert_eq!(message.at, Some(sent.at));
        assert_eq!(message.topic, sent.topic);
        assert_eq!((&message.key, message.version), (&sent.key, sent.version));
        assert!(
            message.payload == sent.payload,
            "{} bytes",
            message.payload.len()
        );
    }
    let first = &received[0].message;
    assert_eq!(first.header("x-shop"), Some("größe: 1"));
    assert_eq!(first.header("ce-correlationid"), Some("request 7 ü"));
    acknowledge(&mut source, &received).await;
}

pub(crate) async fn everything_is_delivered_until_it_is_acknowledged(broker: impl Broker) {
    let sent = batch(broker.topic(), 0, 1000, 30);
    broker.publish(&sent).await;
    let mut source = broker.source(LONG);
    let mut received = Vec::new();
    while received.len() < sent.len() {
        let more = receive(&mut source, 100.min(sent.len() - received.len())).await;
        acknowledge(&mut source, &more).await;
        received.extend(more);
    }
    assert_eq!(sorted(ids(&received)), sorted(sent_ids(&sent)));
    drop(source);
    let mut next = broker.source(LONG);
    assert_nothing_comes(&mut next, SHORT).await;
}

pub(crate) async fn what_is_not_acknowledged_is_delivered_again(broker: impl Broker) {
    let sent = batch(broker.topic(), 0, 20, 20);
    broker.publish(&sent).await;
    let mut source = broker.source(SHORT);
    let received = receive(&mut source, 20).await;
    // In the order of the broker, which may know only a position.
    let done = ids(&received[..12]);
    acknowledge(&mut source, &received[..12]).await;
    drop(source);
    let mut next = broker.source(SHORT);
    let again = receive(&mut next, 8).await;
    let expected: HashSet<_> = ids(&received[12..]).into_iter().collect();
    let again: HashSet<_> = ids(&again).into_iter().collect();
    assert_eq!(again, expected, "and not {done:?}");
}

pub(crate) async fn the_messages_of_a_key_come_in_their_order(broker: impl Broker) {
    let sent = batch(broker.topic(), 0, 300, 7);
    broker.publish(&sent).await;
    let mut source = broker.source(LONG);
    let received = receive(&mut source, 300).await;
    for key in 0..7 {
        let key = Some(format!("key {key}"));
        let of_key = |one: &&Envelope| one.key == key;
        let sent: Vec<_> = sent
            .iter()
            .filter(of_key)
            .map(|one| one.id.to_string())
            .collect();
        let came: Vec<_> = received
            .iter()
            .filter(|delivery| delivery.message.key == key)
            .filter_map(|delivery| delivery.message.id.clone())
            .collect();
        assert_eq!(came, sent, "{key:?}");
    }
    acknowledge(&mut source, &received).await;
}

pub(crate) async fn what_is_given_back_comes_again_soon(broker: impl Broker) {
    let sent = batch(broker.topic(), 0, 10, 10);
    broker.publish(&sent).await;
    let mut source = broker.source(LONG);
    let received = receive(&mut source, 10).await;
    acknowledge(&mut source, &received[..4]).await;
    source.give_back(&tags(&received[4..])).await.unwrap();
    let again = receive(&mut source, 6).await;
    assert_eq!(sorted(ids(&again)), sorted(ids(&received[4..])));
    acknowledge(&mut source, &again).await;
    drop(source);
    let mut next = broker.source(LONG);
    assert_nothing_comes(&mut next, SHORT).await;
}

pub(crate) async fn what_is_kept_is_not_delivered_again(broker: impl Broker) {
    broker.publish(&batch(broker.topic(), 0, 5, 5)).await;
    let mut source = broker.source(SHORT);
    let received = receive(&mut source, 5).await;
    let Some(pause) = source.keep_every() else {
        // The connection keeps them.
        let mut other = broker.source(SHORT);
        assert_nothing_comes(&mut other, 2 * SHORT).await;
        return;
    };
    assert!(pause < SHORT, "{pause:?}");
    let mut other = broker.source(SHORT);
    let keeping = async {
        for _ in 0..(3 * SHORT.as_millis() / pause.as_millis()) {
            tokio::time::sleep(pause).await;
            source.keep(&tags(&received)).await.unwrap();
        }
    };
    tokio::select! {
        () = keeping => {}
        again = other.receive(5) => panic!("{again:?} came"),
    }
    // Nobody keeps them any more.
    let again = receive(&mut other, 5).await;
    assert_eq!(sorted(ids(&again)), sorted(ids(&received)));
}

pub(crate) async fn two_members_share_the_messages(broker: impl Broker) {
    let sent = batch(broker.topic(), 0, 200, 50);
    let (mut one, mut other) = (broker.source(LONG), broker.source(LONG));
    // Both are there: a broker may give all that it has to the first.
    for source in [&mut one, &mut other] {
        drop(timeout(SHORT, source.receive(1)).await);
    }
    broker.publish(&sent).await;
    let mut came = Vec::new();
    let mut shares = [0, 0];
    let ended = Instant::now() + PATIENCE;
    while came.iter().collect::<HashSet<_>>().len() < sent.len() {
        assert!(
            Instant::now() < ended,
            "{} of {} came",
            came.len(),
            sent.len()
        );
        for (place, source) in [&mut one, &mut other].into_iter().enumerate() {
            let received = timeout(Duration::from_millis(100), source.receive(20)).await;
            if let Ok(Ok(received)) = received {
                shares[place] += received.len();
                came.extend(ids(&received));
                // Members may have changed; then it comes again.
                drop(source.acknowledge(&tags(&received)).await);
            }
        }
    }
    let came: HashSet<_> = came.into_iter().collect();
    assert_eq!(came, sent_ids(&sent).into_iter().collect());
    assert!(
        !broker.shares() || shares[0] > 0 && shares[1] > 0,
        "{shares:?}"
    );
}

pub(crate) async fn a_dropped_call_loses_nothing(broker: impl Broker) {
    let sent = batch(broker.topic(), 0, 100, 100);
    let mut source = broker.source(SHORT);
    broker.publish(&sent).await;
    let mut came = HashSet::new();
    for polls in 0..30 {
        if let Some(Ok(received)) = advance(polls, source.receive(3)).await {
            came.extend(ids(&received));
            acknowledge(&mut source, &received).await;
        }
        tokio::task::yield_now().await;
    }
    let ended = Instant::now() + PATIENCE;
    while came.len() < sent.len() {
        assert!(
            Instant::now() < ended,
            "{} of {} came",
            came.len(),
            sent.len()
        );
        if let Ok(Ok(received)) = timeout(SHORT, source.receive(10)).await {
            came.extend(ids(&received));
            acknowledge(&mut source, &received).await;
        }
    }
    assert_eq!(came, sent_ids(&sent).into_iter().collect());
}

pub(crate) async fn the_lag_is_told(broker: impl Broker) {
    let mut source = broker.source(LONG);
    let sent = batch(broker.topic(), 0, 50, 10);
    broker.publish(&sent).await;
    let received = receive(&mut source, 10).await;
    acknowledge(&mut source, &received).await;
    let lag = source.lag().await.unwrap();
    assert!(lag.is_none_or(|lag| lag > 0 && lag < 50), "{lag:?}");
    let received = receive(&mut source, 40).await;
    acknowledge(&mut source, &received).await;
    let ended = Instant::now() + PATIENCE;
    while source.lag().await.unwrap().is_some_and(|lag| lag > 0) {
        assert!(Instant::now() < ended, "a lag that stays");
    }
}

pub(crate) async fn a_broker_that_is_down_is_an_outage(mut broker: impl Mortal) {
    let sent = batch(broker.topic(), 0, 200, 20);
    let (before, after) = sent.split_at(100);
    let mut source = broker.source(SHORT);
    broker.publish(before).await;
    let received = receive(&mut source, 50).await;
    acknowledge(&mut source, &received).await;
    let mut came: HashSet<_> = ids(&received).into_iter().collect();
    broker.kill();
    // What had been fetched already may still come.
    let ended = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < ended, "no outage");
        match timeout(PATIENCE, source.receive(10))
            .await
            .expect("it ends")
        {
            Ok(_) => {}
            Err(outage) => {
                assert!(!outage.reason.is_empty());
                break;
            }
        }
    }
    broker.restart();
    broker.publish(after).await;
    take_all(&mut source, &sent, &mut came).await;
}

pub(crate) async fn a_broker_may_be_down_at_the_start(mut broker: impl Mortal) {
    let sent = batch(broker.topic(), 0, 20, 5);
    broker.publish(&sent).await;
    broker.kill();
    let mut source = broker.source(SHORT);
    let outage = timeout(PATIENCE, source.receive(10))
        .await
        .expect("it ends");
    assert!(!outage.unwrap_err().reason.is_empty());
    broker.restart();
    take_all(&mut source, &sent, &mut HashSet::new()).await;
}

/// Receives until all of these have come, through outages.
async fn take_all<S: Source>(source: &mut S, sent: &[Envelope], came: &mut HashSet<String>) {
    let ended = Instant::now() + PATIENCE;
    while !sent_ids(sent).iter().all(|id| came.contains(id)) {
        assert!(
            Instant::now() < ended,
            "{} of {} came",
            came.len(),
            sent.len()
        );
        match timeout(SHORT, source.receive(10)).await {
            Ok(Ok(received)) => {
                came.extend(ids(&received));
                drop(source.acknowledge(&tags(&received)).await);
            }
            Ok(Err(_)) => tokio::time::sleep(Duration::from_millis(50)).await,
            Err(_) => {}
        }
    }
}

/// Polls a call this many times. Returns what it returns if it ends by then.
async fn advance<T>(polls: usize, call: impl Future<Output = T>) -> Option<T> {
    let mut call = pin!(call);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match call.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending => {
                // The next poll comes at once.
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    })
    .await
}
