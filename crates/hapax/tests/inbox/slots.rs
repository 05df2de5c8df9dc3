//! Tables of receipts are emptied whole, when their every possible time is over, and nobody is
//! surprised by it.

use crate::place::{DAY, Database, NOW, ask, code, receive};

/// The number of the table for a time.
fn slot(at: i64) -> i64 {
    at / (3 * DAY) % 16
}

async fn receipts(database: &Database) -> String {
    database
        .ask("SELECT count(*)::text FROM hapax.receipts")
        .await
}

/// A month of messages of two consumers: each is a duplicate as long as it is accepted at all.
#[tokio::test]
async fn a_receipt_is_there_as_long_as_its_message_is_accepted() {
    let Some(database) = Database::by_hand().await else {
        return;
    };
    let session = database.session().await;
    for (consumer, window) in [("short", "2 days"), ("long", "39 days")] {
        let sql = format!("SELECT hapax.set_window('{consumer}', '{window}')");
        session.batch_execute(&sql).await.expect("a window");
    }
    let windows = [("short", 2 * DAY), ("long", 39 * DAY)];
    let mut received: Vec<i64> = Vec::new();
    let mut emptied = 0;
    for step in 0..70 {
        let now = NOW + step * 34 * 60 * 60 * 1_000_000;
        database.turn_to(now).await;
        emptied += ask(&session, "SELECT hapax.receipts_sweep()")
            .await
            .expect("sweeps")
            .parse::<i64>()
            .expect("a number");
        for (consumer, window) in windows {
            for at in &received {
                let answer = ask(&session, &receive(consumer, &at.to_string(), *at)).await;
                let is_accepted = *at >= now - window;
                match answer {
                    Ok(is_new) => assert_eq!(is_new, "f", "{consumer}, {at} at {now}"),
                    Err(error) => {
                        assert_eq!(code(&error), "HX007");
                        assert!(!is_accepted, "{consumer}, {at} at {now}");
                    }
                }
            }
            for at in [now, now - DAY] {
                assert_eq!(
                    ask(&session, &receive(consumer, &at.to_string(), at))
                        .await
                        .expect("receives"),
                    "t"
                );
            }
        }
        received.extend([now, now - DAY]);
    }
    assert!(emptied > 15, "{emptied} tables were emptied");
    // Nothing comes any more. When the ring has gone round once, all is over.
    for day in 0..48 {
        database.turn_to(NOW + (300 + day) * DAY).await;
        database.ask("SELECT hapax.receipts_sweep()::text").await;
    }
    assert_eq!(receipts(&database).await, "0");
}

/// A message that waits for a table which is being emptied is too old afterwards. With the time
/// checked before the receipt is written, it would be applied a second time.
#[tokio::test]
async fn a_table_is_not_emptied_between_the_check_and_the_receipt() {
    let Some(database) = Database::by_hand().await else {
        return;
    };
    let session = database.session().await;
    let at = NOW - 14 * DAY;
    assert_eq!(
        ask(&session, &receive("c", "m", at))
            .await
            .expect("receives"),
        "t"
    );
    session
        .batch_execute("INSERT INTO effects VALUES ('m')")
        .await
        .expect("an effect");
    let batch = format!("SELECT hapax.receive_all('c', '[[\"m\", {at}]]')");
    for (sql, expected) in [(receive("c", "m", at), "HX007"), (batch, "o")] {
        let sweeper = database.session().await;
        database.turn_to(NOW).await;
        let lock = format!(
            "BEGIN; LOCK TABLE hapax.receipts_{:02} IN ACCESS EXCLUSIVE MODE",
            slot(at)
        );
        sweeper.batch_execute(&lock).await.expect("a lock");
        // Accepted by the clock when it begins.
        let receiving = ask(&session, &sql);
        let sweeping = async {
            database.until_waiting(1).await;
            database.turn_to(NOW + 6 * DAY).await;
            // As the sweep does with the lock; it finds the table over.
            let done = ask(&sweeper, "SELECT hapax.receipts_sweep()")
                .await
                .expect("sweeps");
            sweeper.batch_execute("COMMIT").await.expect("commits");
            done
        };
        let (received, _) = tokio::join!(receiving, sweeping);
        match received {
            Ok(letter) => assert_eq!(letter, expected),
            Err(error) => assert_eq!(code(&error), expected),
        }
        // Also by a clock that was set back: what was emptied stays too old.
        database.turn_to(NOW).await;
        let error = ask(&session, &receive("c", "m", at))
            .await
            .expect_err("too old");
        assert_eq!(code(&error), "HX007");
    }
    assert_eq!(receipts(&database).await, "0");
    assert_eq!(database.effects().await, "m");
}

/// Somebody who is receiving keeps the table, and the sweep does not wait for long.
#[tokio::test]
async fn a_table_in_use_is_left_for_the_next_time() {
    let Some(database) = Database::by_hand().await else {
        return;
    };
    let session = database.session().await;
    session.batch_execute("BEGIN").await.expect("begins");
    assert_eq!(
        ask(&session, &receive("c", "m", NOW))
            .await
            .expect("receives"),
        "t"
    );
    database.turn_to(NOW + 30 * DAY).await;
    let sweep = "SELECT hapax.receipts_sweep()::text";
    // Nothing is visible in it yet, but its file is there.
    assert_eq!(database.ask(sweep).await, "0");
    session.batch_execute("COMMIT").await.expect("commits");
    assert_eq!(database.ask(sweep).await, "1");
}

#[tokio::test]
async fn a_clock_that_is_ahead_empties_nothing_that_is_needed() {
    let Some(database) = Database::by_hand().await else {
        return;
    };
    let session = database.session().await;
    assert_eq!(
        ask(&session, &receive("c", "m", NOW))
            .await
            .expect("receives"),
        "t"
    );
    // The caller's clock vouches for the time.
    database.turn_to(NOW + 30 * DAY).await;
    assert_eq!(
        database
            .ask(&format!("SELECT hapax.receipts_sweep({NOW})::text"))
            .await,
        "0"
    );
    // Received by a clock that was ahead, and then set back: the receipt is of a later time.
    database.turn_to(NOW + 60 * DAY).await;
    assert_eq!(
        ask(&session, &receive("c", "later", NOW + 60 * DAY))
            .await
            .expect("receives"),
        "t"
    );
    database.turn_to(NOW + 40 * DAY).await;
    database.ask("SELECT hapax.receipts_sweep()::text").await;
    database.turn_to(NOW + 61 * DAY).await;
    assert_eq!(
        ask(&session, &receive("c", "later", NOW + 60 * DAY))
            .await
            .expect("receives"),
        "f"
    );
}
