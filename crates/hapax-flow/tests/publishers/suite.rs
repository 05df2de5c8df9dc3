//! What every destination must do.

use std::future::poll_fn;

use std::task::Poll;
use std::time::Instant;

use bytes::Bytes;
use hapax_flow::publish::{Envelope, Outage, Publisher, Reply, Verdict};

use super::destination::{CALL_LIMIT, Destination, Mortal, Refusing, assert_in_order, assert_once};
use super::messages::{batch, message};

/// Publishes a batch of which every message must be accepted.
async fn publish(publisher: &impl Publisher, batch: &[Envelope]) -> Vec<Verdict> {
    let verdicts = publisher.publish(batch).await.expect("no outage");
    assert_eq!(verdicts.len(), batch.len());
    let refused = verdicts.iter().find(|verdict| !verdict.is_accepted());
    assert_eq!(refused, None);
    verdicts
}

/// Publishes a batch again and again until every message is accepted.
async fn publish_at_last(publisher: &impl Publisher, batch: &[Envelope]) {
    let deadline = Instant::now() + 10 * CALL_LIMIT;
    loop {
        match publisher.publish(batch).await {
            Ok(verdicts) if verdicts.iter().all(Verdict::is_accepted) => return,
            other => assert!(Instant::now() < deadline, "the last one said {other:?}"),
        }
        tokio::task::yield_now().await;
    }
}

/// Publishes a batch and checks that the call ends in time.
async fn publish_in_time(
    publisher: &impl Publisher,
    batch: &[Envelope],
) -> Result<Vec<Verdict>, Outage> {
    let started = Instant::now();
    let verdicts = publisher.publish(batch).await;
    let took = started.elapsed();
    assert!(took < CALL_LIMIT, "{took:?}");
    verdicts
}

/// Polls a call this many times. Returns what it returns if it ends by then.
async fn advance<T>(polls: usize, call: &mut Reply<'_, T>) -> Option<T> {
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        call.as_mut().poll(context).map(Some)
    })
    .await
}

pub(crate) async fn everything_arrives_once(destination: impl Destination) {
    let mut sent = batch(destination.topic(), 0, 1000, 300);
    for (number, message) in sent.iter_mut().enumerate() {
        if number % 3 == 0 {
            message.key = None;
        }
        message.ordered = number % 5 != 0;
    }
    let publisher = destination.publisher();
    let verdicts = publish(&publisher, &sent).await;
    assert!(verdicts.iter().all(|verdict| *verdict == Verdict::ACCEPTED));
    let arrived = destination.arrived().await;
    assert_once(&sent, &arrived);
    for message in &sent {
        let mut arrived = arrived.iter();
        let one = arrived
            .find(|one| one.id == message.id.to_string())
            .unwrap();
        assert_eq!(
            (&one.key, &one.payload[..]),
            (&message.key, &message.payload[..])
        );
    }
}

pub(crate) async fn an_empty_batch_is_published(destination: impl Destination) {
    assert_eq!(destination.publisher().publish(&[]).await, Ok(Vec::new()));
    assert!(destination.arrived().await.is_empty());
}

pub(crate) async fn order_is_kept_in_a_batch_and_across_batches(destination: impl Destination) {
    let sent = batch(destination.topic(), 0, 4000, 300);
    let publisher = destination.publisher();
    for batch in sent.chunks(1000) {
        publish(&publisher, batch).await;
    }
    let arrived = destination.arrived().await;
    assert_once(&sent, &arrived);
    assert_in_order(&sent, &arrived);
}

pub(crate) async fn calls_at_the_same_time_share_a_publisher(destination: impl Destination) {
    let sent = batch(destination.topic(), 0, 2000, 300);
    let is_even = |message: &Envelope| {
        message
            .key
            .as_deref()
            .is_some_and(|key| key.ends_with(['0', '2', '4', '6', '8']))
    };
    let (even, odd): (Vec<_>, Vec<_>) = sent.iter().cloned().partition(is_even);
    let publisher = destination.publisher();
    let _ = tokio::join!(publish(&publisher, &even), publish(&publisher, &odd));
    let arrived = destination.arrived().await;
    assert_once(&sent, &arrived);
    assert_in_order(&sent, &arrived);
}

pub(crate) async fn a_repeated_batch_arrives_twice_or_is_known(destination: impl Destination) {
    let sent = batch(destination.topic(), 0, 1000, 50);
    let publisher = destination.publisher();
    publish(&publisher, &sent).await;
    // Another publisher, as after a restart of the relay.
    let again = publish(&destination.publisher(), &sent).await;
    let arrived = destination.arrived().await;
    for (message, verdict) in sent.iter().zip(again) {
        let id = message.id.to_string();
        let times = arrived.iter().filter(|one| one.id == id).count();
        let is_known = verdict == Verdict::Accepted { duplicate: true };
        assert_eq!(times, if is_known { 1 } else { 2 }, "{verdict:?}");
    }
    assert_in_order(&sent, &arrived);
}

pub(crate) async fn any_payload_arrives_as_it_is(destination: impl Destination) {
    let every_byte: Vec<u8> = (0..=255).cycle().take(1000).collect();
    let largest: Vec<u8> = (0..1 << 20).map(|place: u32| (place % 251) as u8).collect();
    let text = "größe \r\n\r\n 尺寸".as_bytes().to_vec();
    let payloads = [vec![], vec![0], vec![b'\n'], every_byte, largest, text];
    let mut sent = batch(destination.topic(), 0, payloads.len() as u64, 2);
    for (message, payload) in sent.iter_mut().zip(&payloads) {
        message.payload = Bytes::from(payload.clone());
    }
    publish(&destination.publisher(), &sent).await;
    let arrived = destination.arrived().await;
    assert_once(&sent, &arrived);
    for (message, payload) in sent.iter().zip(&payloads) {
        let mut arrived = arrived.iter();
        let one = arrived
            .find(|one| one.id == message.id.to_string())
            .unwrap();
        assert!(one.payload == *payload, "{} bytes", payload.len());
    }
}

pub(crate) async fn headers_arrive_as_they_are(destination: impl Destination) {
    let values = ["größe 尺寸 🧾", "a: b, c=\"d\"", "100% a+b", "x"];
    let mut sent = message(destination.topic(), 0, Some("käse: 1".to_owned()));
    sent.headers = (0..)
        .zip(values)
        .map(|(number, value)| (format!("x-{number}"), value.to_owned()))
        .collect();
    sent.headers.push((
        "content-type".to_owned(),
        "application/vnd.größe+json".to_owned(),
    ));
    sent.headers.sort();
    sent.payload = Bytes::from_static(b"{}");
    publish(&destination.publisher(), std::slice::from_ref(&sent)).await;
    let arrived = destination.arrived().await;
    assert_eq!(arrived[0].key, sent.key);
    for (name, value) in &sent.headers {
        assert_eq!(arrived[0].header(name), Some(value.as_str()), "{name}");
    }
}

pub(crate) async fn a_dropped_call_breaks_nothing_later(destination: impl Destination) {
    let sent = batch(destination.topic(), 0, 600, 40);
    let publisher = destination.publisher();
    for (round, batch) in sent.chunks(100).enumerate() {
        for polls in [0, 1, 2, 5, 20] {
            advance(polls + round, &mut publisher.publish(batch)).await;
        }
        publish(&publisher, batch).await;
    }
    assert_in_order(&sent, &destination.arrived().await);
}

pub(crate) async fn a_refused_message_stops_only_its_key(destination: impl Refusing) {
    let topic = destination.topic();
    let key = |key: &str| Some(key.to_owned());
    let mut sent: Vec<Envelope> = [
        key("a"),
        key("b"),
        key("a"),
        key("a"),
        key("c"),
        None,
        key("b"),
    ]
    .into_iter()
    .zip(0..)
    .map(|(key, number)| message(topic, number, key))
    .collect();
    destination.spoil(&mut sent[2]);
    let publisher = destination.publisher();
    let verdicts = publisher.publish(&sent).await.unwrap();
    assert!(
        matches!(&verdicts[2], Verdict::Refused(reason) if !reason.is_empty()),
        "{verdicts:?}"
    );
    assert_eq!(verdicts[3], Verdict::NotSent);
    let others = [0, 1, 4, 5, 6].map(|place| sent[place].clone());
    assert_eq!(
        verdicts
            .iter()
            .filter(|verdict| verdict.is_accepted())
            .count(),
        others.len()
    );
    assert_once(&others, &destination.arrived().await);
    // An operator has given the message up: the later one of its key goes on.
    publish(&publisher, &sent[3..4]).await;
    let others = [0, 1, 3, 4, 5, 6].map(|place| sent[place].clone());
    assert_once(&others, &destination.arrived().await);
}

pub(crate) async fn a_refused_message_without_a_place_in_an_order_stops_nothing(
    destination: impl Refusing,
) {
    let mut sent = batch(destination.topic(), 0, 3, 1);
    destination.spoil(&mut sent[0]);
    sent[0].ordered = false;
    let verdicts = destination.publisher().publish(&sent).await.unwrap();
    assert!(matches!(verdicts[0], Verdict::Refused(_)), "{verdicts:?}");
    assert!(
        verdicts[1..].iter().all(Verdict::is_accepted),
        "{verdicts:?}"
    );
}

pub(crate) async fn a_destination_that_is_down_is_an_outage(mut destination: impl Mortal) {
    let sent = batch(destination.topic(), 0, 1000, 300);
    let (before, after) = sent.split_at(500);
    let publisher = destination.publisher();
    publish(&publisher, before).await;
    destination.kill();
    for _ in 0..2 {
        let outage = publish_in_time(&publisher, after).await.unwrap_err();
        assert!(!outage.reason.is_empty());
    }
    destination.restart();
    publish_at_last(&publisher, after).await;
    assert_in_order(&sent, &destination.arrived().await);
}

pub(crate) async fn a_destination_may_be_down_at_the_start(mut destination: impl Mortal) {
    let sent = batch(destination.topic(), 0, 100, 30);
    destination.kill();
    let publisher = destination.publisher();
    publish_in_time(&publisher, &sent).await.unwrap_err();
    destination.restart();
    publish_at_last(&publisher, &sent).await;
    assert_in_order(&sent, &destination.arrived().await);
}

pub(crate) async fn a_restart_between_calls_breaks_nothing(mut destination: impl Mortal) {
    let sent = batch(destination.topic(), 0, 200, 30);
    let (before, after) = sent.split_at(100);
    let publisher = destination.publisher();
    publish(&publisher, before).await;
    destination.kill();
    destination.restart();
    publish_at_last(&publisher, after).await;
    assert_in_order(&sent, &destination.arrived().await);
}

pub(crate) async fn a_paused_destination_ends_calls_in_time(destination: impl Mortal) {
    let sent = batch(destination.topic(), 0, 1000, 300);
    let (before, after) = sent.split_at(500);
    let publisher = destination.publisher();
    publish(&publisher, before).await;
    destination.pause();
    for _ in 0..2 {
        if let Ok(verdicts) = publish_in_time(&publisher, after).await {
            assert!(!verdicts.iter().any(Verdict::is_accepted));
        }
    }
    destination.resume();
    publish_at_last(&publisher, after).await;
    assert_in_order(&sent, &destination.arrived().await);
}

pub(crate) async fn nothing_accepted_is_lost_by_kills_during_calls(mut destination: impl Mortal) {
    let count = 300 * destination.kills() as u64;
    let sent = batch(destination.topic(), 0, count, 100);
    let publisher = destination.publisher();
    for (round, batch) in sent.chunks(300).enumerate() {
        // A call that has gone some way when the destination dies.
        let mut call = publisher.publish(batch);
        let early = advance(2 + round, &mut call).await;
        destination.kill();
        let verdicts = match early {
            Some(verdicts) => verdicts,
            None => call.await,
        };
        destination.restart();
        let accepted = accepted(batch, verdicts);
        let arrived = destination.arrived().await;
        for id in accepted {
            assert!(arrived.iter().any(|one| one.id == id), "{id} is lost");
        }
        publish_at_last(&publisher, batch).await;
    }
    assert_in_order(&sent, &destination.arrived().await);
}

fn accepted(batch: &[Envelope], verdicts: Result<Vec<Verdict>, Outage>) -> Vec<String> {
    let verdicts = verdicts.unwrap_or_default();
    let accepted = batch
        .iter()
        .zip(verdicts)
        .filter(|(_, verdict)| verdict.is_accepted());
    accepted
        .map(|(message, _)| message.id.to_string())
        .collect()
}
