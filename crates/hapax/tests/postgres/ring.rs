//! Tables of answers are emptied as a whole, each when it is due, and no answer is removed before
//! its retention is over.

use std::time::Duration;

use hapax_core::store::{Change, Finish, Lifetime, Written};
use hapax_core::{Head, Put, Store};
use hapax_testkit::ManualClock;

use crate::lanes::{claim, finish, won};
use crate::place::{self, ByHand};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// From minutes to longer than the ring covers.
const RETENTIONS: [Duration; 8] = [
    Duration::from_secs(30 * 60),
    Duration::from_secs(3 * 60 * 60),
    Duration::from_secs(23 * 60 * 60),
    DAY,
    Duration::from_secs(40 * 60 * 60),
    Duration::from_secs(5 * 24 * 60 * 60),
    Duration::from_secs(20 * 24 * 60 * 60),
    Duration::from_secs(40 * 24 * 60 * 60),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_is_there_until_its_retention_is_over_and_no_longer() {
    let Some((_, url)) = place::prepared().await else {
        return;
    };
    let clock = ManualClock::new();
    let store = ByHand::open(&url, clock.clone()).await;
    let mut kept = Vec::new();
    // Writes answers at every hour of a day and a half, so that each finds its table at another
    // point of its period; then continues until the last retention is over.
    for hour in 0..36 {
        let number = hour % RETENTIONS.len();
        kept.push(completed(&store, &format!("hour {hour}"), RETENTIONS[number]).await);
        kept.push(
            completed(
                &store,
                &format!("and {hour}"),
                RETENTIONS[(number + 3) % RETENTIONS.len()],
            )
            .await,
        );
        pass(&store, &clock, HOUR - MINUTE, &kept).await;
    }
    for _ in 0..48 {
        pass(&store, &clock, HOUR + MINUTE, &kept).await;
    }
    for _ in 0..100 {
        pass(&store, &clock, 11 * HOUR, &kept).await;
    }
    assert!(store.turns() > 20, "{} turns", store.turns());
    let session = place::session(&url).await;
    let held = session
        .query("SELECT count(*) FROM hapax.answers_32", &[])
        .await
        .expect("counted");
    assert_eq!(
        held[0].get::<_, i64>(0),
        0,
        "what outlasts the rings goes one by one"
    );
}

async fn completed(store: &ByHand, key: &str, retention: Duration) -> Head {
    let head = won(store.put_if(claim(key)).await);
    let Put {
        id,
        condition,
        change: Change::Finish(finish),
    } = finish(&head, key)
    else {
        unreachable!()
    };
    let change = Change::Finish(Finish {
        lifetime: Lifetime {
            retention,
            tombstone: 365 * DAY,
        },
        ..finish
    });
    won(store
        .put_if(Put {
            id,
            condition,
            change,
        })
        .await)
}

/// Advances the clock, lets the tables turn, and checks every answer.
async fn pass(store: &ByHand, clock: &ManualClock, duration: Duration, kept: &[Head]) {
    clock.advance(duration);
    while store.sweep(1_000).await.expect("swept").total() > 0 {}
    let reading = store
        .get(kept.iter().map(|head| head.id).collect())
        .await
        .expect("read");
    for (head, record) in kept.iter().zip(reading.records) {
        let answer = record.expect("its tombstone stands").answer;
        assert_eq!(
            answer.is_some(),
            reading.now < head.expires_at,
            "at {:?} of {head:?}",
            reading.now
        );
    }
}

/// Only the database's clock jumps; the node's clock stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_ahead_empties_and_removes_nothing() {
    let Some((_, url)) = place::prepared().await else {
        return;
    };
    let clock = ManualClock::new();
    let store = ByHand::open(&url, clock.clone()).await;
    store.sweep(10).await.expect("swept");
    let kept = [
        completed(&store, "k", DAY).await,
        completed(&store, "l", 20 * DAY).await,
    ];
    let session = place::session(&url).await;
    for days in [1, 30, 3_000] {
        let ahead = clock.now().after(days * DAY).as_micros();
        session
            .batch_execute(&format!("UPDATE hapax.hand SET now = {ahead}"))
            .await
            .expect("a jump");
        assert!(
            matches!(store.put_if(claim("k")).await, Ok(Written::Lost(_))),
            "{days} days: it would run again"
        );
        assert_eq!(
            (
                store.sweep(1_000).await.expect("swept").total(),
                store.turns()
            ),
            (0, 0),
            "{days} days"
        );
        let reading = store
            .get(kept.iter().map(|head| head.id).collect())
            .await
            .expect("read");
        assert!(
            reading
                .records
                .iter()
                .flatten()
                .all(|record| record.answer.is_some()),
            "{days} days: {reading:?}"
        );
    }
    // Now the node's clock agrees, so the time is accepted.
    clock.advance(400 * DAY);
    store.sweep(1_000).await.expect("swept");
    store.sweep(1_000).await.expect("swept");
    assert!(
        matches!(store.put_if(claim("k")).await, Ok(Written::Won(_))),
        "it is over"
    );
}
