//! What `hapax.receive` and `hapax.receive_all` do, and refuse.

use crate::place::{DAY, Database, MINUTE, NOW, ask, code, receive, said};

#[tokio::test]
async fn a_message_has_its_effect_once_and_a_rollback_takes_the_receipt_back() {
    let Some(database) = Database::new().await else {
        return;
    };
    let session = database.session().await;
    for (end, expected) in [
        ("ROLLBACK", "t"),
        ("COMMIT", "t"),
        ("COMMIT", "f"),
        ("COMMIT", "f"),
    ] {
        session.batch_execute("BEGIN").await.expect("begins");
        let is_new = ask(&session, "SELECT hapax.receive('c', 'm', now())")
            .await
            .expect("receives");
        assert_eq!(is_new, expected);
        if is_new == "t" {
            session
                .batch_execute("INSERT INTO effects VALUES ('m')")
                .await
                .expect("an effect");
        }
        session.batch_execute(end).await.expect("ends");
    }
    assert_eq!(database.effects().await, "m");
    // Another consumer has receipts of its own.
    assert_eq!(
        ask(&session, "SELECT hapax.receive('d', 'm', now())")
            .await
            .expect("receives"),
        "t"
    );
}

/// Two deliveries at once: the second waits for the first, and is a duplicate if that commits and
/// the first one if it does not. The same with a time and without.
#[tokio::test]
async fn a_concurrent_duplicate_waits() {
    let Some(database) = Database::new().await else {
        return;
    };
    for (number, at) in ["now()", "NULL"].into_iter().enumerate() {
        for (end, expected) in [("COMMIT", "f"), ("ROLLBACK", "t")] {
            let id = format!("{number}-{end}");
            let sql = format!("SELECT hapax.receive('c', '{id}', {at})");
            let effect = format!("INSERT INTO effects VALUES ('{id}')");
            let first = database.session().await;
            first.batch_execute("BEGIN").await.expect("begins");
            assert_eq!(ask(&first, &sql).await.expect("receives"), "t");
            first.batch_execute(&effect).await.expect("an effect");
            let second = database.session().await;
            second.batch_execute("BEGIN").await.expect("begins");
            let waiting = ask(&second, &sql);
            let ending = async {
                database.until_waiting(1).await;
                first.batch_execute(end).await.expect("ends");
            };
            let (is_new, ()) = tokio::join!(waiting, ending);
            assert_eq!(is_new.expect("receives"), expected, "{id}");
            if expected == "t" {
                second.batch_execute(&effect).await.expect("an effect");
            }
            second.batch_execute("COMMIT").await.expect("commits");
        }
    }
    assert_eq!(
        database.effects().await,
        "0-COMMIT 0-ROLLBACK 1-COMMIT 1-ROLLBACK"
    );
}

#[tokio::test]
async fn a_message_without_a_time_is_found_in_every_table() {
    let Some(database) = Database::by_hand().await else {
        return;
    };
    let session = database.session().await;
    let untimed = "SELECT hapax.receive('c', 'u')";
    assert_eq!(ask(&session, untimed).await.expect("receives"), "t");
    // Received with a time first.
    assert_eq!(
        ask(&session, &receive("c", "t", NOW - 6 * DAY))
            .await
            .expect("receives"),
        "t"
    );
    assert_eq!(
        ask(&session, "SELECT hapax.receive('c', 't')")
            .await
            .expect("receives"),
        "f"
    );
    for days in [0, 3, 6, 9, 12] {
        database.turn_to(NOW + days * DAY).await;
        assert_eq!(
            ask(&session, untimed).await.expect("receives"),
            "f",
            "{days} days later"
        );
        let batch = "SELECT hapax.receive_all('c', '[[\"u\"], [\"x\"], [\"x\"]]')";
        let expected = if days == 0 { "dnd" } else { "ddd" };
        assert_eq!(
            ask(&session, batch).await.expect("receives"),
            expected,
            "{days} days later"
        );
    }
}

#[tokio::test]
async fn what_is_too_old_or_ahead_is_an_error_and_leaves_no_receipt() {
    let Some(database) = Database::by_hand().await else {
        return;
    };
    let session = database.session().await;
    let (oldest, latest) = (NOW - 14 * DAY, NOW + 5 * MINUTE);
    for (at, expected) in [
        (oldest - 1, "HX007"),
        (latest + 1, "HX012"),
        (0, "HX007"),
        (-1, "HX007"),
    ] {
        let error = ask(&session, &receive("c", "m", at))
            .await
            .expect_err("refused");
        assert_eq!(code(&error), expected, "{at}: {}", said(&error));
        let letter = if expected == "HX007" { "o" } else { "f" };
        let batch = format!("SELECT hapax.receive_all('c', '[[\"m\", {at}], [\"m\", {at}]]')");
        assert_eq!(
            ask(&session, &batch).await.expect("receives"),
            letter.repeat(2),
            "{at}"
        );
    }
    assert_eq!(
        database
            .ask("SELECT count(*)::text FROM hapax.receipts")
            .await,
        "0"
    );
    for (id, at) in [("oldest", oldest), ("latest", latest)] {
        assert_eq!(
            ask(&session, &receive("c", id, at))
                .await
                .expect("receives"),
            "t"
        );
    }
    // A duplicate whose receipt is still there is told as one, whatever its age.
    database.turn_to(NOW + DAY).await;
    assert_eq!(
        ask(&session, &receive("c", "oldest", oldest))
            .await
            .expect("receives"),
        "f"
    );
}

#[tokio::test]
async fn a_batch_has_a_letter_for_each_message() {
    let Some(database) = Database::by_hand().await else {
        return;
    };
    let session = database.session().await;
    assert_eq!(
        ask(&session, &receive("c", "known", NOW))
            .await
            .expect("receives"),
        "t"
    );
    let batch = format!(
        r#"SELECT hapax.receive_all('c', '[["a", {NOW}], ["known", {NOW}], ["old", 5], ["a", {NOW}], ["ahead", {ahead}], ["b", {earlier}], ["old", 5], ["c"]]')"#,
        ahead = NOW + DAY,
        earlier = NOW - 10 * DAY,
    );
    assert_eq!(ask(&session, &batch).await.expect("receives"), "ndodfnon");
    assert_eq!(ask(&session, &batch).await.expect("receives"), "ddodfdod");
    assert_eq!(
        database
            .ask("SELECT count(*)::text FROM hapax.receipts")
            .await,
        "4"
    );
    // A rollback takes all of it back.
    session.batch_execute("BEGIN").await.expect("begins");
    let more = r#"SELECT hapax.receive_all('c', '[["x"], ["y"]]')"#;
    assert_eq!(ask(&session, more).await.expect("receives"), "nn");
    session.batch_execute("ROLLBACK").await.expect("rolls back");
    assert_eq!(ask(&session, more).await.expect("receives"), "nn");
    assert_eq!(
        ask(&session, "SELECT hapax.receive_all('c', '[]')")
            .await
            .expect("receives"),
        ""
    );
}

/// Batches that overlap in any order never wait for each other in a circle.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn batches_lock_in_one_order() {
    let Some(database) = Database::new().await else {
        return;
    };
    let rounds = 30;
    let mut running = tokio::task::JoinSet::new();
    for number in 0..4 {
        let session = database.session().await;
        running.spawn(async move {
            for round in 0..rounds {
                let mut ids: Vec<String> = (0..40).map(|id| format!("{round}-{id}")).collect();
                ids.rotate_left(number * 10);
                if number % 2 == 1 {
                    ids.reverse();
                }
                let messages: Vec<String> = ids
                    .iter()
                    .enumerate()
                    .map(|(place, id)| format!("[\"{id}\", null, \"e{place}\", 1]"))
                    .collect();
                session.batch_execute("BEGIN").await.expect("begins");
                let sql = format!("SELECT hapax.receive_all('c', '[{}]')", messages.join(","));
                let letters = ask(&session, &sql)
                    .await
                    .unwrap_or_else(|error| panic!("{}", said(&error)));
                for (id, letter) in ids.iter().zip(letters.chars()) {
                    if matches!(letter, 'n' | 's') {
                        session
                            .batch_execute(&format!("INSERT INTO effects VALUES ('{id}')"))
                            .await
                            .expect("an effect");
                    }
                }
                session.batch_execute("COMMIT").await.expect("commits");
            }
        });
    }
    running.join_all().await;
    let counts = database
        .ask("SELECT count(*) || ' ' || count(DISTINCT message) FROM effects")
        .await;
    assert_eq!(counts, format!("{n} {n}", n = rounds * 40));
}

#[tokio::test]
async fn refusals_say_what_is_wrong() {
    let Some(database) = Database::new().await else {
        return;
    };
    let session = database.session().await;
    for (sql, expected, text) in [
        (
            "SELECT hapax.receive('c', '')",
            "22023",
            "the id of a message has 1 to 1024 bytes",
        ),
        (
            "SELECT hapax.receive('c', NULL)",
            "22023",
            "the id of a message",
        ),
        (
            "SELECT hapax.receive('c', repeat('x', 1025))",
            "22023",
            "the id of a message",
        ),
        (
            "SELECT hapax.receive('', 'm')",
            "22023",
            "the name of a consumer has 1 to 1024 bytes",
        ),
        (
            "SELECT hapax.receive(NULL, 'm')",
            "22023",
            "the name of a consumer",
        ),
        (
            "SELECT hapax.receive(repeat('x', 1025), 'm')",
            "22023",
            "the name of a consumer",
        ),
        (
            "SELECT hapax.receive('c', 'm', 'infinity')",
            "22023",
            "a moment, and not infinity",
        ),
        (
            "SELECT hapax.receive_all('c', '{}')",
            "22023",
            "takes an array of arrays",
        ),
        (
            "SELECT hapax.receive_all('c', '[\"m\"]')",
            "22023",
            "takes an array of arrays",
        ),
        (
            "SELECT hapax.receive_all('c', '[[5]]')",
            "22023",
            "not a message: [5]",
        ),
        (
            "SELECT hapax.receive_all('c', '[[\"\"]]')",
            "22023",
            "not a message",
        ),
        (
            "SELECT hapax.receive_all('c', '[[\"m\", \"x\"]]')",
            "22023",
            "not a message",
        ),
        (
            "SELECT hapax.receive_all('c', '[]', 'skip')",
            "22023",
            "'apply' or 'park'",
        ),
        (
            "SELECT hapax.receive_all('', '[[\"m\"]]')",
            "22023",
            "the name of a consumer",
        ),
        (
            "SELECT hapax.set_window('c', '59 minutes')",
            "22023",
            "one hour to 39 days",
        ),
        (
            "SELECT hapax.set_window('c', '39 days 1 second')",
            "22023",
            "one hour to 39 days",
        ),
        (
            "SELECT hapax.park('c', 'm', 'bored')",
            "22023",
            "too-old, ahead, gap or no-id",
        ),
        (
            "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT hapax.receive('c', 'm')",
            "HX001",
            "READ COMMITTED only",
        ),
    ] {
        let error = session.batch_execute(sql).await.expect_err(sql);
        assert!(said(&error).contains(text), "{sql}: {}", said(&error));
        assert_eq!(code(&error), expected, "{sql}");
    }
    session.batch_execute("ROLLBACK").await.expect("rolls back");
    for sql in [
        "SELECT hapax.receive(repeat('x', 1024), repeat('y', 1024), now())",
        "SELECT hapax.set_window('w', '39 days')",
    ] {
        session.batch_execute(sql).await.expect(sql);
    }
}
