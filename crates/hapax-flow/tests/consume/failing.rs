//! Messages that cannot be handled.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hapax_core::time::Timestamp;
use hapax_flow::consume::{Incoming, PostgresTransaction, Received, Versions};

use crate::place::{Place, Running, consumer, keyed, message, sorted, with_payload, write_effects};
use crate::script::Script;

#[tokio::test]
async fn a_poison_message_among_thousands_is_parked_alone() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    script.deliver((0..3000).map(|id| match id {
        1234 => with_payload(keyed(id, "k-34"), "poison"),
        _ => keyed(id, &format!("k-{}", id % 100)),
    }));
    let running = place.run(consumer().batch_max(500), script.source());
    script.drained().await;
    assert_eq!(place.parked().await, ["1234"]);
    let effects = place.effects().await;
    let mut expected: Vec<_> = (0..3000)
        .filter(|id| *id != 1234)
        .map(|id| id.to_string())
        .collect();
    // Of its key too, each later one was applied after the earlier ones.
    let of_key = |effects: &[String]| -> Vec<String> {
        let of_key = effects.iter().filter(|id| id.ends_with("34"));
        of_key.cloned().collect()
    };
    assert_eq!(of_key(&effects), of_key(&expected));
    expected.sort();
    assert_eq!(sorted(effects), expected);
    let counts = running.progress.counts();
    assert_eq!((counts.parked, counts.failed), (1, 3));
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn later_messages_of_a_key_wait_until_it_is_decided() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    let tries = Arc::new(AtomicUsize::new(0));
    let handler = {
        let tries = tries.clone();
        async move |batch: &[Received], tx: &mut PostgresTransaction| {
            write_effects(batch, tx).await?;
            let is_first = batch.iter().any(|message| message.id() == "first");
            match is_first && tries.fetch_add(1, Ordering::SeqCst) < 3 {
                true => Err("not yet".into()),
                false => Ok(()),
            }
        }
    };
    let handled = consumer()
        .source(script.source())
        .database(place.database())
        .handle(handler);
    let running = Running::spawn(handled.progress(), |stop| handled.run(stop));
    script.deliver([
        keyed("first", "a"),
        keyed("second", "a"),
        keyed("other", "b"),
    ]);
    script.drained().await;
    assert_eq!(place.effects().await, ["other", "first", "second"]);
    assert_eq!(place.parked().await, [""; 0]);
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn a_panic_is_a_failure() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    script.deliver([with_payload(message("a"), "panic"), message("b")]);
    let running = place.run(consumer(), script.source());
    script.drained().await;
    assert_eq!(place.effects().await, ["b"]);
    assert_eq!(place.parked().await, ["a"]);
    let sql = "SELECT reason, attempts FROM hapax.parked";
    let row = place.client.query_one(sql, &[]).await.expect("one");
    assert_eq!(
        (row.get::<_, String>(0).as_str(), row.get::<_, i32>(1)),
        ("the handler panicked: a handler that panics", 3)
    );
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn a_parked_message_that_is_delivered_again_stays_parked() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    let running = place.run(consumer(), script.source());
    for _ in 0..3 {
        script.deliver([with_payload(message("a"), "poison")]);
        script.drained().await;
    }
    assert_eq!(place.parked().await, ["a"]);
    assert_eq!(place.effects().await, [""; 0]);
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn every_delivery_of_a_message_that_fails_is_acknowledged() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    // Published twice, as a relay may do.
    let poison = || with_payload(keyed("a", "k"), "poison");
    script.deliver([poison(), poison(), keyed("b", "k"), keyed("b", "k")]);
    let running = place.run(consumer(), script.source());
    script.drained().await;
    assert_eq!(place.parked().await, ["a"]);
    assert_eq!(place.effects().await, ["b"]);
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn a_handler_that_hangs_is_ended() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    script.deliver([message("hangs"), message("b")]);
    let handled = consumer()
        .batch_time_max(std::time::Duration::from_millis(200))
        .source(script.source())
        .database(place.database())
        .handle(async |batch: &[Received], tx: &mut PostgresTransaction| {
            write_effects(batch, tx).await?;
            match batch.iter().any(|message| message.id() == "hangs") {
                true => std::future::pending().await,
                false => Ok(()),
            }
        });
    let running = Running::spawn(handled.progress(), |stop| handled.run(stop));
    script.drained().await;
    assert_eq!(place.effects().await, ["b"]);
    assert_eq!(place.parked().await, ["hangs"]);
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn a_message_that_may_end_its_consumers_is_counted_before_it_is_tried() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    for deliveries in 4..10 {
        let handled = consumer()
            .source(script.source())
            .database(place.database())
            .handle(async |batch: &[Received], tx: &mut PostgresTransaction| {
                write_effects(batch, tx).await?;
                match batch.iter().any(|message| message.id() == "deadly") {
                    true => std::future::pending().await,
                    false => Ok(()),
                }
            });
        let running = Running::spawn(handled.progress(), |stop| handled.run(stop));
        let mut deadly = message("deadly");
        deadly.deliveries = Some(deliveries);
        script.deliver([deadly, message(format!("before-{deliveries}"))]);
        // Either it hangs in the handler, or the message is parked.
        let drained = tokio::time::timeout(std::time::Duration::from_millis(500), script.drained());
        if drained.await.is_ok() {
            running.stop().await.expect("it ran");
            break;
        }
        running.kill().await;
    }
    assert_eq!(place.parked().await, ["deadly"]);
}

#[tokio::test]
async fn a_message_that_was_delivered_often_and_is_parked_stays_parked() {
    let Some(place) = Place::new().await else {
        return;
    };
    let often = |message: Incoming| Incoming {
        deliveries: Some(9),
        ..message
    };
    let version = |version| Incoming {
        version: Some(version),
        ..keyed(format!("v{version}"), "order-1")
    };
    let nameless = Incoming {
        id: None,
        ..message("")
    };
    let old = Incoming {
        at: Some(Timestamp::from_micros(1)),
        ..message("old")
    };
    let script = Script::default();
    script.deliver([version(1), often(version(3)), often(nameless), often(old)]);
    let running = place.run(consumer().versions(Versions::ParkGaps), script.source());
    script.drained().await;
    assert_eq!(place.effects().await, ["v1"]);
    let parked = place.parked().await;
    assert_eq!(parked.len(), 3, "{parked:?}");
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn what_no_database_takes_stops_nobody() {
    let Some(place) = Place::new().await else {
        return;
    };
    let version = |id: &str, key: &str, version| Incoming {
        version: Some(version),
        ..keyed(id, key)
    };
    let script = Script::default();
    script.deliver([
        message("a zero \0 byte"),
        version("zero-1", "a zero \0 byte", 1),
        version("zero-3", "a zero \0 byte", 3),
        version("last", "k", i64::MAX),
        message("panics"),
        message("good"),
    ]);
    let id = |message: &Incoming| {
        assert_ne!(message.id.as_deref(), Some("panics"));
        message.id.clone()
    };
    let handled = consumer()
        .id(id)
        .versions(Versions::ParkGaps)
        .source(script.source())
        .database(place.database())
        .handle(async |batch: &[Received], tx: &mut PostgresTransaction| {
            for message in batch {
                let sql = "INSERT INTO effects (message) VALUES ($1)";
                tx.execute(sql, &[&message.id()]).await?;
            }
            Ok(())
        });
    let running = Running::spawn(handled.progress(), |stop| handled.run(stop));
    script.drained().await;
    assert_eq!(place.effects().await, ["zero-1", "last", "good"]);
    let parked = place.parked().await;
    assert_eq!((parked.len(), &*parked[2]), (3, "zero-3"));
    script.deliver([version("zero-2", "a zero \0 byte", 2)]);
    while running.progress.counts().retried == 0 {
        tokio::task::yield_now().await;
    }
    let effects = place.effects().await;
    assert_eq!(effects[3..], ["zero-2", "zero-3"]);
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn messages_without_an_id_are_told_apart_by_their_keys() {
    let Some(place) = Place::new().await else {
        return;
    };
    let nameless = |key| Incoming {
        id: None,
        ..keyed("", key)
    };
    let script = Script::default();
    script.deliver([nameless("a"), nameless("b")]);
    let running = place.run(consumer(), script.source());
    script.drained().await;
    assert_eq!(place.parked().await.len(), 2);
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn what_another_transaction_holds_is_tried_again_and_not_counted() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    let running = place.run(consumer(), script.source());
    // From now on the consumer is registered: else it would wait for the other to register it.
    script.deliver([message("first")]);
    script.drained().await;
    let other = Place::again(place.url.clone()).await.client;
    other.batch_execute("BEGIN").await.expect("begins");
    let sql = "SELECT hapax.receive('stock', 'held', now())";
    other.query_one(sql, &[]).await.expect("a receipt");
    script.deliver([message("a"), message("held"), message("b")]);
    script.acknowledged(3).await;
    assert_eq!(script.open(), 1);
    assert_eq!(sorted(place.effects().await), ["a", "b", "first"]);
    other.batch_execute("ROLLBACK").await.expect("ends");
    script.drained().await;
    assert_eq!(sorted(place.effects().await), ["a", "b", "first", "held"]);
    assert_eq!(running.progress.counts().failed, 0);
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn messages_that_others_hold_leave_time_for_the_rest() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    let running = place.run(consumer(), script.source());
    script.deliver([message("first")]);
    script.drained().await;
    let other = Place::again(place.url.clone()).await.client;
    other.batch_execute("BEGIN").await.expect("begins");
    let held: Vec<_> = (0..5).map(|number| format!("held-{number}")).collect();
    for id in &held {
        let sql = "SELECT hapax.receive('stock', $1, now())";
        other.query_one(sql, &[id]).await.expect("a receipt");
    }
    // Each of them waits for longer than it rests.
    script.deliver(held.iter().map(message));
    while running.progress.waiting() < 5 {
        tokio::task::yield_now().await;
    }
    script.deliver((0..10).map(message));
    script.acknowledged(11).await;
    assert_eq!(running.progress.waiting(), 5);
    other.batch_execute("ROLLBACK").await.expect("ends");
    script.drained().await;
    assert_eq!(place.effects().await.len(), 16);
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn an_error_that_a_handler_hides_is_a_failure() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    script.deliver([message("a")]);
    let handled = consumer()
        .source(script.source())
        .database(place.database())
        .handle(async |batch: &[Received], tx: &mut PostgresTransaction| {
            write_effects(batch, tx).await?;
            // The transaction is broken now, and its commit would be none.
            drop(tx.execute("SELECT 1 / 0", &[]).await);
            Ok(())
        });
    let running = Running::spawn(handled.progress(), |stop| handled.run(stop));
    script.drained().await;
    assert_eq!(place.effects().await, [""; 0]);
    assert_eq!(place.parked().await, ["a"]);
    running.stop().await.expect("it ran");
}
