//! Copies of the file, and what happens when one takes its place.

use std::sync::Arc;

use hapax::store::sqlite::BackupError;
use hapax_core::Store;
use hapax_core::record::State;
use hapax_core::store::{Condition, Lifetime, Put, Written};

use super::shop::{HOUR, Shop, answer, assert_sound, charge, charge_many, claim, finish, win};

const KEPT: Lifetime = Lifetime { retention: HOUR, tombstone: HOUR };

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
    assert!(during > 10, "only {during} commits during the backup: it was not under load");
    assert_eq!(copied.bytes, std::fs::metadata(&path).unwrap().len());
    load.await.unwrap();

    let copy = shop.open_at(&path).await.unwrap();
    assert!(copy.restored().is_some());
    for i in 0..5_000 {
        let key = format!("before-{i}");
        assert_eq!(answer(&copy, &key).await, Some(key.into_bytes()));
    }
    let during = copy.stats().records - 5_020;
    println!("{} bytes; {during} of 20,000 records written meanwhile are in it", copied.bytes);
    drop(copy);
    assert_sound(&rusqlite::Connection::open(&path).unwrap());
    // The original goes on.
    assert!(store.restored().is_none());
    assert_eq!(answer(&*store, "during-7").await, Some(b"during-7".to_vec()));
}

#[tokio::test]
async fn a_backup_overwrites_nothing_and_leaves_nothing_behind_when_it_fails() {
    let shop = Shop::new();
    let store = shop.open().await;
    charge(&store, "paid", "yes", KEPT).await;
    let there = shop.directory.path().join("there");
    std::fs::write(&there, "mine").unwrap();
    assert!(matches!(store.backup(&there).await, Err(BackupError::Exists { .. })));
    assert_eq!(std::fs::read(&there).unwrap(), b"mine");
    let error = store.backup(shop.directory.path().join("no/such/place")).await.unwrap_err();
    assert!(matches!(error, BackupError::Io { .. }), "{error}");
    let files: Vec<_> = std::fs::read_dir(shop.directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(files.iter().all(|name| !name.to_string_lossy().contains("backup")), "{files:?}");
}

/// Both ways in which an old state comes back: a backup, and a plain copy of the file that was made while nobody used it.
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
        let epoch = store.pulse().await.unwrap().epoch;
        // Fences run ahead of a clock that stands.
        let mut lost = win(&store, claim("since")).await;
        for _ in 0..20 {
            win(&store, finish(&lost, State::Retryable, "", KEPT)).await;
            let condition = Condition::Lapsed { fence: lost.fence };
            lost = win(&store, Put { condition, ..claim("since") }).await;
        }
        assert!(lost.fence.as_u64() > shop.clock.now().as_micros());
        drop(store);

        std::fs::rename(&copy, &shop.path).unwrap();
        shop.clock.advance(std::time::Duration::from_millis(1));
        let store = shop.open().await;
        let restored = store.restored().expect("an alarm");
        assert_eq!(restored.copied_at.is_some(), is_backup);
        assert!(store.pulse().await.unwrap().epoch > epoch);
        assert_eq!(answer(&store, "old").await, Some(b"paid".to_vec()));
        let Written::Won(again) = store.put_if(claim("since")).await.unwrap() else { panic!("it was forgotten") };
        assert!(again.head.fence > lost.fence, "{:?} after {:?}", again.head.fence, lost.fence);
        assert!(again.head.fence.as_u64() >= shop.clock.now().as_micros());
        drop(store);
        // Only once: from now on it is the store.
        assert_eq!(shop.open().await.restored(), None);
    }
}
