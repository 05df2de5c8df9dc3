//! One effect, however often a message is delivered.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax::BoxError;
use hapax::join::Database;
use hapax::outbox::Message;
use hapax::store::postgres::ConnectOptions;
use hapax_core::flow::RetryPolicy;
use hapax_flow::consume::{PostgresDatabase, PostgresTransaction, Received};
use hapax_testkit::random::Random;
use hapax_testkit::servers::{FaultProxy, Postgres};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::place::{Place, Running, consumer, keyed, message, sorted, with_payload, write_effects};
use crate::script::Script;

fn names(range: std::ops::Range<usize>) -> Vec<String> {
    sorted(range.map(|number| number.to_string()).collect())
}

#[tokio::test]
async fn a_message_is_applied_once_however_often_it_is_delivered() {
    let Some(place) = Place::new().await else {
        return;
    };
    let mut random = Random::from_env(3);
    let mut deliveries: Vec<_> = (0..500)
        .flat_map(|id| vec![message(id); 1 + random.below(5)])
        .collect();
    for place in (1..deliveries.len()).rev() {
        deliveries.swap(place, random.below(place + 1));
    }
    let (script, count) = (Script::default(), deliveries.len());
    script.deliver(deliveries);
    let running = place.run(consumer(), script.source());
    script.acknowledged(count).await;
    assert_eq!(sorted(place.effects().await), names(0..500));
    let counts = running.progress.counts();
    assert_eq!(
        (counts.applied, counts.duplicates),
        (500, count as u64 - 500)
    );
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn another_consumer_applies_the_same_messages() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    for name in ["one", "two", "one"] {
        script.deliver([message("a"), message("b")]);
        let named = hapax_flow::consume::Consumer::new(name);
        let running = place.run(named, script.source());
        script.drained().await;
        running.stop().await.expect("it ran");
    }
    assert_eq!(place.effects().await, ["a", "b", "a", "b"]);
}

#[tokio::test]
async fn members_at_the_same_time_apply_a_message_once() {
    let Some(place) = Place::new().await else {
        return;
    };
    let scripts = [Script::default(), Script::default(), Script::default()];
    for script in &scripts {
        script.deliver((0..300).map(message));
    }
    let running = scripts
        .each_ref()
        .map(|script| place.run(consumer().batch_max(7), script.source()));
    for script in &scripts {
        script.drained().await;
    }
    assert_eq!(sorted(place.effects().await), names(0..300));
    for running in running {
        running.stop().await.expect("it ran");
    }
}

#[tokio::test]
async fn a_lost_acknowledgement_changes_nothing() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    script.refuse_acknowledgements(2);
    script.deliver((0..10).map(message));
    let running = place.run(consumer(), script.source());
    script.acknowledged(10).await;
    script.deliver((0..10).map(message));
    script.acknowledged(20).await;
    assert_eq!(sorted(place.effects().await), names(0..10));
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn a_consumer_that_dies_in_its_handler_leaves_neither_effect_nor_receipt() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    script.deliver([message("a")]);
    let entered = Arc::new(Semaphore::new(0));
    let handled = consumer()
        .source(script.source())
        .database(place.database())
        .handle({
            let entered = entered.clone();
            async move |batch: &[Received], tx: &mut PostgresTransaction| {
                write_effects(batch, tx).await?;
                entered.add_permits(1);
                std::future::pending().await
            }
        });
    let running = Running::spawn(handled.progress(), |stop| handled.run(stop));
    drop(entered.acquire().await.expect("it is open"));
    running.kill().await;
    assert_eq!(place.effects().await, [""; 0]);
    script.deliver_open_again();
    let running = place.run(consumer(), script.source());
    script.drained().await;
    assert_eq!(place.effects().await, ["a"]);
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn a_connection_lost_at_any_moment_makes_no_second_effect() {
    let Some(place) = Place::new().await else {
        return;
    };
    let postgres = Postgres::shared().expect("it was there");
    let proxy = FaultProxy::in_front_of(postgres.address()).await;
    let url = place.url.replace(
        &postgres.address().to_string(),
        &proxy.address().to_string(),
    );
    let options = ConnectOptions::parse(&url).expect("a URL");
    let script = Script::default();
    let handled = consumer()
        .batch_max(5)
        .source(script.source())
        .database(PostgresDatabase::new(options))
        .handle(write_effects);
    let running = Running::spawn(handled.progress(), |stop| handled.run(stop));
    let mut random = Random::from_env(4);
    for round in 1..=60 {
        // Somewhere in the replies to this batch: before the effect, at the commit or behind it.
        proxy.cut_after_reply_bytes(random.below(400) as u64);
        script.deliver((round * 5 - 5..round * 5).map(message));
        script.acknowledged(round * 5).await;
    }
    assert!(
        proxy.faults() > 30,
        "{} connections were cut",
        proxy.faults()
    );
    assert_eq!(sorted(place.effects().await), names(0..300));
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn a_database_that_is_away_is_waited_for() {
    let Some(mut postgres) = Postgres::start() else {
        return;
    };
    let url = postgres.database();
    let place = Place::on(url.clone()).await;
    let script = Script::default();
    let running = place.run(consumer(), script.source());
    script.deliver((0..5).map(message));
    script.acknowledged(5).await;
    postgres.kill();
    script.deliver((5..10).map(message));
    while running.progress.counts().outages == 0 {
        tokio::task::yield_now().await;
    }
    postgres.start_again();
    script.acknowledged(10).await;
    assert_eq!(running.progress.counts().parked, 0);
    let place = Place::again(url).await;
    assert_eq!(sorted(place.effects().await), names(0..10));
    running.stop().await.expect("it ran");
}

/// A database that is away once, just when the consumer is told to stop.
struct AwayAtTheStop {
    database: PostgresDatabase,
    stop: Arc<Mutex<Option<CancellationToken>>>,
}

impl Database for AwayAtTheStop {
    type Transaction = PostgresTransaction;

    async fn begin(&mut self) -> Result<PostgresTransaction, BoxError> {
        if let Some(stop) = self.stop.lock().expect("no panic").take() {
            stop.cancel();
            return Err("it is away".into());
        }
        self.database.begin().await
    }

    async fn roll_back(transaction: PostgresTransaction) -> Result<(), BoxError> {
        PostgresDatabase::roll_back(transaction).await
    }
}

#[tokio::test]
async fn what_is_behind_a_message_that_is_left_is_left_too() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    script.deliver([with_payload(keyed("a", "k"), "poison"), keyed("b", "k")]);
    let away = Arc::default();
    let database = AwayAtTheStop {
        database: place.database(),
        stop: Arc::clone(&away),
    };
    let handled = consumer()
        .retry(RetryPolicy {
            pause_min: Duration::from_millis(300),
            ..RetryPolicy::default()
        })
        .source(script.source())
        .database(database)
        .handle(write_effects);
    let (progress, stop) = (handled.progress(), CancellationToken::new());
    let task = tokio::spawn(handled.run(stop.clone()));
    while progress.waiting() < 2 {
        tokio::task::yield_now().await;
    }
    // From now on the next transaction is that of the second try.
    *away.lock().expect("no panic") = Some(stop);
    task.await.expect("no panic").expect("it ran");
    assert!(away.lock().expect("no panic").is_none(), "it was not away");
    assert_eq!(place.effects().await, [""; 0]);
    assert_eq!(script.open(), 0, "they went back to the broker");
}

#[tokio::test]
async fn deliveries_are_kept_while_their_handler_works() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    script.deliver([message("slow")]);
    let handled = consumer()
        .source(script.kept_source(Duration::from_millis(1)))
        .database(place.database())
        .handle({
            let script = script.clone();
            async move |batch: &[Received], tx: &mut PostgresTransaction| {
                while script.kept() < 3 {
                    tokio::task::yield_now().await;
                }
                write_effects(batch, tx).await
            }
        });
    let running = Running::spawn(handled.progress(), |stop| handled.run(stop));
    script.drained().await;
    assert_eq!(place.effects().await, ["slow"]);
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn deliveries_are_kept_while_earlier_ones_are_handled() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    script.deliver([message("slow"), message("later")]);
    let handled = consumer()
        .batch_time_max(Duration::from_secs(3))
        .source(script.kept_source(Duration::from_millis(5)))
        .database(place.database())
        .handle({
            let script = script.clone();
            async move |batch: &[Received], tx: &mut PostgresTransaction| {
                if batch.len() > 1 {
                    return Err("one after the other".into());
                }
                script.forget_kept();
                while batch[0].id() == "slow" && !script.has_kept("later") {
                    tokio::task::yield_now().await;
                }
                write_effects(batch, tx).await
            }
        });
    let running = Running::spawn(handled.progress(), |stop| handled.run(stop));
    script.drained().await;
    assert_eq!(place.effects().await, ["slow", "later"]);
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn what_waits_is_kept_while_others_come() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    let is_over = Arc::new(AtomicBool::new(false));
    let handled = consumer()
        .retry(RetryPolicy {
            pause_min: Duration::from_secs(1000),
            pause_max: Duration::from_secs(1000),
            ..RetryPolicy::default()
        })
        .batch_max(1)
        .source(script.kept_source(Duration::from_millis(200)))
        .database(place.database())
        .handle({
            let (script, is_over) = (script.clone(), is_over.clone());
            let next = AtomicUsize::new(0);
            async move |batch: &[Received], tx: &mut PostgresTransaction| {
                if batch[0].id() == "waits" {
                    return Err("not yet".into());
                }
                if !is_over.load(Ordering::SeqCst) {
                    // There is always one more.
                    script.deliver([message(next.fetch_add(1, Ordering::SeqCst))]);
                }
                write_effects(batch, tx).await
            }
        });
    let running = Running::spawn(handled.progress(), |stop| handled.run(stop));
    script.deliver([message("waits"), message("first")]);
    while running.progress.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    script.forget_kept();
    let kept = async {
        while !script.has_kept("waits") {
            tokio::task::yield_now().await;
        }
    };
    let kept = tokio::time::timeout(Duration::from_secs(10), kept).await;
    assert!(kept.is_ok(), "{:?}", running.progress.counts());
    is_over.store(true, Ordering::SeqCst);
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn what_follows_from_a_message_is_emitted_with_its_effect_under_one_id() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    let emit_and_fail_once = {
        let tries = std::sync::atomic::AtomicUsize::new(0);
        let ids = Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = ids.clone();
        let handler = async move |batch: &[Received], tx: &mut PostgresTransaction| {
            for message in batch {
                let next = Message::new("stock", "item", "{}");
                let id = message.emit(tx, "reserved", next).await?;
                seen.lock().expect("no panic").push(id);
            }
            match tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
                0 => Err("the first time".into()),
                _ => Ok(()),
            }
        };
        (handler, ids)
    };
    let (handler, ids) = emit_and_fail_once;
    let handled = consumer()
        .source(script.source())
        .database(place.database())
        .handle(handler);
    let running = Running::spawn(handled.progress(), |stop| handled.run(stop));
    script.deliver([message("a"), message("a")]);
    script.drained().await;
    let sql = "SELECT id::text, headers->>'causation-id' FROM hapax.outbox";
    let rows = place.client.query(sql, &[]).await.expect("the outbox");
    let ids = ids.lock().expect("no panic").clone();
    assert_eq!((rows.len(), ids.len()), (1, 2));
    assert_eq!(ids[0], ids[1]);
    assert_eq!(rows[0].get::<_, String>(0), ids[0].to_string());
    assert_eq!(rows[0].get::<_, String>(1), "a");
    running.stop().await.expect("it ran");
}
