//! What else may happen to a database: its clock is set, all its tables are published, a
//! transaction stays open.

use std::time::Duration;

use hapax_core::Store;
use hapax_core::audit::Signed;
use hapax_core::store::{Change, Condition, Lifetime, Put, Written};

use crate::lanes::{claim, finish, won};
use crate::place;

const HOUR: Duration = Duration::from_secs(3600);

/// If time stood still, leases would not end and answers would not expire.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_back_neither_turns_time_back_nor_stops_it() {
    let Some((_, url)) = place::prepared().await else {
        return;
    };
    let (store, session) = (place::open(&url).await, place::session(&url).await);
    let before = store.info().await.expect("info").now;
    // As if the clock had shown two hours later a moment ago.
    session
        .batch_execute("UPDATE hapax.pace SET clock_floor = hapax.now() + 7200000000")
        .await
        .expect("another time");
    store.sweep(1).await.expect("sweep");
    let first = store.info().await.expect("info").now;
    assert!(first.since(before) >= 2 * HOUR, "time has run back");
    let mut later = first;
    while later == first {
        later = store.info().await.expect("info").now;
    }
    assert!(
        later > first && later.since(first) < HOUR,
        "{first:?} {later:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_publishes_all_its_tables_sweeps_and_forgets() {
    let Some((_, url)) = place::prepared().await else {
        return;
    };
    let (store, session) = (place::open(&url).await, place::session(&url).await);
    session
        .batch_execute("CREATE PUBLICATION everything FOR ALL TABLES")
        .await
        .expect("a publication");
    let head = won(store.put_if(claim("published")).await);
    let head = won(store.put_if(finish(&head, "paid")).await);
    let signed = Signed::new("ada", "asked to").expect("both are said");
    let change = Change::Forget(Lifetime::default(), signed);
    let forgotten = store
        .put_if(Put {
            id: head.id,
            condition: Condition::Version {
                version: head.version,
            },
            change,
        })
        .await;
    assert!(matches!(forgotten, Ok(Written::Won(_))), "{forgotten:?}");
    store.sweep(10).await.expect("sweep");
}

/// Every statement reads the sweep's row. While a transaction is open, all old versions of that row
/// stay and must be skipped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sweeps_beside_an_open_transaction_leave_little_behind() {
    let Some((_, url)) = place::prepared().await else {
        return;
    };
    let (store, session, idle) = (
        place::open(&url).await,
        place::session(&url).await,
        place::session(&url).await,
    );
    idle.batch_execute(
        "BEGIN; CREATE TEMPORARY TABLE held (a int); SELECT count(*) FROM hapax.heads",
    )
    .await
    .expect("an open transaction");
    for _ in 0..300 {
        store.sweep(10).await.expect("sweep");
    }
    let bytes: i64 = session
        .query_one("SELECT pg_relation_size('hapax.pace')", &[])
        .await
        .expect("a size")
        .get(0);
    assert!(bytes <= 4 * 8192, "{bytes} bytes after 300 sweeps");
}
