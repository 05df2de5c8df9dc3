//! Many with one key at the same time.

use hapax_testkit::harness::in_time;
use tokio::sync::Barrier;

use super::{Shop, Started, complete, insert, is_run, order, ordered, refused, start, try_order};

const CALLERS: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_twenty_at_once_one_runs_and_the_others_are_told_so() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    for round in 0..5 {
        let key = format!("hat-{round}");
        // The first is held open until the other nineteen have their answers.
        let first = shop.session().await;
        first.batch_execute("BEGIN").await.expect("begun");
        let begun = start(&first, &key, "{}", None).await.expect("run");
        insert(&first, &key).await.expect("inserted");
        let others = (1..CALLERS).map(|_| {
            let (url, key) = (shop.url.clone(), key.clone());
            tokio::spawn(async move { order(&crate::place::session(&url).await, &key, "{}").await })
        });
        for other in others.collect::<Vec<_>>() {
            assert_eq!(other.await.expect("no panic"), refused("HX409"));
        }
        complete(&first, &begun, 201, &format!("ordered {key}"))
            .await
            .expect("completed");
        first.batch_execute("COMMIT").await.expect("committed");
        assert_eq!(shop.orders(&key).await, 1);
        assert_eq!(shop.order(&key, "{}").await, Ok(ordered(&key)));
    }
}

/// Nobody is held open on purpose: whoever is first is first.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_race_has_one_effect() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let (mut in_flight, mut replayed) = (0, 0);
    for round in 0..20 {
        let key = format!("hat-{round}");
        let start = std::sync::Arc::new(Barrier::new(CALLERS));
        let callers = (0..CALLERS).map(|_| {
            let (url, key, start) = (shop.url.clone(), key.clone(), start.clone());
            tokio::spawn(async move {
                let session = crate::place::session(&url).await;
                start.wait().await;
                order(&session, &key, "{}").await
            })
        });
        let mut ran = 0;
        for caller in callers.collect::<Vec<_>>() {
            match caller.await.expect("no panic") {
                Ok(Started::Run { .. }) => ran += 1,
                Ok(replay) => {
                    assert_eq!(replay, ordered(&key));
                    replayed += 1;
                }
                other => {
                    assert_eq!(other, refused("HX409"));
                    in_flight += 1;
                }
            }
        }
        assert_eq!((ran, shop.orders(&key).await), (1, 1), "{key}");
    }
    hapax_testkit::report!("{in_flight} were told in flight, {replayed} got the answer");
    assert!(in_flight > 0, "void: nobody met another one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_who_wait_get_the_same_answer() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let first = shop.session().await;
    first.batch_execute("BEGIN").await.expect("begun");
    let begun = start(&first, "hat", "{}", None).await.expect("run");
    let waiters = waiting(&shop, "hat").await;
    insert(&first, "hat").await.expect("inserted");
    complete(&first, &begun, 201, "ordered hat")
        .await
        .expect("completed");
    first.batch_execute("COMMIT").await.expect("committed");
    for waiter in waiters {
        assert_eq!(waiter.await.expect("no panic"), Ok(ordered("hat")));
    }
    assert_eq!(shop.orders("hat").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_takes_no_lock_and_no_transaction_id() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    assert!(is_run(&shop.order("hat", "{}").await));
    let session = shop.session().await;
    session.batch_execute("BEGIN").await.expect("begun");
    let again = start(&session, "hat", "{}", None).await;
    assert_eq!(again, Ok(ordered("hat")));
    let sql = "SELECT count(*), pg_current_xact_id_if_assigned() IS NULL FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
    let row = session.query_one(sql, &[]).await.expect("asked");
    assert_eq!((row.get::<_, i64>(0), row.get(1)), (0, true));
}

/// A waiter who has its answer holds up nobody, though its transaction stays open.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_waiter_with_its_answer_keeps_no_lock() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let first = shop.session().await;
    first.batch_execute("BEGIN").await.expect("begun");
    let begun = start(&first, "hat", "{}", None).await.expect("run");
    let waiter = shop.session().await;
    waiter.batch_execute("BEGIN").await.expect("begun");
    let (waited, ()) = tokio::join!(start(&waiter, "hat", "{}", Some("30 s")), async {
        until_waiting(&shop, 1).await;
        complete(&first, &begun, 201, "ordered hat")
            .await
            .expect("completed");
        first.batch_execute("COMMIT").await.expect("committed");
    });
    assert_eq!(waited, Ok(ordered("hat")));
    let sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let row = waiter.query_one(sql, &[]).await.expect("asked");
    assert_eq!(row.get::<_, i64>(0), 0);
    let row = waiter.query_one("SHOW lock_timeout", &[]).await;
    assert_eq!(row.expect("asked").get::<_, &str>(0), "0", "as it was");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn if_the_first_is_rolled_back_one_who_waits_runs() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let first = shop.session().await;
    first.batch_execute("BEGIN").await.expect("begun");
    start(&first, "hat", "{}", None).await.expect("run");
    let waiters = waiting(&shop, "hat").await;
    first.batch_execute("ROLLBACK").await.expect("rolled back");
    let (mut ran, mut replayed) = (0, 0);
    for waiter in waiters {
        let waited = waiter.await.expect("no panic");
        if is_run(&waited) {
            ran += 1;
        } else {
            assert_eq!(waited, Ok(ordered("hat")));
            replayed += 1;
        }
    }
    assert_eq!(
        (ran, replayed, shop.orders("hat").await),
        (1, CALLERS - 2, 1)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_in_vain_is_told_in_flight() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let first = shop.session().await;
    first.batch_execute("BEGIN").await.expect("begun");
    start(&first, "hat", "{}", None).await.expect("run");
    let second = shop.session().await;
    let waited = try_order(&second, "hat", "{}", Some("50 ms")).await;
    assert_eq!(waited, refused("HX409"));
    second.batch_execute("ROLLBACK").await.expect("rolled back");
    let too_long = try_order(&second, "hat", "{}", Some("31 s")).await;
    assert_eq!(too_long, refused("22023"));
}

type Waiter = tokio::task::JoinHandle<Result<Started, String>>;

/// Nineteen who wait, when all of them do.
async fn waiting(shop: &Shop, key: &str) -> Vec<Waiter> {
    let waiters = (1..CALLERS).map(|_| {
        let (url, key) = (shop.url.clone(), key.to_owned());
        tokio::spawn(async move {
            let session = crate::place::session(&url).await;
            try_order(&session, &key, "{}", Some("30 s")).await
        })
    });
    let waiters: Vec<_> = waiters.collect();
    until_waiting(shop, waiters.len()).await;
    waiters
}

/// Returns when so many sessions of the shop wait for a lock.
async fn until_waiting(shop: &Shop, count: usize) {
    let session = shop.session().await;
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'";
    let all_wait = async {
        loop {
            let row = session.query_one(sql, &[]).await.expect("asked");
            if usize::try_from(row.get::<_, i64>(0)).expect("a count") == count {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    in_time("sessions wait for the lock", all_wait).await;
}
