//! Limits of the log's length, the file's size and the queue's bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hapax::store::sqlite::{Options, Sqlite};
use hapax_core::Store;
use hapax_core::store::Lifetime;

use super::shop::{
    HOUR, SHORT, SOON, Shop, answer, charge, charge_many, claim, eventually, id, sweep_all, win,
};

const MIB: usize = 1 << 20;
const LOG_MAX: u64 = 64 << 20;
const KEPT: Lifetime = Lifetime {
    retention: HOUR,
    tombstone: HOUR,
};

fn length(shop: &Shop, end: &str) -> u64 {
    std::fs::metadata(shop.beside(end)).map_or(0, |file| file.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_stays_short_and_is_short_again_after_a_long_reader() {
    let shop = Shop::new();
    let store = shop.open().await;
    let mut longest = 0;
    for i in 0..200 {
        charge(&store, &format!("alone-{i}"), vec![7; MIB], KEPT).await;
        longest = longest.max(length(&shop, "-wal"));
    }
    assert!(
        longest <= LOG_MAX,
        "{longest} bytes of log with nobody reading"
    );

    let mut raw = shop.raw();
    let reader = raw.transaction().unwrap();
    let before: i64 = reader
        .query_row("SELECT count(*) FROM heads", [], |row| row.get(0))
        .unwrap();
    for i in 0..100 {
        charge(&store, &format!("read-{i}"), vec![7; MIB], KEPT).await;
    }
    let held = length(&shop, "-wal");
    assert!(
        held > LOG_MAX,
        "{held} bytes: the reader did not hold the log, so this shows nothing"
    );
    assert_eq!(
        reader
            .query_row("SELECT count(*) FROM heads", [], |row| row.get::<_, i64>(0))
            .unwrap(),
        before
    );
    drop(reader);
    // The log is cut back although nothing is written.
    eventually("the log is cut back", Duration::from_secs(10), || {
        length(&shop, "-wal") <= LOG_MAX
    })
    .await;
    hapax_testkit::report!(
        "{longest} bytes at most with nobody reading, {held} with a reader, {} after it",
        length(&shop, "-wal")
    );
    assert_eq!(answer(&store, "read-99").await, Some(vec![7; MIB]));
}

/// A reader that stays in the log keeps it from restarting. The store's own readers follow one
/// another, and must not be treated as an outside reader, about which the store can do nothing.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_stays_short_though_the_stores_own_readers_never_rest() {
    let shop = Shop::new();
    let store = Arc::new(shop.open().await);
    charge_many(&store, (0..1_000).map(|i| i.to_string()), KEPT).await;
    // All of these are read in one snapshot of the log.
    let ids: Vec<_> = (0..1_000).map(|i| id(&i.to_string())).collect();
    let is_over = Arc::new(AtomicBool::new(false));
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (store, ids, is_over) = (store.clone(), ids.clone(), is_over.clone());
        readers.spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                store.get(ids.clone()).await.unwrap();
            }
        });
    }
    let mut longest = 0;
    for i in 0..150 {
        charge(&*store, &format!("large-{i}"), vec![7; MIB], KEPT).await;
        longest = longest.max(length(&shop, "-wal"));
    }
    is_over.store(true, Ordering::Relaxed);
    readers.join_all().await;
    hapax_testkit::report!(
        "{longest} bytes of log at most, {} resets",
        store.stats().log_resets
    );
    assert!(
        longest <= LOG_MAX,
        "{longest} bytes of log with nobody outside reading"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_file_shrinks_when_what_was_in_it_is_gone() {
    let shop = Shop::new();
    let store = shop.open().await;
    for i in 0..100 {
        charge(&store, &i.to_string(), vec![7; MIB], SHORT).await;
    }
    eventually("the file grows", SOON, || length(&shop, "") > 80 << 20).await;
    shop.clock.advance(HOUR * 3);
    sweep_all(&store).await;
    eventually("the file shrinks", SOON, || length(&shop, "") < 30 << 20).await;
    assert_eq!(store.stats().records, 0);
}

/// The disk does not respond (here another connection holds a lock). Waiting writes are limited in
/// bytes, and the rest are refused at once.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_a_slow_disk_is_bounded_in_bytes() {
    let shop = Shop::new();
    let options = Options {
        queue_bytes_max: 2 * MIB,
        clock: Some(Arc::new(shop.clock.clone())),
        ..Options::default()
    };
    let store = Arc::new(Sqlite::open_with(&shop.path, options).await.unwrap());
    let mut heads = Vec::new();
    for i in 0..40 {
        heads.push(win(&*store, claim(&i.to_string())).await);
    }
    let lock = shop.hold_up(&store).await;
    let mut waiting = tokio::task::JoinSet::new();
    for head in &heads {
        let (store, put) = (
            store.clone(),
            super::shop::finish(head, hapax_core::State::Completed, vec![7; MIB / 4], KEPT),
        );
        waiting.spawn(async move { store.put_if(put).await.is_ok() });
    }
    // No room is freed while the lock is held, so every write beyond the limit is refused.
    eventually("most are refused", SOON, || store.stats().refused >= 20).await;
    assert!(
        store.stats().queue_bytes <= 2 * MIB as u64,
        "{:?}",
        store.stats()
    );
    drop(lock);
    let results = waiting.join_all().await;
    let refused = results.iter().filter(|is_ok| !**is_ok).count();
    hapax_testkit::report!(
        "{refused} of {} completions refused, {} bytes waiting",
        results.len(),
        store.stats().queue_bytes
    );
    assert!(refused >= 20);
    assert_eq!(store.stats().queue_bytes, 0);
    // The store continues normally.
    charge(&*store, "after", "paid", KEPT).await;
}
