//! Attempts that end in the user's own transaction.

use hapax_core::audit::Signed;
use hapax_core::record::{Head, State};
use hapax_core::store::{
    Change, Condition, Dialect, FENCED_OUT, FINISHED_ALREADY, Finish, Lifetime, Put, Store,
    StoreErrorKind, Swept, Value, Written,
};
use hapax_core::{Memory, Secret};
use rusqlite::Connection;

use super::shop::{
    HOUR, LEASE, Shop, claim, complete, finish, joining, look, lose, ordering, orders, run,
    takeover, win,
};

/// Runs an effect and an end that must be refused. Returns the error's text, and checks that
/// nothing of the transaction can be committed.
fn refused(connection: &mut Connection, end: &hapax_core::store::Statement) -> String {
    let before = orders(connection);
    let transaction = ordering(connection, "never");
    let error = run(&transaction, end).unwrap_err();
    assert!(
        transaction.is_autocommit(),
        "the transaction is still open: {error}"
    );
    drop(transaction);
    assert_eq!(orders(connection), before, "the effect is there");
    let rusqlite::Error::SqliteFailure(_, Some(text)) = error else {
        panic!("{error:?}")
    };
    text
}

#[tokio::test]
async fn an_effect_and_its_record_commit_together() {
    let shop = Shop::new();
    let guest = shop.guest().await;
    let head = win(&guest, claim("k")).await;
    let end = joining(&guest, &complete(&head, "order 1"));
    assert_eq!(
        (end.dialect, end.now),
        (Dialect::Sqlite, Some(shop.clock.now()))
    );

    let mut connection = shop.connect();
    let transaction = ordering(&mut connection, "tea");
    run(&transaction, &end).unwrap();
    // Before the commit no other connection sees any of it.
    assert_eq!(look(&guest, head.id).await, (State::Running, None));
    assert_eq!(shop.orders(), 0);
    transaction.commit().unwrap();
    assert_eq!(
        look(&guest, head.id).await,
        (State::Completed, Some("order 1".to_owned()))
    );
    assert_eq!(shop.orders(), 1);
}

/// Compares every field with the reference store: the trigger and the store's own check must agree.
#[tokio::test]
async fn a_joined_end_is_what_any_other_end_is() {
    let shop = Shop::new();
    let guest = shop.guest().await;
    let memory = Memory::new(
        std::sync::Arc::new(shop.clock.clone()),
        Secret::from_bytes([7; 32]),
    );
    let ends = [
        State::Completed,
        State::Failed,
        State::Retryable,
        State::Unknown,
    ];
    let mut heads = Vec::new();
    // An unknown outcome has no answer.
    let all = ends
        .into_iter()
        .flat_map(|state| [(state, None), (state, Some("answer"))]);
    for (number, (state, answer)) in all
        .filter(|end| *end != (State::Unknown, Some("answer")))
        .enumerate()
    {
        for is_lost in [false, true] {
            let key = format!("{number} {is_lost}");
            let claimed = win(&guest, claim(&key)).await;
            assert_eq!(win(&memory, claim(&key)).await, claimed);
            if is_lost {
                shop.clock.advance(LEASE);
                let lose = Put {
                    condition: Condition::Lapsed {
                        fence: claimed.fence,
                    },
                    change: Change::Lose(Lifetime {
                        retention: HOUR,
                        tombstone: HOUR,
                    }),
                    id: claimed.id,
                };
                win(&guest, lose.clone()).await;
                win(&memory, lose).await;
            }
            let end = finish(&claimed, state, answer);
            run(&shop.connect(), &joining(&guest, &end)).unwrap();
            win(&memory, end).await;
            heads.push(claimed.id);
        }
    }
    let (mut ours, theirs) = (
        guest.get(heads.clone()).await.unwrap(),
        memory.get(heads.clone()).await.unwrap(),
    );
    assert_eq!(ours, theirs);
    // Later sweeps have the same result too.
    for _ in 0..3 {
        shop.clock.advance(HOUR);
        assert_eq!(
            guest.sweep(100).await.unwrap(),
            memory.sweep(100).await.unwrap()
        );
        ours = guest.get(heads.clone()).await.unwrap();
        assert_eq!(ours, memory.get(heads.clone()).await.unwrap());
    }
    assert!(
        ours.records.iter().any(Option::is_none),
        "nothing was removed, so that little was compared"
    );
    let answers: i64 = shop
        .connect()
        .query_row("SELECT count(*) FROM hapax_answers", [], |row| row.get(0))
        .unwrap();
    assert!(
        ours.records
            .iter()
            .all(|record| record.as_ref().is_none_or(|record| !record.head.kept))
            && answers == 0
    );
}

#[tokio::test]
async fn an_attempt_that_was_taken_over_commits_nothing() {
    let shop = Shop::new();
    let guest = shop.guest().await;
    let first = win(&guest, claim("k")).await;
    let zombie = joining(&guest, &complete(&first, "too late"));
    shop.clock.advance(LEASE);
    let second = win(&guest, takeover("k", &first)).await;

    let mut connection = shop.connect();
    assert!(refused(&mut connection, &zombie).starts_with(FENCED_OUT));
    assert_eq!(look(&guest, first.id).await, (State::Running, None));

    let transaction = ordering(&mut connection, "tea");
    run(
        &transaction,
        &joining(&guest, &complete(&second, "in time")),
    )
    .unwrap();
    transaction.commit().unwrap();
    assert!(refused(&mut connection, &zombie).starts_with(FENCED_OUT));
    assert_eq!(
        look(&guest, first.id).await,
        (State::Completed, Some("in time".to_owned()))
    );
    assert_eq!(shop.orders(), 1);
}

/// A late attempt is not lost: it owns its record until another one acts on it.
#[tokio::test]
async fn an_attempt_whose_lease_is_over_may_still_join() {
    let shop = Shop::new();
    let guest = shop.guest().await;
    for (key, is_swept) in [("late", false), ("swept", true)] {
        let head = win(&guest, claim(key)).await;
        shop.clock.advance(LEASE);
        let lost = if is_swept { 1 } else { 0 };
        if is_swept {
            assert_eq!(
                guest.sweep(10).await.unwrap(),
                Swept {
                    lost,
                    ..Swept::default()
                }
            );
        }
        run(&shop.connect(), &joining(&guest, &complete(&head, key))).unwrap();
        assert_eq!(
            look(&guest, head.id).await,
            (State::Completed, Some(key.to_owned()))
        );
    }
}

#[tokio::test]
async fn finishing_twice_commits_once() {
    let shop = Shop::new();
    let guest = shop.guest().await;
    for (key, state) in [("done", State::Completed), ("refused", State::Failed)] {
        let head = win(&guest, claim(key)).await;
        let mut connection = shop.connect();
        let transaction = ordering(&mut connection, key);
        run(
            &transaction,
            &joining(&guest, &finish(&head, state, Some("first"))),
        )
        .unwrap();
        transaction.commit().unwrap();
        let again = joining(&guest, &complete(&head, "second"));
        assert!(refused(&mut connection, &again).starts_with(FINISHED_ALREADY));
        assert_eq!(
            look(&guest, head.id).await,
            (state, Some("first".to_owned()))
        );

        // A second end in the same transaction rolls all of it back.
        let head = win(&guest, claim(&format!("{key} twice at once"))).await;
        let end = joining(&guest, &finish(&head, state, Some("first")));
        let transaction = ordering(&mut connection, "never");
        run(&transaction, &end).unwrap();
        assert!(
            run(&transaction, &end)
                .unwrap_err()
                .to_string()
                .starts_with(FINISHED_ALREADY)
        );
        assert!(transaction.is_autocommit());
        drop(transaction);
        assert_eq!(look(&guest, head.id).await, (State::Running, None));
    }
    assert_eq!(shop.orders(), 2);
}

#[tokio::test]
async fn what_is_rolled_back_was_never_there_and_may_be_done_again() {
    let shop = Shop::new();
    let guest = shop.guest().await;
    let head = win(&guest, claim("k")).await;
    let mut connection = shop.connect();
    let transaction = ordering(&mut connection, "tea");
    run(&transaction, &joining(&guest, &complete(&head, "never"))).unwrap();
    transaction.rollback().unwrap();
    assert_eq!(
        (look(&guest, head.id).await, shop.orders()),
        ((State::Running, None), 0)
    );

    let transaction = ordering(&mut connection, "tea");
    run(
        &transaction,
        &joining(&guest, &complete(&head, "second try")),
    )
    .unwrap();
    transaction.commit().unwrap();
    assert_eq!(
        (look(&guest, head.id).await, shop.orders()),
        ((State::Completed, Some("second try".to_owned())), 1)
    );
}

/// Attempts that were released, that an operator settled or forgot, or whose record does not exist.
#[tokio::test]
async fn whoever_no_longer_owns_the_record_is_fenced_out() {
    let shop = Shop::new();
    let guest = shop.guest().await;
    let signed = || Signed::new("ada", "looked").unwrap();
    let lifetime = Lifetime {
        retention: HOUR,
        tombstone: HOUR,
    };
    let done = Finish {
        state: State::Completed,
        status: Some(200),
        answer: None,
        lifetime,
    };
    let [released, settled, forgotten] = ["released", "settled", "forgotten"];
    let mut ends = Vec::new();
    for key in [released, settled, forgotten] {
        let head = win(&guest, claim(key)).await;
        ends.push(joining(&guest, &complete(&head, "never")));
        let state = if key == released {
            State::Retryable
        } else {
            State::Unknown
        };
        let lost = win(&guest, finish(&head, state, None)).await;
        let change = match key {
            "settled" => Change::Settle(done.clone(), signed()),
            "forgotten" => Change::Forget(lifetime, signed()),
            _ => continue,
        };
        let acted = win(
            &guest,
            Put {
                id: head.id,
                condition: Condition::Version {
                    version: lost.version,
                },
                change,
            },
        )
        .await;
        if key == forgotten {
            // Not even with the fence of the `forget`: a forgotten record cannot be completed.
            ends.push(joining(&guest, &complete(&acted, "never")));
        }
    }
    let absent = Head {
        id: claim("absent").id,
        ..win(&guest, claim("other")).await
    };
    ends.push(joining(&guest, &complete(&absent, "never")));
    let mut nothing = ends[0].clone();
    nothing.values = vec![Value::Bytes(None); nothing.values.len()];
    ends.push(nothing);
    for end in ends {
        assert!(refused(&mut shop.connect(), &end).starts_with(FENCED_OUT));
    }
}

#[tokio::test]
async fn a_joined_end_leaves_the_users_own_numbers_alone() {
    let shop = Shop::new();
    let guest = shop.guest().await;
    for number in 1..=3 {
        let head = win(&guest, claim(&format!("k{number}"))).await;
        let mut connection = shop.connect();
        let transaction = ordering(&mut connection, "tea");
        run(&transaction, &joining(&guest, &complete(&head, "done"))).unwrap();
        assert_eq!(transaction.last_insert_rowid(), number);
        transaction.commit().unwrap();
    }
}

/// Connections that do not trust the schema, defer their lock, or work inside a savepoint.
#[tokio::test]
async fn any_way_of_writing_will_do() {
    let shop = Shop::new();
    let guest = shop.guest().await;
    for (key, begin, end) in [
        ("deferred", "BEGIN", "COMMIT"),
        ("exclusive", "BEGIN EXCLUSIVE", "COMMIT"),
        ("savepoint", "SAVEPOINT work", "RELEASE work"),
        ("nested", "BEGIN; SAVEPOINT work", "RELEASE work; COMMIT"),
        (
            "distrust",
            "PRAGMA trusted_schema = OFF; PRAGMA recursive_triggers = ON; PRAGMA foreign_keys = ON; BEGIN",
            "COMMIT",
        ),
    ] {
        let head = win(&guest, claim(key)).await;
        let mut connection = shop.connect();
        connection.execute_batch(begin).unwrap();
        connection
            .execute("INSERT INTO orders (item) VALUES (?1)", [key])
            .unwrap();
        run(&connection, &joining(&guest, &complete(&head, key))).unwrap();
        connection.execute_batch(end).unwrap();
        assert_eq!(
            look(&guest, head.id).await,
            (State::Completed, Some(key.to_owned()))
        );

        let before = orders(&connection);
        connection
            .execute_batch(begin.rsplit("; ").next().unwrap())
            .unwrap();
        connection
            .execute("INSERT INTO orders (item) VALUES ('never')", [])
            .unwrap();
        run(&connection, &joining(&guest, &complete(&head, "again"))).unwrap_err();
        assert!(
            connection.is_autocommit(),
            "{key}: something is left to be committed"
        );
        assert_eq!(orders(&connection), before, "{key}");
        refused(&mut connection, &joining(&guest, &complete(&head, "again")));
    }
}

/// A duplicate is answered at once. A new key cannot be claimed meanwhile, because SQLite has one
/// lock: the claim waits, and is then refused with a retryable error.
#[tokio::test]
async fn an_open_transaction_holds_up_no_reading_and_no_duplicate() {
    let shop = Shop::new();
    let patience = std::time::Duration::from_millis(50);
    let options = hapax::store::guest::Options {
        busy_timeout: patience,
        ..shop.options()
    };
    let guest = hapax::Guest::open_with(&shop.path, options).await.unwrap();
    let (running, other) = (
        win(&guest, claim("running")).await,
        win(&guest, claim("other")).await,
    );
    let mut connection = shop.connect();
    let transaction = ordering(&mut connection, "tea");
    run(&transaction, &joining(&guest, &complete(&running, "done"))).unwrap();

    // With a very long timeout: none of these calls waits for the lock.
    assert_eq!(
        lose(&guest, claim("running")).await.unwrap().state,
        State::Running
    );
    assert_eq!(
        lose(&guest, takeover("running", &running))
            .await
            .unwrap()
            .state,
        State::Running
    );
    assert_eq!(
        lose(
            &guest,
            complete(
                &Head {
                    fence: claim_fence(&other),
                    ..other.clone()
                },
                "no"
            )
        )
        .await
        .unwrap()
        .state,
        State::Running
    );
    assert_eq!(
        guest
            .list(hapax_core::store::ListQuery {
                state: None,
                after: None,
                limit: 9
            })
            .await
            .unwrap()
            .len(),
        2
    );
    guest.info().await.unwrap();
    let statement_is_made = joining(&guest, &complete(&other, "later"));

    // A call that must write waits, and then learns that nothing was written.
    for put in [claim("new"), complete(&other, "done")] {
        assert_eq!(
            guest.put_if(put).await.unwrap_err().kind(),
            StoreErrorKind::Locked
        );
    }
    assert_eq!(
        guest.sweep(1).await.unwrap_err().kind(),
        StoreErrorKind::Locked
    );
    transaction.commit().unwrap();
    assert_eq!(
        look(&guest, running.id).await,
        (State::Completed, Some("done".to_owned()))
    );
    assert_eq!(
        look(&guest, other.id).await,
        (State::Running, None),
        "what was refused was not written later"
    );
    win(&guest, claim("new")).await;
    run(&connection, &statement_is_made).unwrap();
}

fn claim_fence(head: &Head) -> hapax_core::Fence {
    hapax_core::Fence::from_u64(head.fence.as_u64() + 1)
}

#[tokio::test]
async fn who_waits_for_an_open_transaction_goes_on_when_it_ends() {
    let shop = Shop::new();
    let options = hapax::store::guest::Options {
        busy_timeout: HOUR,
        ..shop.options()
    };
    let guest = hapax::Guest::open_with(&shop.path, options).await.unwrap();
    let head = win(&guest, claim("k")).await;
    let mut connection = shop.connect();
    let transaction = ordering(&mut connection, "tea");
    run(&transaction, &joining(&guest, &complete(&head, "joined"))).unwrap();

    // The same attempt is ended through the store while its transaction is open: the store reads it
    // as running, and therefore waits.
    let late = guest.put_if(finish(&head, State::Retryable, None));
    let mut late = std::pin::pin!(late);
    let is_waiting = tokio::time::timeout(std::time::Duration::from_millis(20), &mut late)
        .await
        .is_err();
    assert!(is_waiting, "it did not wait");
    transaction.commit().unwrap();
    let Written::Lost(seen) = late.await.unwrap() else {
        panic!("the joined end was overwritten")
    };
    assert_eq!(seen.record.unwrap().head.state, State::Completed);
}
