//! Savepoints, isolation levels, time-outs, poolers, and transactions that end in other ways.

use tokio_postgres::Client;

use super::{
    Shop, Started, code, complete, insert, is_run, kept, order, ordered, refused, start, try_order,
};
use crate::place;
use hapax_testkit::servers::{self, PgBouncer};

/// A session in a transaction that has begun this key and placed its order.
async fn started(shop: &Shop, key: &str) -> (Client, Started) {
    let session = shop.session().await;
    session.batch_execute("BEGIN").await.expect("begun");
    let begun = start(&session, key, "{}", None).await.expect("run");
    insert(&session, key).await.expect("inserted");
    (session, begun)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_begun_and_not_completed_cannot_be_committed() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let (session, _) = started(&shop, "forgotten").await;
    let committed = session.batch_execute("COMMIT").await.map_err(code);
    assert_eq!(committed, Err("HX009".to_owned()));
    // Without BEGIN, each statement is a transaction of its own.
    let alone = start(&session, "alone", "{}", None).await;
    assert_eq!(alone, refused("HX009"));
    // An end that is none: a role may have the rights of a gateway too.
    let (session, hat) = started(&shop, "released").await;
    let Started::Run {
        operation_id,
        fence,
    } = &hat
    else {
        panic!("{hat:?}");
    };
    let release = format!("SELECT hapax.join('\\x{operation_id}', {fence}, 4, 503, 0, 0, NULL)");
    session.batch_execute(&release).await.expect("released");
    let committed = session.batch_execute("COMMIT").await.map_err(code);
    assert_eq!(committed, Err("HX009".to_owned()));
    for key in ["forgotten", "alone", "released"] {
        assert_eq!((shop.orders(key).await, shop.records(key).await), (0, 0));
        assert!(is_run(&shop.order(key, "{}").await), "{key} is free");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_kept_after_its_effect_was_rolled_back_to_a_savepoint() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let session = shop.session().await;
    session.batch_execute("BEGIN").await.expect("begun");
    let begun = start(&session, "hat", "{}", None).await.expect("run");
    session.batch_execute("SAVEPOINT work").await.expect("set");
    insert(&session, "hat").await.expect("inserted");
    let failed = session.batch_execute("SELECT 1 / 0").await.map_err(code);
    assert_eq!(failed, Err("22012".to_owned()));
    session
        .batch_execute("ROLLBACK TO work")
        .await
        .expect("rolled back");
    complete(&session, &begun, 422, "no hats left")
        .await
        .expect("completed");
    session.batch_execute("COMMIT").await.expect("committed");
    assert_eq!(shop.orders("hat").await, 0);
    assert_eq!(shop.order("hat", "{}").await, Ok(kept(422, "no hats left")));
}

/// The claim and its lock go with the savepoint they were made in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_begun_in_a_savepoint_is_free_after_its_rollback() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let session = shop.session().await;
    session
        .batch_execute("BEGIN; SAVEPOINT outer_one; SAVEPOINT inner_one")
        .await
        .expect("set");
    let inner = start(&session, "hat", "{}", None).await;
    assert!(is_run(&inner));
    session
        .batch_execute("RELEASE inner_one")
        .await
        .expect("released");
    let twice = start(&session, "hat", "{}", None).await;
    assert_eq!(twice, refused("HX409"), "begun in this transaction already");
    session
        .batch_execute("ROLLBACK TO outer_one")
        .await
        .expect("rolled back");
    // Another transaction has it now, while the first is still open.
    assert!(is_run(&shop.order("hat", "{}").await));
    assert_eq!(
        start(&session, "hat", "{}", None).await,
        Ok(ordered("hat")),
        "and the first sees its answer"
    );
    session.batch_execute("COMMIT").await.expect("committed");
    assert_eq!(shop.orders("hat").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_keys_in_one_transaction_commit_together() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    for end in ["ROLLBACK", "COMMIT"] {
        let (session, hat) = started(&shop, "hat").await;
        let coat = start(&session, "coat", "{}", None).await.expect("run");
        insert(&session, "coat").await.expect("inserted");
        for (key, begun) in [("coat", coat), ("hat", hat)] {
            complete(&session, &begun, 201, &format!("ordered {key}"))
                .await
                .expect("completed");
        }
        session.batch_execute(end).await.expect("ended");
    }
    for key in ["hat", "coat"] {
        assert_eq!(shop.orders(key).await, 1);
        assert_eq!(shop.order(key, "{}").await, Ok(ordered(key)));
    }
}

/// Under these levels a transaction cannot see what was committed after its snapshot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_from_before_the_claim_is_a_serialization_failure() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let key = level.to_lowercase();
        let session = shop.session().await;
        let old = format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM public.orders");
        session.batch_execute(&old).await.expect("a snapshot");
        assert!(is_run(&shop.order(&key, "{}").await));
        let late = start(&session, &key, "{}", None).await;
        assert_eq!(late, refused("40001"), "{level}");
        session
            .batch_execute("ROLLBACK")
            .await
            .expect("rolled back");
        // The next transaction sees it; and a new key runs under this level as under any.
        session.batch_execute(&old).await.expect("a snapshot");
        let again = start(&session, &key, "{}", None).await;
        assert_eq!(again, Ok(ordered(&key)), "{level}");
        let fresh = format!("fresh {key}");
        let begun = start(&session, &fresh, "{}", None).await.expect("run");
        insert(&session, &fresh).await.expect("inserted");
        complete(&session, &begun, 201, &format!("ordered {fresh}"))
            .await
            .expect("completed");
        session.batch_execute("COMMIT").await.expect("committed");
        assert_eq!((shop.orders(&key).await, shop.orders(&fresh).await), (1, 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepared_transaction_holds_its_key_until_it_ends() {
    let Some(server) = servers::Postgres::with(&[("max_prepared_transactions", "4")]) else {
        return;
    };
    let url = server.database();
    place::migrate(&url).await;
    let shop = Shop { url };
    shop.sql("SELECT hapax.set_namespace('shop'); CREATE TABLE public.orders (key text NOT NULL)")
        .await;
    for (end, orders) in [("ROLLBACK PREPARED", 0), ("COMMIT PREPARED", 1)] {
        let (session, hat) = started(&shop, "hat").await;
        complete(&session, &hat, 201, "ordered hat")
            .await
            .expect("completed");
        session
            .batch_execute("PREPARE TRANSACTION 'one'")
            .await
            .expect("prepared");
        drop(session);
        assert_eq!(shop.order("hat", "{}").await, refused("HX409"));
        shop.sql(&format!("{end} 'one'")).await;
        assert_eq!(shop.orders("hat").await, orders);
    }
    assert_eq!(shop.order("hat", "{}").await, Ok(ordered("hat")));
    // One that was not completed cannot be prepared either.
    let (session, _) = started(&shop, "coat").await;
    let prepared = session.batch_execute("PREPARE TRANSACTION 'two'").await;
    assert_eq!(prepared.map_err(code), Err("HX009".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_out_of_the_effect_or_of_the_wait_leaves_nothing() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let (session, _) = started(&shop, "hat").await;
    let slow = "SET LOCAL statement_timeout = '20ms'; SELECT pg_sleep(60)";
    let ended = session.batch_execute(slow).await.map_err(code);
    assert_eq!(ended, Err("57014".to_owned()));
    session
        .batch_execute("ROLLBACK")
        .await
        .expect("rolled back");
    assert_eq!(
        (shop.orders("hat").await, shop.records("hat").await),
        (0, 0)
    );

    let (first, hat) = started(&shop, "hat").await;
    let waiter = shop.session().await;
    waiter
        .batch_execute("SET statement_timeout = '20ms'")
        .await
        .expect("set");
    let waited = try_order(&waiter, "hat", "{}", Some("30 s")).await;
    assert_eq!(waited, refused("57014"));
    waiter.batch_execute("ROLLBACK").await.expect("rolled back");
    complete(&first, &hat, 201, "ordered hat")
        .await
        .expect("completed");
    first.batch_execute("COMMIT").await.expect("committed");
    assert_eq!(order(&waiter, "hat", "{}").await, Ok(ordered("hat")));
    assert_eq!(shop.orders("hat").await, 1);
}

/// PgBouncer in transaction mode gives the server's connection to somebody else after each
/// transaction: nothing of a claim may stay on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_pooler_in_transaction_mode_may_stand_between() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let settings = [("default_pool_size", "2"), ("max_client_conn", "100")];
    let server = servers::Postgres::shared().expect("it runs");
    let Some(pooler) = PgBouncer::with(server, &settings) else {
        return;
    };
    let url = pooler.url(shop.url.rsplit('/').next().expect("a database"));
    for round in 0..4 {
        let key = format!("hat-{round}");
        let callers = (0..8).map(|_| {
            let (url, key) = (url.clone(), key.clone());
            tokio::spawn(async move { text_order(&place::session(&url).await, &key).await })
        });
        let mut answers = Vec::new();
        for caller in callers.collect::<Vec<_>>() {
            answers.push(caller.await.expect("no panic"));
        }
        assert_eq!(
            answers.iter().filter(|answer| *answer == "ran").count(),
            1,
            "{answers:?}"
        );
        assert!(
            answers
                .iter()
                .all(|answer| ["ran", "replayed", "HX409"].contains(&answer.as_str())),
            "{answers:?}"
        );
        assert_eq!(shop.orders(&key).await, 1);
    }
    let sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let row = shop.session().await.query_one(sql, &[]).await;
    assert_eq!(row.expect("asked").get::<_, i64>(0), 0, "no lock is left");
}

/// An order without prepared statements, which old versions of PgBouncer do not know.
async fn text_order(session: &Client, key: &str) -> String {
    let begin = format!(
        "BEGIN; SELECT run, operation_id, fence FROM hapax.start('shop', 'ada', 'POST /orders', '{key}', hapax.fingerprint('{{}}'))"
    );
    let begun = session.simple_query(&begin).await;
    let row = match begun {
        Ok(messages) => messages.into_iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        }),
        Err(error) => {
            session
                .batch_execute("ROLLBACK")
                .await
                .expect("a connection");
            return code(error);
        }
    };
    let row = row.expect("a row");
    if row.get(0) == Some("f") {
        session.batch_execute("COMMIT").await.expect("committed");
        return "replayed".to_owned();
    }
    let rest = format!(
        "INSERT INTO public.orders VALUES ('{key}'); SELECT hapax.complete('{}', {}, 201, '{{}}', 'ordered'); COMMIT",
        row.get(1).expect("an operation"),
        row.get(2).expect("a fence")
    );
    session.batch_execute(&rest).await.expect("an order");
    "ran".to_owned()
}

/// A database with asynchronous commit would forget what was acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commit_waits_for_the_disk() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let session = shop.session().await;
    session
        .batch_execute("SET synchronous_commit = off; BEGIN")
        .await
        .expect("set");
    start(&session, "hat", "{}", None).await.expect("run");
    let row = session.query_one("SHOW synchronous_commit", &[]).await;
    assert_eq!(row.expect("asked").get::<_, &str>(0), "on");
    session
        .batch_execute("ROLLBACK")
        .await
        .expect("rolled back");
    // Nor may it be turned off between the two calls.
    session.batch_execute("BEGIN").await.expect("begun");
    let hat = start(&session, "hat", "{}", None).await.expect("run");
    session
        .batch_execute("SET LOCAL synchronous_commit = off")
        .await
        .expect("set");
    complete(&session, &hat, 201, "ordered hat")
        .await
        .expect("completed");
    let row = session.query_one("SHOW synchronous_commit", &[]).await;
    assert_eq!(row.expect("asked").get::<_, &str>(0), "on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mistakes_in_the_call_are_told_and_claim_nothing() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let session = shop.session().await;
    let print = "hapax.fingerprint('{}')";
    let long = "x".repeat(256);
    for call in [
        format!("'shop', 'ada', 'POST /orders', '', {print}"),
        format!("'shop', 'ada', 'POST /orders', NULL, {print}"),
        format!("'shop', 'ada', 'POST /orders', '{long}', {print}"),
        format!("'shop', 'ada', 'POST /orders', 'ké', {print}"),
        format!("'shop', 'ada', 'POST ', 'key', {print}"),
        format!("'shop', 'ada', '', 'key', {print}"),
        format!("'shop', 'ada', NULL, 'key', {print}"),
        format!("'shop', repeat('a', 8193), 'POST /orders', 'key', {print}"),
        "'shop', 'ada', 'POST /orders', 'key', NULL".to_owned(),
        "'shop', 'ada', 'POST /orders', 'key', 'short'".to_owned(),
    ] {
        let said = session
            .batch_execute(&format!("SELECT * FROM hapax.start({call})"))
            .await;
        assert_eq!(said.map_err(code), Err("22023".to_owned()), "{call}");
    }
    let rows = session
        .query_one("SELECT count(*) FROM hapax.heads", &[])
        .await;
    assert_eq!(rows.expect("asked").get::<_, i64>(0), 0);
}
