//! What is parked, and what becomes of it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax_core::time::Timestamp;
use hapax_flow::consume::{Incoming, PostgresTransaction, Received, Retention, StartError, Window};

use crate::place::{Place, Running, consumer, message, sorted, write_effects};
use crate::script::Script;

const HOUR_US: u64 = 3_600_000_000;

fn aged(id: &str, hours: i64) -> Incoming {
    let message = message(id);
    let now = message.at.expect("it has a time").as_micros();
    let at = now.saturating_add_signed(-hours * HOUR_US as i64);
    Incoming {
        at: Some(Timestamp::from_micros(at)),
        ..message
    }
}

#[tokio::test]
async fn a_message_older_than_the_window_is_parked_and_never_applied() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    script.keeps_for(Retention::Limited(Duration::from_hours(1)));
    let consumer = consumer()
        .window(Window::Limited(Duration::from_hours(48)))
        .relay_outage(Duration::from_hours(2));
    script.deliver([aged("old", 49), aged("young", 47), aged("ahead", -1)]);
    let running = place.run(consumer, script.source());
    script.drained().await;
    assert_eq!(place.effects().await, ["young"]);
    assert_eq!(place.parked().await, ["ahead", "old"]);
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn a_message_without_an_id_is_parked_once() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    let nameless = Incoming {
        id: None,
        ..message("")
    };
    script.deliver([nameless.clone(), message("a"), nameless]);
    let running = place.run(consumer(), script.source());
    script.drained().await;
    assert_eq!(place.effects().await, ["a"]);
    assert_eq!(place.parked().await.len(), 1);
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn an_id_may_be_a_field_of_the_payload() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    let of_payload = |payload: &'static str| Incoming {
        id: None,
        payload: payload.into(),
        ..message("")
    };
    script.deliver([
        of_payload("order-1"),
        of_payload("order-2"),
        of_payload("order-1"),
    ]);
    let consumer = consumer().id(|message| String::from_utf8(message.payload.to_vec()).ok());
    let running = place.run(consumer, script.source());
    script.drained().await;
    assert_eq!(place.effects().await, ["order-1", "order-2"]);
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn a_window_shorter_than_what_the_broker_keeps_stops_the_start() {
    let Some(place) = Place::new().await else {
        return;
    };
    for retention in [
        Retention::Limited(Duration::from_hours(13 * 24 + 1)),
        Retention::Forever,
    ] {
        let script = Script::default();
        script.keeps_for(retention);
        script.deliver([message("a")]);
        let refused = place.run(consumer(), script.source()).refusal().await;
        assert!(matches!(refused, StartError::Window(_)), "{refused}");
        assert!(refused.to_string().contains("Make the window longer"));
        assert_eq!(place.effects().await, [""; 0]);
    }
}

#[tokio::test]
async fn a_database_without_an_inbox_stops_the_start() {
    let Some(place) = Place::new().await else {
        return;
    };
    let sql = "DROP SCHEMA hapax CASCADE";
    place.client.batch_execute(sql).await.expect("dropped");
    let refused = place
        .run(consumer(), Script::default().source())
        .refusal()
        .await;
    assert!(refused.to_string().contains("hapax migrate"), "{refused}");
}

#[tokio::test]
async fn with_a_window_without_end_any_age_is_applied_once() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    script.keeps_for(Retention::Forever);
    script.deliver([aged("ancient", 24 * 365), aged("ancient", 24 * 365)]);
    let running = place.run(consumer().window(Window::Forever), script.source());
    script.drained().await;
    assert_eq!(place.effects().await, ["ancient"]);
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn what_an_operator_tries_again_is_applied_once() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    script.deliver([aged("old-1", 24 * 20), aged("old-2", 24 * 20)]);
    let running = place.run(consumer(), script.source());
    script.drained().await;
    assert_eq!(place.parked().await, ["old-1", "old-2"]);
    let sql = "UPDATE hapax.parked SET state = 2, not_applied = true WHERE id = 'old-1'";
    place
        .client
        .batch_execute(sql)
        .await
        .expect("as an operator does");
    while running.progress.counts().retried == 0 {
        tokio::task::yield_now().await;
    }
    script.deliver([aged("old-1", 24 * 20)]);
    script.drained().await;
    assert_eq!(sorted(place.effects().await), ["old-1"]);
    running.stop().await.expect("it ran");
}

/// A parked message is delivered to another member, which works on it for long.
#[tokio::test]
async fn what_another_transaction_holds_and_is_to_be_tried_again_stops_nobody() {
    let Some(place) = Place::new().await else {
        return;
    };
    let at = message("held").at.expect("it has a time").as_micros();
    let at = i64::try_from(at).expect("before the year 294,000");
    let sql = "SELECT hapax.park_message('stock', 'held', 'failed', 'no', 'orders', NULL, NULL, NULL, $1, NULL, '')";
    place.client.query_one(sql, &[&at]).await.expect("parks");
    let again = "UPDATE hapax.parked SET state = 2";
    let again = place.client.batch_execute(again).await;
    again.expect("as an operator does");
    let other = Place::again(place.url.clone()).await.client;
    other.batch_execute("BEGIN").await.expect("begins");
    let sql = "SELECT hapax.receive_message('stock', 'held', $1)";
    other.query_one(sql, &[&at]).await.expect("a receipt");
    let script = Script::default();
    let running = place.run(consumer(), script.source());
    script.deliver((0..3).map(message));
    script.acknowledged(3).await;
    other.batch_execute("ROLLBACK").await.expect("ends");
    while running.progress.counts().retried == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(place.effects().await, ["0", "1", "2", "held"]);
    running.stop().await.expect("it ran");
}

/// What fails when it is tried again is parked again, in whatever way it fails.
#[tokio::test]
async fn what_fails_again_is_parked_again() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    let names = ["hangs", "hides"];
    let old = |id: &str| aged(id, 24 * 20);
    script.deliver(names.map(old));
    let handled = consumer()
        .batch_time_max(Duration::from_millis(300))
        .source(script.source())
        .database(place.database())
        .handle(async |batch: &[Received], tx: &mut PostgresTransaction| {
            write_effects(batch, tx).await?;
            match batch[0].id() {
                "hangs" => std::future::pending().await,
                _ => {
                    // The transaction is broken now, and its commit would be none.
                    drop(tx.execute("SELECT 1 / 0", &[]).await);
                    Ok(())
                }
            }
        });
    let running = Running::spawn(handled.progress(), |stop| handled.run(stop));
    script.drained().await;
    assert_eq!(place.parked().await, names);
    let sql = "UPDATE hapax.parked SET state = 2, not_applied = true, attempts = 2";
    let again = place.client.batch_execute(sql).await;
    again.expect("as an operator does");
    let again = async {
        while place.parked().await != names {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(40), again).await;
    assert!(ended.is_ok(), "{:?} is parked", place.parked().await);
    assert_eq!(place.effects().await, [""; 0]);
    running.stop().await.expect("it ran");
}

/// Programs in other languages park too, with headers that no other part of Hapax writes.
#[tokio::test]
async fn what_another_program_parked_is_tried_again() {
    let Some(place) = Place::new().await else {
        return;
    };
    let sql = r#"SELECT hapax.park('stock', 'a', 'failed', headers => '{"tries": 3, "none": null, "list": [1]}');
                 SELECT hapax.park('stock', 'b', 'failed', headers => '["x"]');
                 SELECT hapax.park('stock', 'c', 'failed');
                 UPDATE hapax.parked SET state = 2"#;
    place.client.batch_execute(sql).await.expect("parks");
    let headers = Arc::new(Mutex::new(Vec::new()));
    let handled = consumer()
        .source(Script::default().source())
        .database(place.database())
        .handle({
            let headers = headers.clone();
            async move |batch: &[Received], _: &mut PostgresTransaction| {
                let of_first = batch[0].headers.clone();
                headers.lock().expect("no panic").push(of_first);
                Ok(())
            }
        });
    let running = Running::spawn(handled.progress(), |stop| handled.run(stop));
    let retried = async {
        while running.progress.counts().retried < 3 {
            tokio::task::yield_now().await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(20), retried).await;
    assert!(ended.is_ok(), "{:?}", running.progress.counts());
    let of_a = [("list", "[1]"), ("none", ""), ("tries", "3")];
    let of_a = of_a.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(
        *headers.lock().expect("no panic"),
        [of_a.to_vec(), Vec::new(), Vec::new()]
    );
    running.stop().await.expect("it ran");
}
