//! Copies of the file, and what happens when a copy replaces it.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use hapax::store::sqlite::BackupError;
use hapax_core::Store;
use hapax_core::record::State;
use hapax_core::store::{Lifetime, Written};

use super::shop::{
    HOUR, SOON, Shop, answer, assert_sound, charge, charge_many, claim, eventually, finish, retry,
    win,
};

const KEPT: Lifetime = Lifetime {
    retention: HOUR,
    tombstone: HOUR,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_under_load_has_everything_acknowledged_before_it_and_is_sound() {
    let shop = Shop::new();
    let store = Arc::new(shop.open().await);
    charge_many(&store, (0..5_000).map(|i| format!("before-{i}")), KEPT).await;
    for i in 0..20 {
        charge(&*store, &format!("large-{i}"), vec![7; 1 << 20], KEPT).await;
    }
    let load = tokio::spawn({
        let store = store.clone();
        async move { charge_many(&store, (0..20_000).map(|i| format!("during-{i}")), KEPT).await }
    });
    let commits = store.stats().commits;
    let path = shop.directory.path().join("copy.db");
    let copied = store.backup(&path).await.unwrap();
    let during = store.stats().commits - commits;
    assert!(
        during > 10,
        "only {during} commits during the backup: it was not under load"
    );
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!(copied.bytes, metadata.len());
    assert_eq!(
        metadata.permissions().mode() & 0o777,
        0o600,
        "it holds answers and a secret"
    );
    load.await.unwrap();

    let copy = shop.open_at(&path).await.unwrap();
    assert!(copy.restored().is_some());
    for i in 0..5_000 {
        let key = format!("before-{i}");
        assert_eq!(answer(&copy, &key).await, Some(key.into_bytes()));
    }
    let during = copy.stats().records - 5_020;
    hapax_testkit::report!(
        "{} bytes; {during} of 20,000 records written meanwhile are in it",
        copied.bytes
    );
    drop(copy);
    assert_sound(&rusqlite::Connection::open(&path).unwrap());
    // The original store is not affected.
    assert!(store.restored().is_none());
    assert_eq!(
        answer(&*store, "during-7").await,
        Some(b"during-7".to_vec())
    );
}

#[tokio::test]
async fn a_backup_overwrites_nothing_and_leaves_nothing_behind_when_it_fails() {
    let shop = Shop::new();
    let store = shop.open().await;
    charge(&store, "paid", "yes", KEPT).await;
    let there = shop.directory.path().join("there");
    std::fs::write(&there, "mine").unwrap();
    assert!(matches!(
        store.backup(&there).await,
        Err(BackupError::Exists { .. })
    ));
    assert_eq!(std::fs::read(&there).unwrap(), b"mine");
    let error = store
        .backup(shop.directory.path().join("no/such/place"))
        .await
        .unwrap_err();
    assert!(matches!(error, BackupError::Io { .. }), "{error}");
    let files: Vec<_> = std::fs::read_dir(shop.directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(
        files
            .iter()
            .all(|name| !name.to_string_lossy().contains("backup")),
        "{files:?}"
    );
}

/// The caller of the backup has gone, and with it the temporary file, before the writer handles the
/// request.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_was_given_up_leaves_nothing_behind() {
    let shop = Shop::new();
    let store = Arc::new(shop.open().await);
    charge(&*store, "first", "paid", KEPT).await;
    let directory = tempfile::tempdir().unwrap();
    let files = || {
        std::fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect::<Vec<_>>()
    };
    let lock = shop.hold_up(&store).await;
    let backup = tokio::spawn({
        let (store, path) = (store.clone(), directory.path().join("copy.db"));
        async move { store.backup(path).await.map(drop) }
    });
    eventually("the backup waits for the writer", SOON, || {
        store.stats().queue_bytes > 0
    })
    .await;
    assert_eq!(files().len(), 1);
    backup.abort();
    assert!(backup.await.unwrap_err().is_cancelled());
    drop(lock);
    // The writer processes one batch after the other: when a second batch has ended, the backup has
    // had its turn.
    charge(&*store, "second", "paid", KEPT).await;
    charge(&*store, "third", "paid", KEPT).await;
    assert_eq!(files(), [""; 0]);
}

/// Writes that are acknowledged after the copy is complete are not in it, even if the caller reads
/// the time later.
#[tokio::test]
async fn a_backup_says_when_it_was_whole_and_not_when_its_caller_heard_of_it() {
    let shop = Shop::new();
    let store = shop.open().await;
    charge(&store, "before", "paid", KEPT).await;
    let path = shop.directory.path().join("copy.db");
    let lock = shop.hold_up(&store).await;
    let mut backup = std::pin::pin!(store.backup(&path));
    tokio::select! {
        copied = &mut backup => panic!("copied while the writer waits: {copied:?}"),
        () = eventually("the backup waits for the writer", SOON, || store.stats().queue_bytes > 0) => {}
    }
    drop(lock);
    // The writer processes one batch after the other, and one between two steps of the copy. A file
    // this small takes two steps: after the third batch the copy is complete.
    for key in ["meanwhile", "and then"] {
        charge(&store, key, "paid", KEPT).await;
    }
    let whole = shop.clock.now();
    shop.clock.advance(Duration::from_secs(1));
    charge(&store, "after", "paid", KEPT).await;
    assert_eq!(backup.await.unwrap().at, whole);
    let copy = shop.open_at(&path).await.unwrap();
    assert_eq!(answer(&copy, "before").await, Some(b"paid".to_vec()));
    assert_eq!(answer(&copy, "after").await, None);
}

/// Both ways in which an old state returns: a backup, and a plain copy of the file made while no
/// process had it open.
#[tokio::test]
async fn an_old_state_raises_the_epoch_and_an_alarm_and_fences_still_grow() {
    for is_backup in [true, false] {
        let shop = Shop::new();
        let store = shop.open().await;
        charge(&store, "old", "paid", KEPT).await;
        let copy = shop.directory.path().join("copy.db");
        let store = if is_backup {
            store.backup(&copy).await.unwrap();
            store
        } else {
            drop(store);
            std::fs::copy(&shop.path, &copy).unwrap();
            shop.open().await
        };
        assert_eq!(store.restored(), None);
        let epoch = store.info().await.unwrap().epoch;
        // The clock stands still, so that the fences run ahead of it.
        let mut lost = win(&store, claim("since")).await;
        for _ in 0..20 {
            win(&store, finish(&lost, State::Retryable, "", KEPT)).await;
            lost = win(&store, retry(&lost)).await;
        }
        assert!(lost.fence.as_u64() > shop.clock.now().as_micros());
        drop(store);

        std::fs::rename(&copy, &shop.path).unwrap();
        shop.clock.advance(Duration::from_millis(1));
        let store = shop.open().await;
        let restored = store.restored().expect("an alarm");
        assert_eq!(restored.copied_at.is_some(), is_backup);
        assert!(store.info().await.unwrap().epoch > epoch);
        assert_eq!(answer(&store, "old").await, Some(b"paid".to_vec()));
        let Written::Won(again) = store.put_if(claim("since")).await.unwrap() else {
            panic!("it was forgotten")
        };
        assert!(
            again.head.fence > lost.fence,
            "{:?} after {:?}",
            again.head.fence,
            lost.fence
        );
        assert!(again.head.fence.as_u64() >= shop.clock.now().as_micros());
        drop(store);
        // The alarm is raised only once: the copy is the store from now on.
        assert_eq!(shop.open().await.restored(), None);
    }
}

/// The file beside the store still records that there was one.
#[tokio::test]
async fn a_deleted_file_raises_an_alarm_too() {
    let shop = Shop::new();
    let store = shop.open().await;
    let lost = charge(&store, "since", "paid", KEPT).await;
    drop(store);
    for end in ["", "-wal", "-shm"] {
        // The log and its index exist only if the store was not closed cleanly.
        let _ = std::fs::remove_file(shop.beside(end));
    }
    shop.clock.advance(Duration::from_millis(1));
    let store = shop.open().await;
    assert_eq!(store.restored().expect("an alarm").copied_at, None);
    assert!(win(&store, claim("since")).await.fence > lost.fence);
    drop(store);
    assert_eq!(shop.open().await.restored(), None);
}

/// The first opening of the copy fails, and its cause is then repaired.
#[tokio::test]
async fn an_alarm_that_nobody_could_hear_is_raised_again() {
    let shop = Shop::new();
    let store = shop.open().await;
    charge(&store, "paid", "yes", KEPT).await;
    let copy = shop.directory.path().join("copy.db");
    let copied = store.backup(&copy).await.unwrap();
    drop(store);
    std::fs::rename(&copy, &shop.path).unwrap();

    let checksum: i64 = shop
        .raw()
        .query_row("SELECT checksum FROM heads", [], |row| row.get(0))
        .unwrap();
    let set = |checksum: i64| {
        assert_eq!(
            shop.raw()
                .execute("UPDATE heads SET checksum = ?1", [checksum]),
            Ok(1)
        );
    };
    set(checksum ^ 1);
    assert!(shop.open_at(&shop.path).await.is_err());
    set(checksum);
    assert_eq!(
        shop.open().await.restored().expect("an alarm").copied_at,
        Some(copied.at)
    );
    assert_eq!(shop.open().await.restored(), None);
}
