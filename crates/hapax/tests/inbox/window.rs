//! A window that changes loses no receipt.

use crate::place::{DAY, Database, NOW, ask, code, receive, said};

#[tokio::test]
async fn from_limited_to_forever_and_back_every_duplicate_is_known() {
    let Some(database) = Database::by_hand().await else {
        return;
    };
    let session = database.session().await;
    let ages = [0, 1, 5, 13];
    for age in ages {
        let at = NOW - age * DAY;
        assert_eq!(
            ask(&session, &receive("c", &age.to_string(), at))
                .await
                .expect("receives"),
            "t"
        );
    }
    assert_eq!(
        ask(&session, "SELECT hapax.receive('c', 'untimed')")
            .await
            .expect("receives"),
        "t"
    );
    assert_eq!(
        ask(&session, &receive("other", "0", NOW))
            .await
            .expect("receives"),
        "t"
    );
    for window in ["NULL", "'20 days'", "NULL", "NULL", "'39 days'"] {
        let sql = format!("SELECT hapax.set_window('c', {window})");
        session.batch_execute(&sql).await.expect("a window");
        let forever = database
            .ask("SELECT count(*)::text FROM hapax.receipts_forever")
            .await;
        assert_eq!(forever, if window == "NULL" { "5" } else { "0" });
        for age in ages {
            let at = NOW - age * DAY;
            let answer = ask(&session, &receive("c", &age.to_string(), at)).await;
            assert_eq!(answer.expect("receives"), "f", "{window}: {age} days old");
        }
        assert_eq!(
            ask(&session, "SELECT hapax.receive('c', 'untimed')")
                .await
                .expect("receives"),
            "f"
        );
        // Older ones may have been received before, when nothing was kept for so long.
        let error = ask(&session, &receive("c", "older", NOW - 15 * DAY))
            .await
            .expect_err("too old");
        assert_eq!(code(&error), "HX007", "{window}");
    }
    assert_eq!(
        ask(&session, &receive("other", "0", NOW))
            .await
            .expect("receives"),
        "f"
    );
}

#[tokio::test]
async fn a_consumer_that_never_was_limited_takes_any_age() {
    let Some(database) = Database::by_hand().await else {
        return;
    };
    let session = database.session().await;
    session
        .batch_execute("SELECT hapax.set_window('c', NULL)")
        .await
        .expect("a window");
    for expected in ["t", "f"] {
        assert_eq!(
            ask(&session, &receive("c", "m", 5))
                .await
                .expect("receives"),
            expected
        );
    }
    database.turn_to(NOW + 1000 * DAY).await;
    database.ask("SELECT hapax.receipts_sweep()::text").await;
    assert_eq!(
        ask(&session, &receive("c", "m", 5))
            .await
            .expect("receives"),
        "f"
    );
    assert_eq!(
        ask(
            &session,
            "SELECT hapax.receive_all('c', '[[\"m\", 5], [\"n\"]]')"
        )
        .await
        .expect("receives"),
        "dn"
    );
}

#[tokio::test]
async fn a_shorter_window_that_becomes_longer_again_does_not_forget_what_was_emptied() {
    let Some(database) = Database::by_hand().await else {
        return;
    };
    let session = database.session().await;
    let at = NOW - 12 * DAY;
    assert_eq!(
        ask(&session, &receive("c", "m", at))
            .await
            .expect("receives"),
        "t"
    );
    session
        .batch_execute("SELECT hapax.set_window('c', '1 hour')")
        .await
        .expect("a window");
    assert_eq!(
        database.ask("SELECT hapax.receipts_sweep()::text").await,
        "1"
    );
    session
        .batch_execute("SELECT hapax.set_window('c', '39 days')")
        .await
        .expect("a window");
    let error = ask(&session, &receive("c", "m", at))
        .await
        .expect_err("too old");
    assert_eq!(code(&error), "HX007");
}

/// Who is receiving is waited for; who comes during the change runs its transaction again.
#[tokio::test]
async fn a_change_and_a_message_at_once() {
    let Some(database) = Database::by_hand().await else {
        return;
    };
    let (first, second, operator) = (
        database.session().await,
        database.session().await,
        database.session().await,
    );
    let registers = receive("c", "before", NOW);
    assert_eq!(ask(&first, &registers).await.expect("receives"), "t");
    first.batch_execute("BEGIN").await.expect("begins");
    assert_eq!(
        ask(&first, &receive("c", "m", NOW))
            .await
            .expect("receives"),
        "t"
    );
    let change = async {
        operator
            .batch_execute("SELECT hapax.set_window('c', NULL)")
            .await
    };
    let late = async {
        database.until_waiting(1).await;
        ask(&second, &receive("c", "m", NOW)).await
    };
    let commit = async {
        database.until_waiting(2).await;
        first.batch_execute("COMMIT").await.expect("commits");
    };
    let (changed, answer, ()) = tokio::join!(change, late, commit);
    changed.unwrap_or_else(|error| panic!("{}", said(&error)));
    match answer {
        Ok(is_new) => assert_eq!(is_new, "f"),
        Err(error) => assert_eq!(code(&error), "40001", "{}", said(&error)),
    }
    assert_eq!(
        ask(&second, &receive("c", "m", NOW))
            .await
            .expect("receives"),
        "f"
    );
    assert_eq!(
        database
            .ask("SELECT count(*)::text FROM hapax.receipts")
            .await,
        "0"
    );
}
