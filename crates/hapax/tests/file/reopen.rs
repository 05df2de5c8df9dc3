//! The index is only in memory: each opening must rebuild it exactly.

use std::sync::Arc;

use hapax_core::record::State;
use hapax_core::store::{Lifetime, ListQuery, Written};
use hapax_core::{RecordId, Store};

use super::shop::{
    HOUR, SHORT, Shop, answer, assert_sound, charge_many, claim, finish, id, many, retry,
    sweep_all, win,
};

/// More than two pieces of the index snapshot, and rows after them.
const KEYS: usize = 40_000;
/// Long enough that no tombstone is removed during a test.
const LONG: Lifetime = Lifetime {
    retention: HOUR,
    tombstone: HOUR.saturating_mul(50),
};

#[tokio::test(flavor = "multi_thread")]
async fn every_record_is_found_after_reopening_and_what_is_gone_is_not() {
    let shop = Shop::new();
    let store = Arc::new(shop.open().await);
    charge_many(&store, (0..KEYS).map(|i| format!("long-{i}")), LONG).await;
    charge_many(&store, (0..2_000).map(|i| format!("short-{i}")), SHORT).await;
    let retryable = win(&*store, claim("retryable")).await;
    win(&*store, finish(&retryable, State::Retryable, "", LONG)).await;
    let unknown = win(&*store, claim("unknown")).await;
    win(&*store, finish(&unknown, State::Unknown, "", SHORT)).await;
    win(&*store, claim("running")).await;

    // The released record is claimed again, from the middle of its expiry queue, after many later
    // writes.
    charge_many(&store, (0..20_000).map(|i| format!("later-{i}")), LONG).await;
    win(&*store, retry(&retryable)).await;

    // The short records are removed, and so are the answers of the long ones.
    shop.clock.advance(HOUR * 3);
    assert_eq!(
        sweep_all(&*store).await,
        2_000 * 2 + KEYS + 20_000 + 2,
        "2 leases, every answer, the short heads"
    );
    charge_many(&store, (0..100).map(|i| format!("new-{i}")), LONG).await;
    drop(store);

    let store = shop.open().await;
    // The index snapshot still lists the row that left the middle of its queue. The table `vacated`
    // records that it left.
    assert_eq!(store.stats().records as usize, KEYS + 20_000 + 3 + 100);
    for i in 0..KEYS {
        assert_tombstone(&store, &format!("long-{i}")).await;
    }
    for i in 0..20_000 {
        assert_tombstone(&store, &format!("later-{i}")).await;
    }
    for i in 0..2_000 {
        assert_eq!(
            store
                .get(vec![id(&format!("short-{i}"))])
                .await
                .unwrap()
                .records,
            [None]
        );
    }
    for i in 0..100 {
        assert_eq!(
            answer(&store, &format!("new-{i}")).await,
            Some(format!("new-{i}").into_bytes())
        );
    }
    for (key, word) in [
        ("retryable", "unknown"),
        ("unknown", "expired"),
        ("running", "unknown"),
    ] {
        assert_eq!(
            store.get(vec![id(key)]).await.unwrap().records[0]
                .as_ref()
                .unwrap()
                .head
                .state
                .word(),
            word,
            "{key}"
        );
    }
    assert_all_are_listed(&store, KEYS + 20_000 + 3 + 100).await;
    drop(store);
    assert_sound(&shop.raw());
}

/// The record is past its retention and cannot be claimed.
async fn assert_tombstone(store: &dyn Store, key: &str) {
    match store.put_if(claim(key)).await.unwrap() {
        Written::Lost(seen) => {
            assert_eq!(seen.record.unwrap().head.state.word(), "expired", "{key}");
        }
        Written::Won(_) => panic!("{key} would run twice"),
    }
}

async fn assert_all_are_listed(store: &dyn Store, count: usize) {
    let (mut ids, mut after): (Vec<RecordId>, _) = (Vec::new(), None);
    loop {
        let page = store
            .list(ListQuery {
                state: None,
                after,
                limit: 7_000,
            })
            .await
            .unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.id);
        ids.extend(page.iter().map(|head| head.id));
    }
    assert!(ids.is_sorted_by(|a, b| a < b));
    assert_eq!(ids.len(), count);
}

/// An emptied expiry queue continues at its position, because the index snapshot may still list its
/// old rows.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_was_emptied_is_not_mistaken_for_what_it_was() {
    let shop = Shop::new();
    let store = Arc::new(shop.open().await);
    charge_many(&store, (0..17_000).map(|i| format!("first-{i}")), SHORT).await;
    shop.clock.advance(HOUR * 3);
    sweep_all(&*store).await;
    drop(store);

    for round in 0..3 {
        let store = Arc::new(shop.open().await);
        assert_eq!(store.stats().records, round * 9_000);
        charge_many(&store, (0..9_000).map(|i| format!("{round}-{i}")), LONG).await;
    }
    let store = shop.open().await;
    for round in 0..3 {
        for i in 0..9_000 {
            assert!(
                matches!(
                    store.put_if(claim(&format!("{round}-{i}"))).await.unwrap(),
                    Written::Lost(_)
                ),
                "{round}-{i}"
            );
        }
    }
    drop(store);
    assert_sound(&shop.raw());
}

/// The released records are claimed again, except the one in front. The index snapshot then has a
/// piece beyond the last row, and the queue continues after that piece.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_goes_on_though_its_end_has_left_and_its_front_has_not() {
    let shop = Shop::new();
    let store = Arc::new(shop.open().await);
    let release = |key: String| {
        let store = store.clone();
        async move {
            let head = win(&*store, claim(&key)).await;
            win(&*store, finish(&head, State::Retryable, "", LONG)).await
        }
    };
    // Two pieces of the index snapshot, and rows after them.
    let released = many((0..33_000).map(|i| release(i.to_string()))).await;
    drop(store);
    assert_eq!(
        shop.raw()
            .query_row("SELECT count(*) FROM roll", [], |row| row.get(0)),
        Ok(2)
    );
    let front = shop.keys("true ORDER BY row LIMIT 10");

    let store = Arc::new(shop.open().await);
    let leave = |head| {
        let store = store.clone();
        async move { win(&*store, retry(&head)).await }
    };
    many(
        released
            .into_iter()
            .filter(|head| !front.iter().any(|key| key == head.key.as_str()))
            .map(leave),
    )
    .await;
    drop(store);

    let store = shop.open().await;
    assert_eq!(store.stats().records, 33_000);
    let new = win(&store, claim("new")).await;
    win(&store, finish(&new, State::Retryable, "", LONG)).await;
    win(&store, claim("newer")).await;
    drop(store);
    let store = shop.open().await;
    assert_eq!(store.stats().records, 33_002);
    for key in front.iter().map(String::as_str).chain(["new", "newer"]) {
        assert!(
            matches!(store.put_if(claim(key)).await.unwrap(), Written::Lost(_)),
            "{key} would run twice"
        );
    }
    drop(store);
    assert_sound(&shop.raw());
}
