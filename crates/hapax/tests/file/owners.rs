//! Other users of the file: a second opening, a second name, another program, and listings during
//! writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hapax::store::sqlite::OpenError;
use hapax_core::Store;
use hapax_core::record::State;
use hapax_core::store::{Lifetime, ListQuery};
use hapax_testkit::crash::{self, Child};

use super::shop::{
    HOUR, SOON, Shop, answer, charge, charge_many, claim, eventually, finish, retry, win,
};

const KEPT: Lifetime = Lifetime {
    retention: HOUR,
    tombstone: HOUR,
};

/// A process that closes any handle of a file loses all the locks it has on it. SQLite in another
/// process would then believe that it is alone, and delete the log that the owner is still writing.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_opening_costs_the_owner_neither_its_locks_nor_its_log() {
    const TEST: &str = "owners::a_refused_opening_costs_the_owner_neither_its_locks_nor_its_log";
    const PATH: &str = "HAPAX_VISITED";
    if crash::role().is_some() {
        return visit(&std::env::var(PATH).unwrap());
    }
    let shop = Shop::new();
    let store = shop.open().await;
    charge(&store, "first", "paid", KEPT).await;
    assert!(matches!(
        shop.open_at(&shop.path).await,
        Err(OpenError::Owned { .. })
    ));
    let mut visitor = Child::spawn(TEST, "visitor", &[(PATH, shop.path.to_str().unwrap())]);
    visitor.wait_for("it is not alone");
    assert!(visitor.ended().success());
    assert!(shop.beside("-wal").exists(), "the log was taken away");

    charge(&store, "second", "paid", KEPT).await;
    // Simulates a power loss: only the files in the directory are left.
    let left = tempfile::tempdir().unwrap();
    for end in ["", "-wal"] {
        std::fs::copy(shop.beside(end), left.path().join(format!("hapax.db{end}"))).unwrap();
    }
    let left = shop.open_at(&left.path().join("hapax.db")).await.unwrap();
    for key in ["first", "second"] {
        assert_eq!(answer(&left, key).await, Some(b"paid".to_vec()), "{key}");
    }
}

/// Another program reads the file and then tries to lock it exclusively. Before 3.51 SQLite tried
/// that whenever it closed a file; this version must be asked to.
fn visit(path: &str) {
    for mode in ["NORMAL", "EXCLUSIVE"] {
        let raw = rusqlite::Connection::open(path).unwrap();
        raw.busy_timeout(Duration::ZERO).unwrap();
        raw.pragma_update(None, "locking_mode", mode).unwrap();
        let looked = raw.query_row("SELECT count(*) FROM heads", [], |row| row.get::<_, i64>(0));
        raw.close().unwrap();
        match (mode, looked) {
            ("NORMAL", Ok(1)) => {}
            ("EXCLUSIVE", Err(error)) => assert_eq!(
                error.sqlite_error_code(),
                Some(rusqlite::ErrorCode::DatabaseBusy)
            ),
            (mode, looked) => panic!("{mode}: {looked:?}"),
        }
    }
    crash::announce("it is not alone");
}

/// By its second name the file could get a second owner, with a separate log.
#[tokio::test]
async fn a_file_with_a_second_name_is_refused_by_either() {
    let shop = Shop::new();
    let store = shop.open().await;
    charge(&store, "paid", "yes", KEPT).await;
    let link = shop.directory.path().join("link.db");
    std::fs::hard_link(&shop.path, &link).unwrap();
    let Err(error) = shop.open_at(&link).await else {
        panic!("two owners")
    };
    assert!(matches!(error, OpenError::Linked { .. }), "{error}");
    drop(store);
    for path in [&link, &shop.path] {
        let Err(error) = shop.open_at(path).await else {
            panic!("opened by {path:?}")
        };
        assert!(matches!(error, OpenError::Linked { .. }), "{error}");
        assert!(error.to_string().contains("remove the link"), "{error}");
    }
    std::fs::remove_file(&link).unwrap();
    assert_eq!(
        answer(&shop.open().await, "paid").await,
        Some(b"yes".to_vec())
    );
    let files: Vec<_> = std::fs::read_dir(shop.directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(
        files
            .iter()
            .all(|name| !name.to_string_lossy().starts_with("link")),
        "{files:?}"
    );
}

#[tokio::test]
async fn what_keeps_the_store_from_writing_is_said_for_as_long_as_it_does() {
    let shop = Shop::new();
    let store = shop.open().await;
    assert_eq!(store.stats().failing, None);
    let lock = shop.hold_up(&store).await;
    eventually("the writer gives up", SOON, || {
        store.stats().commits_failed > 0
    })
    .await;
    let failing = store.stats().failing.expect("it cannot write");
    assert!(
        failing.starts_with("another program holds a lock on the store file"),
        "{failing}"
    );
    drop(lock);
    charge(&store, "paid", "yes", KEPT).await;
    assert_eq!(store.stats().failing, None);
}

/// A record that ends or is claimed again moves from one row to another.
#[tokio::test(flavor = "multi_thread")]
async fn a_listing_misses_no_record_that_only_moves() {
    let shop = Shop::new();
    let store = Arc::new(shop.open().await);
    charge_many(&store, (0..2_000).map(|i| i.to_string()), KEPT).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let mut movers = tokio::task::JoinSet::new();
    for i in 0..20 {
        let (store, is_over) = (store.clone(), is_over.clone());
        let mut head = win(&*store, claim(&format!("moving-{i}"))).await;
        movers.spawn(async move {
            let mut moves = 0;
            while !is_over.load(Ordering::Relaxed) {
                win(&*store, finish(&head, State::Retryable, "", KEPT)).await;
                head = win(&*store, retry(&head)).await;
                moves += 2;
            }
            moves
        });
    }
    for _ in 0..100 {
        let heads = store
            .list(ListQuery {
                state: None,
                after: None,
                limit: 10_000,
            })
            .await
            .unwrap();
        assert_eq!(heads.len(), 2_020);
    }
    is_over.store(true, Ordering::Relaxed);
    let moves: usize = movers.join_all().await.iter().sum();
    hapax_testkit::report!("{moves} moves during 100 listings");
    assert!(moves > 100, "only {moves} moves: this shows nothing");
}

/// Writes into a deleted file succeed and are lost with the process: they must not be acknowledged
/// as durable.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_acknowledged_into_a_file_that_is_no_longer_there() {
    let shop = Shop::new();
    let store = shop.open().await;
    charge(&store, "first", "paid", KEPT).await;
    let aside = tempfile::tempdir_in(shop.directory.path()).unwrap();
    let ends = ["", "-wal", "-shm"];
    for end in ends {
        std::fs::rename(
            shop.beside(end),
            aside.path().join(format!("hapax.db{end}")),
        )
        .unwrap();
    }
    let error = store.put_if(claim("second")).await.unwrap_err();
    assert!(
        error.to_string().contains("no longer where it was") && store.stats().failing.is_some(),
        "{error}"
    );
    // When the file is back in its place the store uses it again, with all acknowledged records.
    for end in ends {
        let _ = std::fs::rename(
            aside.path().join(format!("hapax.db{end}")),
            shop.beside(end),
        );
    }
    let until = std::time::Instant::now() + SOON;
    while store.put_if(claim("third")).await.is_err() {
        assert!(
            std::time::Instant::now() < until,
            "{:?}",
            store.stats().failing
        );
        tokio::task::yield_now().await;
    }
    assert_eq!(answer(&store, "first").await, Some(b"paid".to_vec()));
}
