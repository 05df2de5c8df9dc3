//! Races and isolation: commits against takeovers, isolation levels, savepoints, two-phase
//! transactions.

use std::time::{Duration, Instant};

use hapax_core::record::State;
use hapax_core::store::{StoreErrorKind, Written};
use hapax_core::{Condition, Store};
use hapax_testkit::servers;
use tokio_postgres::Client;

use super::{Attempt, HOUR, Shop, WAYS, Way, terms};
use crate::lanes::won;
use crate::place;

/// How long a takeover may take to fail on a locked record: its lock timeout, and the rest for a
/// slow machine.
const TOLD_WITHIN: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_joined_transaction_that_is_open_keeps_the_record_until_it_ends() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    for way in WAYS {
        for end in ["COMMIT", "ROLLBACK"] {
            let attempt = shop.lapsed(&format!("{way:?} {end}")).await;
            let session = shop.ordering(&attempt).await;
            assert_eq!(shop.end(&session, way, &attempt).await, Ok(()));

            let begun = Instant::now();
            let error = shop
                .take_over(&attempt)
                .await
                .expect_err("nobody can tell before it ends");
            assert_eq!(error.kind(), StoreErrorKind::Locked, "{error}");
            assert!(begun.elapsed() < TOLD_WITHIN, "{:?}", begun.elapsed());
            // The uncommitted join is visible to no one, and a sweep does not remove the record.
            shop.store.sweep(1000).await.expect("sweep");
            assert_eq!(shop.orders(&attempt).await, 0);
            assert_ne!(shop.state(&attempt).await, State::Completed);

            session.batch_execute(end).await.expect("it ends");
            match (end, shop.take_over(&attempt).await.expect("free")) {
                ("COMMIT", Written::Lost(seen)) => {
                    let record = seen.record.expect("a record");
                    assert_eq!(
                        (record.head.state, record.head.fence),
                        (State::Completed, attempt.head.fence)
                    );
                    assert_eq!(record.answer.expect("kept").body, "ordered");
                    assert_eq!(shop.orders(&attempt).await, 1);
                }
                ("ROLLBACK", Written::Won(next)) => {
                    assert_eq!(shop.orders(&attempt).await, 0);
                    // The slow attempt cannot complete the record, and its successor can.
                    assert_eq!(shop.order(way, &attempt).await, Err("HX003".to_owned()));
                    let next = Attempt {
                        head: next.head,
                        ..attempt.clone()
                    };
                    assert_eq!(shop.order(way, &next).await, Ok(()));
                    assert_eq!(shop.orders(&attempt).await, 1);
                }
                other => panic!("{way:?}: {other:?}"),
            }
        }
    }
}

/// The takeover as SQL, for a session that keeps its transaction open.
fn takeover_sql(attempt: &Attempt) -> String {
    format!(
        "SELECT * FROM hapax.claim(ARRAY['\\x{}']::bytea[], ARRAY[{}]::int8[], ARRAY[gen_random_uuid()], ARRAY[3600000000]::int8[],
         ARRAY[NULL]::int8[], ARRAY['\\x01']::bytea[], ARRAY['n']::bytea[], ARRAY[NULL]::bytea[], ARRAY['m']::bytea[], ARRAY['p']::bytea[],
         ARRAY['k']::bytea[], ARRAY[NULL]::int8[])",
        attempt.head.id,
        attempt.fence(),
    )
}

/// Waits until this session is blocked by another one.
async fn waits(watcher: &Client, process: i32) {
    let sql = "SELECT cardinality(pg_blocking_pids($1)) > 0";
    while !watcher
        .query_one(sql, &[&process])
        .await
        .expect("asked")
        .get::<_, bool>(0)
    {
        tokio::task::yield_now().await;
    }
}

async fn process(session: &Client) -> i32 {
    session
        .query_one("SELECT pg_backend_pid()", &[])
        .await
        .expect("asked")
        .get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_waits_for_a_takeover_that_is_not_committed_and_then_knows() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let watcher = shop.session().await;
    for way in WAYS {
        for (end, expected, orders) in [
            ("COMMIT", Err("HX003".to_owned()), 0),
            ("ROLLBACK", Ok(()), 1),
        ] {
            let attempt = shop.lapsed(&format!("{way:?} {end}")).await;
            let (session, other) = (shop.ordering(&attempt).await, shop.session().await);
            let process = process(&session).await;
            other
                .batch_execute(&format!("BEGIN; {}", takeover_sql(&attempt)))
                .await
                .expect("a takeover");
            let joined = async {
                shop.end(&session, way, &attempt).await?;
                session.batch_execute("COMMIT").await.map_err(super::code)
            };
            let ended = async {
                waits(&watcher, process).await;
                other.batch_execute(end).await.expect("it ends");
            };
            let (joined, ()) = tokio::join!(joined, ended);
            assert_eq!(joined, expected, "{way:?}, the takeover's {end}");
            assert_eq!(
                shop.orders(&attempt).await,
                orders,
                "{way:?}, the takeover's {end}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_every_isolation_level_an_attempt_joins_and_one_that_was_taken_over_does_not() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    for way in WAYS {
        for (level, expected) in [
            ("READ COMMITTED", "HX003"),
            ("REPEATABLE READ", "40001"),
            ("SERIALIZABLE", "40001"),
        ] {
            let begin =
                format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM public.orders;");
            let attempt = shop.claimed(&format!("{way:?} {level}")).await;
            let session = shop.session().await;
            session
                .batch_execute(&format!("{begin} {}", attempt.order()))
                .await
                .expect("an order");
            assert_eq!(
                shop.end(&session, way, &attempt).await,
                Ok(()),
                "{way:?} {level}"
            );
            session.batch_execute("COMMIT").await.expect("a commit");
            assert_eq!(
                (shop.orders(&attempt).await, shop.state(&attempt).await),
                (1, State::Completed),
                "{way:?} {level}"
            );

            // The takeover comes after the transaction's snapshot.
            let attempt = shop.lapsed(&format!("{way:?} {level}, lost")).await;
            session
                .batch_execute(&format!("{begin} {}", attempt.order()))
                .await
                .expect("an order");
            won(shop.take_over(&attempt).await);
            assert_eq!(
                shop.end(&session, way, &attempt).await,
                Err(expected.to_owned()),
                "{way:?} {level}"
            );
            session
                .batch_execute("COMMIT")
                .await
                .expect("what failed is rolled back");
            assert_eq!(
                (shop.orders(&attempt).await, shop.state(&attempt).await),
                (0, State::Running),
                "{way:?} {level}"
            );

            // The takeover comes before the snapshot.
            session
                .batch_execute(&format!("{begin} {}", attempt.order()))
                .await
                .expect("an order");
            assert_eq!(
                shop.end(&session, way, &attempt).await,
                Err("HX003".to_owned()),
                "{way:?} {level}"
            );
            session
                .batch_execute("ROLLBACK")
                .await
                .expect("rolled back");
            assert_eq!(shop.orders(&attempt).await, 0, "{way:?} {level}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_is_undone_with_its_savepoint_and_stays_with_one_that_is_released() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    for way in WAYS {
        let attempt = shop.claimed(&format!("{way:?} undone")).await;
        let session = shop.session().await;
        session
            .batch_execute(&format!("BEGIN; SAVEPOINT a; {}", attempt.order()))
            .await
            .expect("an order");
        assert_eq!(shop.end(&session, way, &attempt).await, Ok(()));
        session
            .batch_execute("ROLLBACK TO a")
            .await
            .expect("undone");
        // After the rollback to the savepoint the attempt is still open, and can end within the
        // same transaction.
        session
            .batch_execute(&format!("SAVEPOINT b; {}", attempt.order()))
            .await
            .expect("an order");
        assert_eq!(shop.end(&session, way, &attempt).await, Ok(()));
        session.batch_execute("RELEASE b").await.expect("released");
        // A second end is refused, and the session can roll back to the savepoint before it.
        session
            .batch_execute(&format!("SAVEPOINT c; {}", attempt.order()))
            .await
            .expect("an order");
        assert_eq!(
            shop.end(&session, way, &attempt).await,
            Err("HX005".to_owned())
        );
        session
            .batch_execute("ROLLBACK TO c; COMMIT")
            .await
            .expect("a commit");
        assert_eq!(
            (shop.orders(&attempt).await, shop.state(&attempt).await),
            (1, State::Completed),
            "{way:?}"
        );

        let attempt = shop.claimed(&format!("{way:?} undone for good")).await;
        session
            .batch_execute(&format!("BEGIN; SAVEPOINT a; {}", attempt.order()))
            .await
            .expect("an order");
        assert_eq!(shop.end(&session, way, &attempt).await, Ok(()));
        session
            .batch_execute("ROLLBACK TO a; COMMIT")
            .await
            .expect("a commit of nothing");
        assert_eq!(
            (shop.orders(&attempt).await, shop.state(&attempt).await),
            (0, State::Running),
            "{way:?}"
        );
        assert_eq!(shop.order(way, &attempt).await, Ok(()));
        assert_eq!(shop.orders(&attempt).await, 1, "{way:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_in_two_phases_joins_with_its_second() {
    let Some(server) = servers::Postgres::in_memory(&[("max_prepared_transactions", "2")]) else {
        return;
    };
    let url = server.database();
    place::migrate(&url).await;
    let shop = Shop::at(url).await;
    for (way, end, expected) in [
        (Way::Join, "COMMIT", (1, State::Completed)),
        (Way::Complete, "ROLLBACK", (0, State::Running)),
    ] {
        let attempt = shop.claimed(end).await;
        let session = shop.ordering(&attempt).await;
        assert_eq!(shop.end(&session, way, &attempt).await, Ok(()));
        session
            .batch_execute("PREPARE TRANSACTION 'one'")
            .await
            .expect("the first phase");
        assert_eq!(
            (shop.orders(&attempt).await, shop.state(&attempt).await),
            (0, State::Running)
        );
        shop.session()
            .await
            .batch_execute(&format!("{end} PREPARED 'one'"))
            .await
            .expect("the second phase");
        assert_eq!(
            (shop.orders(&attempt).await, shop.state(&attempt).await),
            expected,
            "{end}"
        );
    }
}

/// A late attempt is not lost as long as no other one has acted on its record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_was_given_up_for_lost_joins_late() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let session = shop.session().await;
    for way in WAYS {
        let attempt = shop.lapsed(&format!("{way:?} late")).await;
        while shop.store.sweep(1000).await.expect("sweep").lost == 0 {}
        assert_eq!(shop.state(&attempt).await, State::Unknown);
        assert_eq!(shop.order(way, &attempt).await, Ok(()));
        assert_eq!(
            (shop.orders(&attempt).await, shop.state(&attempt).await),
            (1, State::Completed),
            "{way:?}"
        );

        // It can join even after its retention, because it was never resolved.
        let attempt = shop.lapsed(&format!("{way:?} later")).await;
        while shop.store.sweep(1000).await.expect("sweep").lost == 0 {}
        let over = format!(
            "UPDATE hapax.heads SET expires_at = 1, tombstone_until = 2 WHERE id = '\\x{}'",
            attempt.head.id
        );
        session.batch_execute(&over).await.expect("it is over");
        assert_eq!(shop.order(way, &attempt).await, Ok(()));
        assert_eq!(
            (shop.orders(&attempt).await, shop.state(&attempt).await),
            (1, State::Completed),
            "{way:?}"
        );
    }
}

/// The commit of the user's transaction is also the commit of the record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_does_not_wait_for_its_disk_waits_where_it_joins() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    for (weak, raised) in [
        ("off", "on"),
        ("local", "on"),
        ("remote_write", "remote_write"),
        ("remote_apply", "remote_apply"),
    ] {
        for way in WAYS {
            let attempt = shop.claimed(&format!("{way:?} {weak}")).await;
            let session = shop.session().await;
            session
                .batch_execute(&format!(
                    "SET synchronous_commit = '{weak}'; BEGIN; {}",
                    attempt.order()
                ))
                .await
                .expect("an order");
            assert_eq!(shop.end(&session, way, &attempt).await, Ok(()));
            let setting = async || {
                session
                    .query_one("SHOW synchronous_commit", &[])
                    .await
                    .expect("asked")
                    .get::<_, String>(0)
            };
            assert_eq!(setting().await, raised, "{way:?}: the commit waits");
            session.batch_execute("COMMIT").await.expect("a commit");
            assert_eq!(setting().await, weak, "{way:?}: as it was before");
        }
    }
}

/// A renewal does not change what the attempt may do. A transaction whose snapshot is older than
/// the renewal must be retried.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_after_a_snapshot_costs_a_try_and_not_the_attempt() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    for (level, expected) in [
        ("READ COMMITTED", Ok(())),
        ("REPEATABLE READ", Err("40001".to_owned())),
    ] {
        let attempt = shop.claimed(level).await;
        let session = shop.session().await;
        let begin = format!(
            "BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM public.orders; {}",
            attempt.order()
        );
        session.batch_execute(&begin).await.expect("an order");
        let renewal = hapax_core::store::Renewal {
            id: attempt.head.id,
            fence: attempt.head.fence,
            lease: HOUR,
        };
        assert_eq!(
            shop.store.renew(vec![renewal]).await.expect("renewed"),
            [true]
        );
        assert_eq!(
            shop.end(&session, Way::Complete, &attempt).await,
            expected,
            "{level}"
        );
        session.batch_execute("COMMIT").await.expect("an end");
        if expected.is_err() {
            assert_eq!(shop.order(Way::Complete, &attempt).await, Ok(()));
        }
        assert_eq!(shop.orders(&attempt).await, 1, "{level}");
    }
}

/// A takeover brings the terms of its own route.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_attempt_ends_by_its_own_terms() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let attempt = shop.lapsed("terms").await;
    let other = hapax_core::store::Terms {
        keep: false,
        ..terms()
    };
    let again = super::claim(
        "terms",
        Condition::Lapsed {
            fence: attempt.head.fence,
        },
        HOUR,
        Some(other),
    );
    let next = Attempt {
        head: won(shop.store.put_if(again).await),
        ..attempt
    };
    assert_eq!(shop.order(Way::Complete, &next).await, Ok(()));
    let record = shop.record(next.head.id).await.expect("a record");
    assert_eq!(
        (record.head.state, record.head.status, record.answer),
        (State::Completed, Some(201), None)
    );
}

/// A client that retries serialization failures must not do so for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_every_isolation_level_an_attempt_whose_record_is_gone_is_fenced_out() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    for way in WAYS {
        for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
            let attempt = shop.claimed(&format!("{way:?} {level}, gone")).await;
            let session = shop.session().await;
            session
                .execute(
                    "DELETE FROM hapax.heads WHERE id = $1",
                    &[&attempt.head.id.as_bytes().as_slice()],
                )
                .await
                .expect("gone");
            let begin = format!(
                "BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM public.orders; {}",
                attempt.order()
            );
            session.batch_execute(&begin).await.expect("an order");
            assert_eq!(
                shop.end(&session, way, &attempt).await,
                Err("HX003".to_owned()),
                "{way:?} {level}"
            );
            session.batch_execute("COMMIT").await.expect("an end");
            assert_eq!(shop.orders(&attempt).await, 0, "{way:?} {level}");
        }
    }
}
