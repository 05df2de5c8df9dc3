//! Every error with which a transaction is refused; its order is gone each time.

use std::time::Duration;

use hapax_core::operation::{OperationIds, Secret};
use hapax_core::store::{Change, Finish, Lifetime, Terms};
use hapax_core::{Condition, Put, State, Store, Timestamp};

use super::{Attempt, HOUR, Shop, WAYS, Way, complete};
use crate::lanes::won;

/// Ends an attempt without an answer.
fn ended(attempt: &Attempt, state: State, lifetime: Lifetime) -> Put {
    let finish = Finish {
        state,
        status: Some(503),
        answer: None,
        lifetime,
    };
    Put {
        id: attempt.head.id,
        condition: Condition::Held {
            fence: attempt.head.fence,
        },
        change: Change::Finish(finish),
    }
}

fn settled() -> Finish {
    Finish {
        state: State::Completed,
        status: Some(200),
        answer: None,
        lifetime: Lifetime::default(),
    }
}

/// Tries to end an attempt in both ways, each with a new attempt: it fails with `expected`, and no
/// order is left.
async fn assert_refused(shop: &Shop, expected: &str, attempt: impl AsyncFn(String) -> Attempt) {
    for way in WAYS {
        let attempt = attempt(format!("{way:?} {}", uuid::Uuid::new_v4())).await;
        assert_eq!(
            shop.order(way, &attempt).await,
            Err(expected.to_owned()),
            "{way:?}"
        );
        assert_eq!(
            shop.orders(&attempt).await,
            0,
            "{way:?}: the order outlived what it was refused with"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_was_taken_over_cannot_commit() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    assert_refused(&shop, "HX003", async |key| {
        let attempt = shop.lapsed(&key).await;
        won(shop.take_over(&attempt).await);
        attempt
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_was_settled_forgotten_or_released_cannot_commit() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    assert_refused(&shop, "HX003", async |key| {
        let attempt = shop.lapsed(&key).await;
        shop.operate(&attempt, |signed| Change::Settle(settled(), signed))
            .await;
        attempt
    })
    .await;
    assert_refused(&shop, "HX003", async |key| {
        let attempt = shop.lapsed(&key).await;
        shop.operate(&attempt, |signed| {
            Change::Forget(Lifetime::default(), signed)
        })
        .await;
        attempt
    })
    .await;
    assert_refused(&shop, "HX003", async |key| {
        let attempt = shop.claimed(&key).await;
        won(shop
            .store
            .put_if(ended(&attempt, State::Retryable, Lifetime::default()))
            .await);
        attempt
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_whose_record_is_over_cannot_commit() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let at_once = Lifetime {
        retention: Duration::ZERO,
        tombstone: Duration::ZERO,
    };
    let over = async |key: String| {
        let attempt = shop.claimed(&key).await;
        won(shop
            .store
            .put_if(ended(&attempt, State::Retryable, at_once))
            .await);
        attempt
    };
    assert_refused(&shop, "HX003", async |key| {
        let attempt = over(key).await;
        while shop.record(attempt.head.id).await.is_some() {
            shop.store.sweep(1000).await.expect("sweep");
        }
        attempt
    })
    .await;
    // The same after the key has been claimed anew.
    assert_refused(&shop, "HX003", async |key| {
        let attempt = over(key).await;
        let next = shop.claimed(&attempt.key).await;
        assert!(next.head.fence > attempt.head.fence);
        attempt
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_has_ended_in_an_answer_cannot_commit_another_effect() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    assert_refused(&shop, "HX005", async |key| {
        let attempt = shop.claimed(&key).await;
        won(shop.store.put_if(attempt.finish()).await);
        attempt
    })
    .await;
    assert_refused(&shop, "HX005", async |key| {
        let attempt = shop.claimed(&key).await;
        won(shop
            .store
            .put_if(ended(&attempt, State::Failed, Lifetime::default()))
            .await);
        attempt
    })
    .await;
    for (first, second) in [
        (Way::Join, Way::Complete),
        (Way::Complete, Way::Join),
        (Way::Join, Way::Join),
    ] {
        let attempt = shop.claimed(&format!("{first:?} then {second:?}")).await;
        assert_eq!(shop.order(first, &attempt).await, Ok(()));
        assert_eq!(shop.order(second, &attempt).await, Err("HX005".to_owned()));
        assert_eq!(shop.orders(&attempt).await, 1, "{first:?} then {second:?}");
        // A second end in one transaction also rolls back the first.
        let attempt = shop.claimed(&format!("{first:?} and {second:?}")).await;
        let session = shop.ordering(&attempt).await;
        assert_eq!(shop.end(&session, first, &attempt).await, Ok(()));
        assert_eq!(
            shop.end(&session, second, &attempt).await,
            Err("HX005".to_owned())
        );
        session
            .batch_execute("COMMIT")
            .await
            .expect("what failed is rolled back");
        assert_eq!(
            (shop.orders(&attempt).await, shop.state(&attempt).await),
            (0, State::Running)
        );
    }
}

/// Every repeat gets the first answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_was_joined_is_never_replaced() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let attempt = shop.claimed("replaced").await;
    assert_eq!(shop.order(Way::Complete, &attempt).await, Ok(()));
    let before = shop.record(attempt.head.id).await;
    let session = shop.session().await;
    let sql = format!(
        "SELECT hapax.complete('{}', {}, 409, '{{}}', 'another')",
        attempt.operation,
        attempt.fence()
    );
    assert_eq!(
        session.batch_execute(&sql).await.map_err(super::code),
        Err("HX005".to_owned())
    );
    assert_eq!(shop.record(attempt.head.id).await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_route_that_does_not_join_is_told_so() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let attempt = shop.claimed_for("hold", HOUR, None).await;
    assert_eq!(
        shop.order(Way::Complete, &attempt).await,
        Err("HX004".to_owned())
    );
    assert_eq!(
        (shop.orders(&attempt).await, shop.state(&attempt).await),
        (0, State::Running)
    );
    // The next attempt may have terms.
    let attempt = shop.claimed_for("hold before", Duration::ZERO, None).await;
    let next = won(shop.take_over(&attempt).await);
    assert_eq!(
        shop.order(
            Way::Complete,
            &Attempt {
                head: next,
                ..attempt
            }
        )
        .await,
        Ok(())
    );
    let attempt = shop.lapsed("hold after").await;
    let again = super::claim(
        "hold after",
        Condition::Lapsed {
            fence: attempt.head.fence,
        },
        HOUR,
        None,
    );
    let next = won(shop.store.put_if(again).await);
    assert_eq!(
        shop.order(
            Way::Complete,
            &Attempt {
                head: next,
                ..attempt
            }
        )
        .await,
        Err("HX004".to_owned())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_that_was_not_handed_out_completes_nothing() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let attempt = shop.claimed("forged").await;
    let (right, fence) = (attempt.operation.as_str(), attempt.fence());
    let foreign = OperationIds::new(Secret::from_bytes([7; 32]), Timestamp::ZERO)
        .make(&attempt.head.id, attempt.head.created_at);
    let mut forged: Vec<String> = vec![
        String::new(),
        "0".repeat(64),
        foreign.as_str().to_owned(),
        // Knowing the record's id is not enough to make the rest of an operation id.
        format!("{}{}", "0".repeat(32), &right[32..]),
        right[..63].to_owned(),
        right[..32].to_owned(),
        format!("{right}0"),
        format!("{right}\n"),
        right.to_uppercase(),
        attempt.head.id.to_string(),
    ];
    // One changed digit, at any position.
    let changed = |at: usize| {
        let digit = if &right[at..=at] == "0" { "1" } else { "0" };
        format!("{}{digit}{}", &right[..at], &right[at + 1..])
    };
    // The bytes between the first eight and the record's id name the life of the key.
    for operation in (16..32).map(changed) {
        let session = shop.ordering(&attempt).await;
        assert_eq!(
            complete(&session, &operation, fence, 201).await,
            Err("HX003".to_owned()),
            "{operation:?}"
        );
    }
    forged.extend((0..16).chain(32..64).map(changed));
    for operation in forged {
        let session = shop.ordering(&attempt).await;
        assert_eq!(
            complete(&session, &operation, fence, 201).await,
            Err("HX006".to_owned()),
            "{operation:?}"
        );
    }
    let session = shop.session().await;
    let null = session
        .batch_execute(&format!("SELECT hapax.complete(NULL, {fence}, 201)"))
        .await;
    assert_eq!(null.map_err(super::code), Err("HX006".to_owned()));
    assert_eq!(
        (shop.orders(&attempt).await, shop.state(&attempt).await),
        (0, State::Running)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_answer_is_refused() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let attempt = shop.claimed("no answer").await;
    let with = |status: &str, headers: &str| {
        format!(
            "SELECT hapax.complete('{}', {}, {status}, {headers}, 'body')",
            attempt.operation,
            attempt.fence()
        )
    };
    let many: Vec<_> = (0..101)
        .map(|number| format!("[\"x-{number}\", \"a\"]"))
        .collect();
    let mut wrong: Vec<String> = ["199", "100", "0", "-1", "600", "65737", "NULL"]
        .map(|status| with(status, "'{}'"))
        .into();
    wrong.extend(
        [
            r#"{"a b": "c"}"#,
            r#"{"": "c"}"#,
            r#"{"é": "c"}"#,
            r#"{"a:": "c"}"#,
            r#"{"a\n": "c"}"#,
            r#"{"a": "b\nc"}"#,
            r#"{"a": "b\u0001"}"#,
            r#"{"a": "b\u007f"}"#,
            r#"{"a": null}"#,
            r#"{"a": {"b": "c"}}"#,
            r#"{"a": [["b"]]}"#,
            r#"[["a"]]"#,
            r#"[["a", "b", "c"]]"#,
            r#"[[1, "b"]]"#,
            r#"[["a", ["b"]]]"#,
            r#"["a"]"#,
            r#"[{"a": "b"}]"#,
            r#""a""#,
            "1",
            &format!("[{}]", many.join(", ")),
            &format!(r#"{{"a": "{}"}}"#, "x".repeat(65536)),
        ]
        .map(|headers| with("201", &format!("'{headers}'"))),
    );
    wrong.push(format!(
        "SELECT hapax.complete('{}', NULL, 201)",
        attempt.operation
    ));
    for sql in wrong {
        let session = shop.ordering(&attempt).await;
        assert_eq!(
            session.batch_execute(&sql).await.map_err(super::code),
            Err("22023".to_owned()),
            "{sql}"
        );
    }
    assert_eq!(
        (shop.orders(&attempt).await, shop.state(&attempt).await),
        (0, State::Running)
    );
}

/// Only a bug in Hapax could ask for a statement for any other change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_is_no_end_is_refused() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let attempt = shop.claimed("no end").await;
    let joins = shop.store.joins().expect("Postgres joins");
    let session = shop.session().await;
    let no_end = [
        super::claim(
            "no end",
            Condition::Lapsed {
                fence: attempt.head.fence,
            },
            HOUR,
            None,
        ),
        ended(&attempt, State::Running, Lifetime::default()),
    ];
    for put in no_end {
        assert_eq!(
            super::run(&session, &joins.statement(&put)).await,
            Err("22023".to_owned()),
            "{put:?}"
        );
    }
    assert_eq!(shop.state(&attempt).await, State::Running);
}

/// Each set of terms is stored once, and each record refers to its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terms_are_told_once_and_by_every_node_alike() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let other = Shop {
        store: std::sync::Arc::new(crate::place::open(&shop.url).await),
        url: shop.url.clone(),
        operation_ids: shop.operation_ids,
    };
    let longer = Terms {
        bytes_max: 5,
        ..super::terms()
    };
    for (number, node) in [&shop, &other, &shop].into_iter().enumerate() {
        node.claimed(&format!("a {number}")).await;
        node.claimed_for(&format!("b {number}"), HOUR, Some(longer.clone()))
            .await;
    }
    let session = shop.session().await;
    let told = session
        .query_one(
            "SELECT (SELECT count(*) FROM hapax.terms), count(DISTINCT terms) FROM hapax.heads",
            &[],
        )
        .await;
    let told = told.expect("asked");
    assert_eq!((told.get::<_, i64>(0), told.get::<_, i64>(1)), (2, 2));
}

/// The test advances the clock past the record's retention and tombstone, and the key is used anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_of_an_earlier_life_completes_nothing() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let earlier = shop.claimed("k").await;
    assert_eq!(shop.order(Way::Complete, &earlier).await, Ok(()));
    shop.session()
        .await
        .batch_execute("UPDATE hapax.heads SET expires_at = 1, tombstone_until = 1")
        .await
        .expect("it is over");
    let present = shop.claimed("k").await;
    assert!(
        present.head.created_at > earlier.head.created_at && present.operation != earlier.operation
    );
    // With its own fence, and with the current one, which it may have learned.
    for head in [&earlier.head, &present.head] {
        let attempt = Attempt {
            head: head.clone(),
            ..earlier.clone()
        };
        assert_eq!(
            shop.order(Way::Complete, &attempt).await,
            Err("HX003".to_owned())
        );
    }
    assert_eq!(
        (shop.orders(&present).await, shop.state(&present).await),
        (1, State::Running)
    );
    assert_eq!(shop.order(Way::Complete, &present).await, Ok(()));
}

/// A record that was claimed before operation ids distinguished the lives of a key, by a program of
/// that version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_from_before_lives_keeps_its_operation_through_a_takeover() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let first_rule = OperationIds::new(
        *shop.operation_ids.secret(),
        Timestamp::from_micros(u64::MAX),
    );
    let claimed = shop.lapsed("k").await;
    let before = Attempt {
        operation: first_rule.make(&claimed.head.id, claimed.head.created_at),
        ..claimed
    };
    let sql = format!(
        "UPDATE hapax.meta SET lives_since = {}",
        before.head.created_at.as_micros() + 1
    );
    shop.session()
        .await
        .batch_execute(&sql)
        .await
        .expect("the schema was brought forward after the claim");
    let ids = shop.store.info().await.expect("info").operation_ids();
    let head = won(shop.take_over(&before).await);
    assert_eq!(
        ids.make(&head.id, head.created_at),
        before.operation,
        "the service would take it for another operation"
    );
    assert_eq!(
        shop.order(
            Way::Complete,
            &Attempt {
                head,
                ..before.clone()
            }
        )
        .await,
        Ok(())
    );
    // Records claimed since then follow the second rule.
    let after = shop.claimed("other").await;
    assert_eq!(
        ids.make(&after.head.id, after.head.created_at),
        after.operation
    );
    assert_ne!(
        first_rule.make(&after.head.id, after.head.created_at),
        after.operation
    );
    assert_eq!(shop.order(Way::Complete, &after).await, Ok(()));
}
