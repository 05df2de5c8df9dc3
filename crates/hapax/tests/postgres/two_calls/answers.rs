//! What a repeat gets in every state of its record.

use std::sync::Arc;

use hapax_core::{Answer, State, Store};

use super::{Reply, Shop, Started, complete, id, is_run, kept, order, ordered, refused, start};
use crate::place;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_gets_the_first_answer_and_has_no_second_effect() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    assert!(is_run(&shop.order("hat", "{}").await));
    for _ in 0..3 {
        assert_eq!(shop.order("hat", "{}").await, Ok(ordered("hat")));
    }
    assert_eq!(shop.orders("hat").await, 1);
    // The same key for another caller, or another operation, is another key.
    for (principal, operation) in [("'bob'", "POST /orders"), ("NULL", "send"), ("''", "send")] {
        let sql = format!(
            "BEGIN; SELECT hapax.complete(operation_id, fence, 201)
             FROM hapax.start('shop', {principal}, '{operation}', 'hat', hapax.fingerprint('{{}}')) WHERE run; COMMIT"
        );
        shop.sql(&sql).await;
    }
    assert_eq!(shop.records("hat").await, 4);
}

/// The library and the operators' commands read these records as they read their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_library_reads_the_record_and_makes_the_same_id() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let begun = shop.order("hat", "{}").await.expect("an order");
    let Started::Run {
        operation_id,
        fence,
    } = &begun
    else {
        panic!("{begun:?}");
    };
    let store = place::open(&shop.url).await;
    let read = store.get(vec![id("hat")]).await.expect("read").records;
    let record = read
        .into_iter()
        .next()
        .flatten()
        .expect("a record under the id of the library");
    let mut answer = Answer::new(201, "ordered hat");
    answer.headers = vec![("content-type".to_owned(), "text/plain".into())];
    assert_eq!(record.answer, Some(Arc::new(answer)));
    assert_eq!(record.head.state, State::Completed);
    assert_eq!(record.head.fence.as_u64(), fence.unsigned_abs());
    assert_eq!(record.head.id.to_string(), *operation_id);
}

/// A transaction that is rolled back may have called another service. The one that runs in its
/// place must call it under the same key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_derived_key_is_the_same_on_every_attempt() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let session = shop.session().await;
    let derived = async |key: &str, step: &str| -> String {
        session.batch_execute("BEGIN").await.expect("begun");
        let Ok(Started::Run { operation_id, .. }) = start(&session, key, "{}", None).await else {
            panic!("{key} runs");
        };
        let row = session
            .query_one("SELECT hapax.derive($1, $2)", &[&operation_id, &step])
            .await;
        session
            .batch_execute("ROLLBACK")
            .await
            .expect("rolled back");
        row.expect("derived").get(0)
    };
    let first = derived("hat", "pay").await;
    assert_eq!(derived("hat", "pay").await, first);
    assert_ne!(derived("hat", "mail").await, first);
    assert_ne!(derived("coat", "pay").await, first);
    for wrong in ["'abc', 'pay'", "NULL, 'pay'", "repeat('a', 64), NULL"] {
        let said = session
            .batch_execute(&format!("SELECT hapax.derive({wrong})"))
            .await;
        assert_eq!(
            said.map_err(super::code),
            Err("22023".to_owned()),
            "{wrong}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_and_repeated_fields_come_back_as_they_were() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let session = shop.session().await;
    session.batch_execute("BEGIN").await.expect("begun");
    let Ok(Started::Run {
        operation_id,
        fence,
    }) = start(&session, "bytes", "{}", None).await
    else {
        panic!("a new key runs");
    };
    let body: Vec<u8> = (0..=255).collect();
    let headers = r#"[["Link", "<a>"], ["X-Count", "3"], ["Link", " <b> "], ["link", "<c>"], ["Set-Cookie", "a=b"], ["Date", "now"]]"#;
    let sql = "SELECT hapax.complete($1, $2, 299, $3::text::jsonb, $4::bytea)";
    session
        .execute(sql, &[&operation_id, &fence, &headers, &body])
        .await
        .expect("completed");
    session.batch_execute("COMMIT").await.expect("committed");
    let expected = Started::Replay(Reply {
        status: 299,
        headers: serde_json::json!({ "link": ["<a>", "<b>", "<c>"], "x-count": "3" }),
        body,
    });
    assert_eq!(order(&session, "bytes", "{}").await, Ok(expected));
}

/// The short way through `hapax.complete` has a list of its own of what is not kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_that_are_never_kept_are_in_no_replay() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let never = "connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade date age \
                 content-length idempotent-replayed idempotency-expires x-request-id set-cookie hapax-outcome Set-Cookie";
    for name in never.split_whitespace() {
        let sql = format!(
            "BEGIN; SELECT hapax.complete(operation_id, fence, 201, '{{\"content-type\": \"text/plain\", \"{name}\": \"1\"}}', 'ordered')
             FROM hapax.start('shop', 'ada', 'POST /orders', '{name}', hapax.fingerprint('{{}}')) WHERE run; COMMIT"
        );
        shop.sql(&sql).await;
        assert_eq!(
            shop.order(name, "{}").await,
            Ok(kept(201, "ordered")),
            "{name}"
        );
    }
}

/// Every state, set by the owner of the schema, and what the same and another request get.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_is_answered_by_the_state_of_its_record() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let past = "expires_at = 1, finished_at = 1";
    let cases = [
        ("state = 2", "kept"),
        ("state = 3", "kept"),
        ("slot = NULL", "HX418"),
        ("state = 1, lease_until = 9000000000000000", "HX409"),
        ("state = 1, lease_until = 1", "HX419"),
        ("state = 5", "HX419"),
        (&format!("state = 5, {past}"), "HX419"),
        ("state = 4, slot = NULL", "run"),
        (past, "HX410"),
        (&format!("state = 4, {past}"), "HX410"),
        ("state = 10, slot = NULL, expires_at = 1", "HX410"),
        ("state = 13, slot = NULL, expires_at = 1", "HX419"),
        ("fingerprint = NULL, state = 10", "HX410"),
        (&format!("tombstone_until = 1, {past}"), "run"),
    ];
    for (number, (change, expected)) in cases.into_iter().enumerate() {
        let key = format!("case-{number}");
        assert!(is_run(&shop.order(&key, "{}").await));
        shop.sql(&format!(
            "UPDATE hapax.heads SET {change} WHERE key = '{key}'"
        ))
        .await;
        let is_gone = change.contains("tombstone_until");
        let other = shop.order(&key, r#"{"other": 1}"#).await;
        if is_gone {
            // Nothing is remembered, so any request may use the key.
            assert!(is_run(&other), "{change}: {other:?}");
            assert_eq!(shop.orders(&key).await, 2);
            continue;
        }
        let forgotten = change.contains("fingerprint");
        assert_eq!(
            other,
            refused(if forgotten { "HX410" } else { "HX422" }),
            "{change}: another request learns nothing"
        );
        let again = shop.order(&key, "{}").await;
        let orders = match expected {
            "run" => {
                assert!(is_run(&again), "{change}: {again:?}");
                2
            }
            "kept" => {
                assert_eq!(again, Ok(ordered(&key)), "{change}");
                1
            }
            code => {
                assert_eq!(again, refused(code), "{change}");
                1
            }
        };
        assert_eq!(shop.orders(&key).await, orders, "{change}");
    }
}

/// A key that runs again has a higher fence, also in its next life.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_grow_with_every_claim() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let mut highest = 0;
    for change in [
        "state = 4, slot = NULL",
        "tombstone_until = 1, expires_at = 1",
        "state = 4, slot = NULL",
    ] {
        let begun = shop.order("hat", "{}").await;
        let Ok(Started::Run { fence, .. }) = begun else {
            panic!("{begun:?}");
        };
        assert!(fence > highest);
        highest = fence;
        shop.sql(&format!("UPDATE hapax.heads SET {change}")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_answer_is_an_error_and_never_sent_or_run_again() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    assert!(is_run(&shop.order("hat", "{}").await));
    let damage = "DO $$ BEGIN FOR slot IN 0 .. 31 LOOP EXECUTE format(
        'UPDATE hapax.answers_%s SET content = set_byte(content, 30, 255)', lpad(slot::text, 2, '0')); END LOOP; END $$";
    shop.sql(damage).await;
    assert_eq!(shop.order("hat", "{}").await, refused("XX001"));
    assert_eq!(shop.orders("hat").await, 1);
}

/// An answer over the limit is not kept, and the effect is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_too_large_is_not_kept() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    shop.sql("SELECT hapax.set_namespace('shop', answer_bytes_max => 8)")
        .await;
    let session = shop.session().await;
    for (key, body, expected) in [
        ("small", "12345678", Ok(kept(201, "12345678"))),
        ("large", "123456789", refused("HX418")),
    ] {
        session.batch_execute("BEGIN").await.expect("begun");
        let begun = start(&session, key, "{}", None).await.expect("run");
        complete(&session, &begun, 201, body)
            .await
            .expect("completed");
        session.batch_execute("COMMIT").await.expect("committed");
        assert_eq!(order(&session, key, "{}").await, expected);
    }
}

/// The digest is the same from every language, whatever type its driver sends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fingerprints_compare_what_counts_and_nothing_else() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let session = shop.session().await;
    let same = async |one: &str, other: &str| -> bool {
        let sql = format!("SELECT hapax.fingerprint({one}) = hapax.fingerprint({other})");
        session.query_one(&sql, &[]).await.expect("asked").get(0)
    };
    for (one, other) in [
        ("'é'::text", r"'\xc3a9'::bytea"),
        (
            r#"'{"a": 1, "b": 2}'::jsonb"#,
            r#"'{"b":2,  "a":1}'::jsonb"#,
        ),
        (r#"'{"a": "\u0041"}'::jsonb"#, r#"'{"a": "A"}'::jsonb"#),
        ("NULL::text", "''::text"),
    ] {
        assert!(same(one, other).await, "{one} and {other}");
    }
    for (one, other) in [
        ("'a'::text", "'b'::text"),
        (r#"'{"a": 1}'::text"#, r#"'{"a":1}'::text"#),
        (r#"'{"a": 1}'::text"#, r#"'{"a": 1}'::jsonb"#),
        ("'9007199254740993'::jsonb", "'9007199254740992'::jsonb"),
        ("'1'::jsonb", "'1.0'::jsonb"),
        ("'ab'::text, 'c'", "'a'::text, 'bc'"),
        ("'a'::text, 'b'", "'a'::text, 'b', ''"),
        ("'a'::text, NULL", "'a'::text, ''"),
        ("'a'::text", "'a'::text, ''"),
    ] {
        assert!(!same(one, other).await, "{one} and {other}");
    }
}
