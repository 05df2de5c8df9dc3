//! Other users of the same file: several guests, and the user's own transactions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hapax::Guest;
use hapax::store::guest::Options;
use hapax_core::record::State;
use hapax_core::store::{Store, Written};
use tokio::sync::Barrier;

use super::shop::{
    HOUR, LEASE, Shop, claim, complete, joining, look, lose, orders, run, takeover, win,
};

#[tokio::test]
async fn what_one_guest_writes_all_others_see() {
    let shop = Shop::new();
    let (one, other) = (shop.guest().await, shop.guest().await);
    assert_eq!(
        one.info().await.unwrap().secret,
        other.info().await.unwrap().secret
    );
    let head = win(&one, claim("k")).await;
    assert_eq!(lose(&other, claim("k")).await, Some(head.clone()));
    win(&other, complete(&head, "by the other")).await;
    assert_eq!(
        look(&one, head.id).await,
        (State::Completed, Some("by the other".to_owned()))
    );

    let running = win(&one, claim("lapsing")).await;
    drop(one);
    assert_eq!(
        lose(&other, takeover("lapsing", &running)).await,
        Some(running.clone()),
        "a lease is over by its time alone"
    );
    shop.clock.advance(LEASE);
    assert!(win(&other, takeover("lapsing", &running)).await.fence > running.fence);
}

/// Different processes have different clocks unless they agree on one.
#[tokio::test]
async fn all_guests_of_a_file_go_by_one_clock() {
    let shop = Shop::new();
    let (one, other) = (
        Guest::open(&shop.path).await.unwrap(),
        Guest::open(&shop.path).await.unwrap(),
    );
    let mut last = one.info().await.unwrap().now;
    for guest in [&other, &one, &other, &one] {
        let now = guest.info().await.unwrap().now;
        assert!(now >= last, "time runs back from one guest to the next");
        last = now;
    }
    let anchors = "SELECT count(*) FROM hapax_meta WHERE boot_us > 0 AND clock_us > 0";
    assert_eq!(
        shop.connect()
            .query_row(anchors, [], |row| row.get::<_, i64>(0))
            .unwrap(),
        1
    );
}

/// Simulates another boot with a wall clock that was set back.
#[tokio::test]
async fn no_clock_begins_before_the_last_change() {
    let shop = Shop::new();
    let guest = shop.guest().await;
    // The manual clock is years ahead of the wall clock.
    let head = win(&guest, claim("k")).await;
    drop(guest);
    shop.connect()
        .execute("UPDATE hapax_meta SET boot_id = 'another'", [])
        .unwrap();
    let guest = Guest::open(&shop.path).await.unwrap();
    assert!(guest.info().await.unwrap().now >= head.claimed_at);
}

/// Of all concurrent callers, on any guest, one runs; with the effect in its own transaction there
/// is one effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_many_wins_across_guests_and_its_effect_is_the_only_one() {
    const KEYS: usize = 20;
    const CALLERS: usize = 6;
    let shop = Arc::new(Shop::new());
    let mut guests = Vec::new();
    for _ in 0..3 {
        let options = Options {
            busy_timeout: HOUR,
            ..shop.options()
        };
        guests.push(Arc::new(
            Guest::open_with(&shop.path, options).await.unwrap(),
        ));
    }
    let won = Arc::new(AtomicUsize::new(0));
    let start = Arc::new(Barrier::new(CALLERS));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (guest, shop, won, start) = (
                guests[caller % 3].clone(),
                shop.clone(),
                won.clone(),
                start.clone(),
            );
            tokio::spawn(async move {
                start.wait().await;
                for key in 0..KEYS {
                    let Written::Won(claimed) =
                        guest.put_if(claim(&format!("key {key}"))).await.unwrap()
                    else {
                        continue;
                    };
                    won.fetch_add(1, Ordering::Relaxed);
                    let end = joining(&*guest, &complete(&claimed.head, &format!("by {caller}")));
                    let shop = shop.clone();
                    let work = move || {
                        let mut connection = shop.connect();
                        connection.busy_timeout(HOUR).unwrap();
                        let transaction =
                            super::shop::ordering(&mut connection, &format!("key {key}"));
                        run(&transaction, &end).unwrap();
                        transaction.commit().unwrap();
                    };
                    tokio::task::spawn_blocking(work).await.unwrap();
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    assert_eq!(won.load(Ordering::Relaxed), KEYS);
    let connection = shop.connect();
    assert_eq!(orders(&connection), KEYS as i64);
    let distinct: i64 = connection
        .query_row("SELECT count(DISTINCT item) FROM orders", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(distinct, KEYS as i64);
    for key in 0..KEYS {
        assert_eq!(
            look(&*guests[0], claim(&format!("key {key}")).id).await.0,
            State::Completed
        );
    }
}

/// Claims that queue up while another connection holds the lock share the next transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_that_gather_behind_a_transaction_are_all_made() {
    let shop = Shop::new();
    let options = Options {
        busy_timeout: HOUR,
        ..shop.options()
    };
    let guest = Arc::new(Guest::open_with(&shop.path, options).await.unwrap());
    let mut connection = shop.connect();
    let transaction = super::shop::ordering(&mut connection, "slow");
    let waiting: Vec<_> = (0..200)
        .map(|number| {
            let guest = guest.clone();
            tokio::spawn(async move { win(&*guest, claim(&format!("k{number}"))).await })
        })
        .collect();
    // Each claim has read that its key is new before the transaction ends, or comes after it:
    // either way it succeeds.
    tokio::task::yield_now().await;
    transaction.commit().unwrap();
    for claimed in waiting {
        assert_eq!(claimed.await.unwrap().attempts, 1);
    }
}

#[tokio::test]
async fn the_users_own_tables_are_left_alone() {
    let shop = Shop::new();
    let connection = shop.connect();
    connection
        .execute_batch("PRAGMA user_version = 42; PRAGMA application_id = 77; INSERT INTO orders (item) VALUES ('old')")
        .unwrap();
    let schema = |connection: &rusqlite::Connection| {
        let mut statement = connection
            .prepare("SELECT name FROM sqlite_schema ORDER BY name")
            .unwrap();
        let names = statement
            .query_map([], |row| row.get::<_, String>(0))
            .unwrap();
        names.map(Result::unwrap).collect::<Vec<_>>()
    };
    assert_eq!(schema(&connection), ["orders"]);
    let guest = shop.guest().await;
    let head = win(&guest, claim("k")).await;
    win(&guest, complete(&head, "done")).await;
    let foreign: Vec<_> = schema(&connection)
        .into_iter()
        .filter(|name| !name.starts_with("hapax_"))
        .collect();
    assert_eq!(
        foreign
            .iter()
            .filter(|name| !name.starts_with("sqlite_"))
            .collect::<Vec<_>>(),
        ["orders"],
        "{foreign:?}"
    );
    let pragma = |name: &str| {
        connection
            .pragma_query_value(None, name, |row| row.get::<_, i64>(0))
            .unwrap()
    };
    assert_eq!(
        (
            pragma("user_version"),
            pragma("application_id"),
            orders(&connection)
        ),
        (42, 77, 1)
    );
    // The user can still run VACUUM.
    connection.execute_batch("VACUUM").unwrap();
    assert_eq!(
        look(&guest, head.id).await,
        (State::Completed, Some("done".to_owned()))
    );
}
