//! The life of a message that is not applied.

use crate::place::{DAY, Database, NOW, ask, code, receive};

#[tokio::test]
async fn a_poison_message_is_counted_parked_retried_and_skipped() {
    let Some(database) = Database::by_hand().await else {
        return;
    };
    let session = database.session().await;
    for attempts in ["1", "2", "3"] {
        let sql = "SELECT hapax.message_failed('c', 'm', 'bad input')";
        assert_eq!(ask(&session, sql).await.expect("counts"), attempts);
    }
    let next = "SELECT id || ' ' || kind || ' ' || reason || ' ' || topic || ' ' || encode(payload, 'hex') FROM hapax.parked_take('c')";
    assert_eq!(ask(&session, next).await.expect("takes"), "no row");
    let park = format!(
        "SELECT hapax.park('c', 'm', 'failed', 'bad input', 't', 'k', at => to_timestamp({}), headers => '{{\"a\": \"b\"}}', payload => '\\x00ff')",
        NOW / 1_000_000
    );
    for parked in ["t", "f"] {
        assert_eq!(
            ask(&session, &park).await.expect("parks"),
            parked,
            "a redelivery is absorbed"
        );
    }
    let list = "SELECT string_agg(concat_ws(' ', consumer, id, state, kind, attempts, payload_bytes), ', ') FROM hapax.parked_list('c', 1::int2, 0, 10)";
    assert_eq!(database.ask(list).await, "c m 1 failed 3 2");
    let retry = "SELECT hapax.parked_retry('c', 'm', false, 'ada', 'mended')";
    for done in ["t", "f"] {
        assert_eq!(ask(&session, retry).await.expect("retries"), done);
    }
    // Whoever has it keeps others from it.
    session.batch_execute("BEGIN").await.expect("begins");
    assert_eq!(
        ask(&session, next).await.expect("takes"),
        "m failed bad input t 00ff"
    );
    assert_eq!(database.ask(next).await, "no row");
    session.batch_execute("ROLLBACK").await.expect("rolls back");
    // It fails again.
    assert_eq!(
        ask(
            &session,
            "SELECT hapax.message_failed('c', 'm', 'still bad')"
        )
        .await
        .expect("counts"),
        "1"
    );
    assert_eq!(
        ask(&session, "SELECT hapax.park_again('c', 'm', 'still bad')")
            .await
            .expect("parks"),
        "t"
    );
    assert_eq!(ask(&session, next).await.expect("takes"), "no row");
    // Then it is applied, in one transaction with its receipt.
    assert_eq!(ask(&session, retry).await.expect("retries"), "t");
    for end in ["ROLLBACK", "COMMIT"] {
        session.batch_execute("BEGIN").await.expect("begins");
        assert_eq!(
            ask(&session, next).await.expect("takes"),
            "m failed still bad t 00ff"
        );
        assert_eq!(
            ask(&session, "SELECT hapax.parked_done('c', 'm')")
                .await
                .expect("done"),
            "t"
        );
        session
            .batch_execute("INSERT INTO effects VALUES ('m')")
            .await
            .expect("an effect");
        session.batch_execute(end).await.expect("ends");
    }
    assert_eq!(database.effects().await, "m");
    assert_eq!(
        ask(&session, &receive("c", "m", NOW))
            .await
            .expect("receives"),
        "f"
    );
    assert_eq!(
        ask(&session, "SELECT hapax.parked_done('c', 'm')")
            .await
            .expect("done"),
        "f"
    );
    // Another one is skipped: never applied.
    ask(&session, "SELECT hapax.park('c', 'n', 'failed')")
        .await
        .expect("parks");
    assert_eq!(
        ask(
            &session,
            "SELECT hapax.parked_skip('c', 'n', 'ada', 'never mind')"
        )
        .await
        .expect("skips"),
        "t"
    );
    assert_eq!(
        ask(&session, "SELECT hapax.receive('c', 'n')")
            .await
            .expect("receives"),
        "f"
    );
    let log = "SELECT string_agg(convert_from(action, 'UTF8') || ': ' || convert_from(reason, 'UTF8'), ', ' ORDER BY sequence) FROM hapax.audit";
    assert_eq!(
        database.ask(log).await,
        "inbox-retry: mended (c, m), inbox-retry: mended (c, m), inbox-skip: never mind (c, n)"
    );
}

#[tokio::test]
async fn one_that_recovers_is_forgotten_with_its_effect() {
    let Some(database) = Database::new().await else {
        return;
    };
    let session = database.session().await;
    for (end, left) in [("ROLLBACK", "1"), ("COMMIT", "0")] {
        ask(
            &session,
            "SELECT hapax.message_failed('c', 'm', 'a deadlock')",
        )
        .await
        .expect("counts");
        session.batch_execute("BEGIN").await.expect("begins");
        assert_eq!(
            ask(&session, "SELECT hapax.receive('c', 'm', now())")
                .await
                .expect("receives"),
            "t"
        );
        assert_eq!(
            ask(&session, "SELECT hapax.message_recovered('c', 'm')")
                .await
                .expect("recovers"),
            "t"
        );
        session.batch_execute(end).await.expect("ends");
        assert_eq!(
            database
                .ask("SELECT count(*)::text FROM hapax.parked")
                .await,
            left
        );
    }
}

/// One member counts a failure, and another one applies the message.
#[tokio::test]
async fn failures_are_forgotten_after_a_week_and_nothing_else_is() {
    let Some(database) = Database::by_hand().await else {
        return;
    };
    let session = database.session().await;
    for sql in [
        "SELECT hapax.message_failed('c', 'a', 'no')",
        "SELECT hapax.message_failed('c', 'b', 'no')",
        "SELECT hapax.park('c', 'parked', 'failed')",
    ] {
        ask(&session, sql).await.expect(sql);
    }
    database.turn_to(NOW + 6 * DAY).await;
    ask(&session, "SELECT hapax.message_failed('c', 'b', 'no')")
        .await
        .expect("counts");
    database.turn_to(NOW + 8 * DAY).await;
    ask(&session, "SELECT hapax.receipts_sweep()")
        .await
        .expect("sweeps");
    let left =
        "SELECT string_agg(concat_ws(' ', id, attempts), ', ' ORDER BY id) FROM hapax.parked";
    assert_eq!(database.ask(left).await, "b 2, parked 0");
}

/// Nobody can tell whether a message was applied whose receipt would be gone: a person has to.
#[tokio::test]
async fn a_message_that_is_too_old_is_tried_again_only_if_somebody_states_that_it_was_not_applied()
{
    let Some(database) = Database::by_hand().await else {
        return;
    };
    let session = database.session().await;
    let old = (NOW - 20 * DAY) / 1_000_000;
    let park = format!("SELECT hapax.park('c', 'm', 'too-old', at => to_timestamp({old}))");
    assert_eq!(ask(&session, &park).await.expect("parks"), "t");
    // Parked in time, and too old by now.
    let young = NOW / 1_000_000;
    let park = format!("SELECT hapax.park('c', 'n', 'failed', at => to_timestamp({young}))");
    assert_eq!(ask(&session, &park).await.expect("parks"), "t");
    assert_eq!(
        ask(
            &session,
            "SELECT hapax.parked_retry('c', 'n', false, 'ada', 'x')"
        )
        .await
        .expect("retries"),
        "t"
    );
    database.turn_to(NOW + 15 * DAY).await;
    let next = "SELECT id FROM hapax.parked_take('c')";
    assert_eq!(
        ask(&session, next).await.expect("takes"),
        "no row",
        "it is parked again"
    );
    for id in ["m", "n"] {
        for not_applied in ["false", "NULL"] {
            let sql = format!("SELECT hapax.parked_retry('c', '{id}', {not_applied}, 'ada', 'x')");
            assert_eq!(
                code(&ask(&session, &sql).await.expect_err("refused")),
                "HX013"
            );
        }
        let sql = format!("SELECT hapax.parked_retry('c', '{id}', true, 'ada', 'looked')");
        assert_eq!(ask(&session, &sql).await.expect("retries"), "t");
        assert_eq!(ask(&session, next).await.expect("takes"), id);
        assert_eq!(
            ask(&session, &format!("SELECT hapax.parked_done('c', '{id}')"))
                .await
                .expect("done"),
            "t"
        );
    }
}

#[tokio::test]
async fn a_message_without_an_id_gets_one_of_its_content() {
    let Some(database) = Database::new().await else {
        return;
    };
    let session = database.session().await;
    let park = |payload: &str| {
        format!("SELECT hapax.park('c', NULL, 'no-id', 'none', 't', payload => '{payload}')")
    };
    assert_eq!(ask(&session, &park("a")).await.expect("parks"), "t");
    assert_eq!(ask(&session, &park("a")).await.expect("parks"), "f");
    assert_eq!(ask(&session, &park("b")).await.expect("parks"), "t");
    let error = ask(&session, "SELECT hapax.park('c', NULL, 'failed')")
        .await
        .expect_err("refused");
    assert_eq!(code(&error), "22023");
    let now = "SELECT concat_ws(' ', name, time_window, trying, again, failed, too_old, ahead, gap, no_id) FROM hapax.consumers_now()";
    assert_eq!(database.ask(now).await, "c 1209600000000 0 0 0 0 0 0 2");
}
