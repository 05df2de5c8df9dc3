//! Forgotten answers are in no byte of any file.
//!
//! Answers are encrypted under a key in two halves. One half, the seal, is only in the table
//! `seals`. Finding no bytes of an answer in the files therefore proves little: these tests save
//! its seal and search for that.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hapax::store::sqlite::{Options, Sqlite, View};
use hapax::{Audit, BoxError, Hapax, OperatorError};
use hapax_core::Store;
use hapax_core::audit::{LogQuery, Signed};
use hapax_core::record::{Head, State};
use hapax_core::store::{Change, Condition, Lifetime, ListQuery, Put, StoreErrorKind, Written};

use super::shop::{
    HOUR, SOON, Shop, answer, assert_sound, charge, claim, eventually, finish, id, many, sweep_all,
    win,
};

const KEPT: Lifetime = Lifetime {
    retention: HOUR,
    tombstone: HOUR.saturating_mul(1_000),
};
/// Contained in every answer, many times in a large one.
const CANARY: &str = "canary 4929-1234-5678-9012;";
const SEALS: i64 = 127;
/// The bytes of a row before its first seal.
const LEAD: i64 = 485;

fn body(bytes: usize) -> String {
    CANARY.chars().cycle().take(bytes).collect()
}

fn forgetting(head: &Head) -> Put {
    let change = Change::Forget(KEPT, Signed::new("ada", "erasure request").unwrap());
    Put {
        id: head.id,
        condition: Condition::Version {
            version: head.version,
        },
        change,
    }
}

async fn forget(store: &dyn Store, key: &str) {
    let head = store
        .get(vec![id(key)])
        .await
        .unwrap()
        .records
        .remove(0)
        .unwrap()
        .head;
    win(store, forgetting(&head)).await;
}

/// Forgets concurrently, so that the changes share a commit and a cut of the log.
async fn forget_all(store: &Arc<Sqlite>, keys: impl Iterator<Item = &(String, Vec<u8>)>) {
    let forgetting = keys.map(|(key, _)| {
        let (store, key) = (store.clone(), key.clone());
        async move { forget(&*store, &key).await }
    });
    many(forgetting).await;
}

/// The seal of a key's answer, without which the answer cannot be read.
fn seal(shop: &Shop, key: &str) -> Vec<u8> {
    let raw = shop.raw();
    let place: i64 = raw
        .query_row("SELECT answer FROM heads WHERE key = ?1", [key], |row| {
            row.get(0)
        })
        .unwrap();
    let (lane, turn) = (place >> 48, place & ((1 << 48) - 1));
    let sql = "SELECT substr(seals, ?2, 32) FROM seals WHERE row = ?1";
    let seal: Vec<u8> = raw
        .query_row(
            sql,
            [lane << 48 | (turn / SEALS), LEAD + turn % SEALS * 32 + 1],
            |row| row.get(0),
        )
        .unwrap();
    assert!(
        seal.len() == 32 && seal.iter().any(|byte| *byte != 0),
        "{key} has no seal"
    );
    seal
}

/// The files that contain these bytes. Another process reads them: closing a file that this process
/// has open would drop its locks.
fn files_with(shop: &Shop, bytes: &[u8]) -> Vec<PathBuf> {
    let files = std::fs::read_dir(shop.directory.path())
        .unwrap()
        .map(|file| file.unwrap().path());
    files
        .filter(|file| {
            let read = std::process::Command::new("cat")
                .arg(file)
                .output()
                .unwrap();
            assert!(
                read.status.success() || !file.exists(),
                "{file:?} could not be read"
            );
            memchr::memmem::find(&read.stdout, bytes).is_some()
        })
        .collect()
}

fn assert_erased(shop: &Shop, seal: &[u8], what: &str) {
    assert_eq!(
        files_with(shop, seal),
        Vec::<PathBuf>::new(),
        "{what}: its seal is still there"
    );
    assert_eq!(
        files_with(shop, CANARY.as_bytes()),
        Vec::<PathBuf>::new(),
        "{what}: it is there to be read"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_answer_is_in_no_byte_of_any_file() {
    for bytes in [200, 100 << 10, 1 << 20] {
        let shop = Shop::new();
        let mut store = shop.open().await;
        for key in ["fresh", "reopened", "neighbour", "over", "buried"] {
            let lifetime = if matches!(key, "over" | "buried") {
                Lifetime {
                    retention: HOUR / 2,
                    ..KEPT
                }
            } else {
                KEPT
            };
            charge(&store, key, body(bytes), lifetime).await;
            assert_eq!(answer(&store, key).await, Some(body(bytes).into_bytes()));
        }
        let lost = win(&store, claim("settled")).await;
        let lost = win(&store, finish(&lost, State::Unknown, "", KEPT)).await;
        let Change::Finish(done) = finish(&lost, State::Completed, body(bytes), KEPT).change else {
            unreachable!("as made")
        };
        let change = Change::Settle(done, Signed::new("ada", "found in the books").unwrap());
        win(
            &store,
            Put {
                change,
                ..forgetting(&lost)
            },
        )
        .await;

        let seals: Vec<_> = ["fresh", "settled", "reopened", "over", "buried"]
            .map(|key| (key, seal(&shop, key)))
            .into_iter()
            .collect();
        for (key, seal) in &seals {
            assert_ne!(
                files_with(&shop, seal),
                Vec::<PathBuf>::new(),
                "{key}: its seal is where it was not, so this shows nothing"
            );
        }
        for (key, seal) in &seals {
            match *key {
                "reopened" => {
                    drop(store);
                    store = shop.open().await;
                }
                "over" => shop.clock.advance(HOUR / 2),
                "buried" => assert!(sweep_all(&store).await > 0),
                _ => {}
            }
            forget(&store, key).await;
            assert_eq!(answer(&store, key).await, None);
            assert_erased(&shop, seal, &format!("{key}, {bytes} bytes"));
        }
        assert_eq!(
            answer(&store, "neighbour").await,
            Some(body(bytes).into_bytes()),
            "only what was forgotten is gone"
        );
        drop(store);
        assert_sound(&shop.raw());
    }
}

/// Stops background tasks of a test, also when the test fails.
#[derive(Default)]
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_answer_is_erased_while_others_write_and_look() {
    let shop = Shop::new();
    let store = Arc::new(shop.open().await);
    for number in 0..5 {
        charge(
            &*store,
            &format!("secret-{number}"),
            body(300 << (number * 2)),
            KEPT,
        )
        .await;
    }
    let over = Over::default();
    let is_over = &over.0;
    let mut others = tokio::task::JoinSet::new();
    for writer in 0..4 {
        let (store, is_over) = (store.clone(), is_over.clone());
        others.spawn(async move {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                charge(&*store, &format!("{writer}-{count}"), vec![7; 2_000], KEPT).await;
                count += 1;
            }
            count
        });
    }
    let (view, looking) = (View::open(&shop.path).unwrap(), is_over.clone());
    others.spawn_blocking(move || {
        let mut count = 0;
        while !looking.load(Ordering::Relaxed) {
            view.list(&ListQuery {
                state: None,
                after: None,
                limit: 10,
            })
            .unwrap();
            count += 1;
        }
        count
    });
    for number in 0..5 {
        let key = format!("secret-{number}");
        let seal = seal(&shop, &key);
        forget(&*store, &key).await;
        assert_erased(&shop, &seal, &key);
    }
    drop(over);
    let done = others.join_all().await;
    hapax_testkit::report!("{done:?} writes and looks meanwhile");
    assert!(
        done.iter().all(|count| *count > 0),
        "{done:?}: this shows nothing"
    );
}

/// The caller gets an error, no other caller waits, and the bytes are erased when the reader ends.
#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_a_reader_holds_are_an_error_and_go_when_it_ends() {
    let shop = Shop::new();
    let patience = Duration::from_millis(300);
    let options = Options {
        clock: Some(Arc::new(shop.clock.clone())),
        erase_timeout: patience,
        ..Options::default()
    };
    let store = Arc::new(Sqlite::open_with(&shop.path, options).await.unwrap());
    let first = charge(&*store, "first", body(5_000), KEPT).await;
    let second = charge(&*store, "second", body(5_000), KEPT).await;
    let (first_seal, second_seal) = (seal(&shop, "first"), seal(&shop, "second"));
    let mut raw = shop.raw();
    let reader = raw.transaction().unwrap();
    reader
        .query_row("SELECT count(*) FROM heads", [], |row| row.get::<_, i64>(0))
        .unwrap();

    let forgotten = tokio::spawn({
        let store = store.clone();
        async move { store.put_if(forgetting(&first)).await }
    });
    for number in 0..20 {
        charge(&*store, &format!("meanwhile-{number}"), "paid", KEPT).await;
    }
    let error = forgotten.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unerased, "{error}");
    assert!(
        error
            .to_string()
            .contains("another program reads the store file"),
        "{error}"
    );
    assert_eq!(
        answer(&*store, "first").await,
        None,
        "forgotten it is all the same"
    );
    assert_ne!(
        files_with(&shop, &first_seal),
        Vec::<PathBuf>::new(),
        "it was no false alarm"
    );

    // A reader that ends in time only delays the forgetting.
    let forgotten = tokio::spawn({
        let store = store.clone();
        async move { store.put_if(forgetting(&second)).await }
    });
    let is_forgotten = async || {
        store.get(vec![id("second")]).await.unwrap().records[0]
            .as_ref()
            .unwrap()
            .head
            .fingerprint
            .is_none()
    };
    while !is_forgotten().await {
        tokio::task::yield_now().await;
    }
    drop(reader);
    assert!(matches!(forgotten.await.unwrap().unwrap(), Written::Won(_)));
    assert_erased(&shop, &second_seal, "second");
    eventually("the first is made good", SOON, || {
        files_with(&shop, &first_seal).is_empty()
    })
    .await;
}

/// Through the library: the operator gets an error, and the answer, which was also cached in
/// memory, is no longer served.
#[tokio::test(flavor = "multi_thread")]
async fn a_forgetting_whose_bytes_may_be_left_is_an_error_and_a_forgetting() {
    let shop = Shop::new();
    let options = Options {
        erase_timeout: Duration::from_millis(100),
        ..Options::default()
    };
    let hapax = Hapax::builder(Sqlite::open_with(&shop.path, options).await.unwrap())
        .sweep(None)
        .build();
    let once = hapax.once("charge");
    let run = async || {
        once.run("k", "x", async |_| Ok::<_, BoxError>(body(100).into()))
            .await
    };
    assert!(!run().await.unwrap().replayed && run().await.unwrap().replayed);
    let mut raw = shop.raw();
    let reader = raw.transaction().unwrap();
    reader
        .query_row("SELECT count(*) FROM heads", [], |row| row.get::<_, i64>(0))
        .unwrap();

    let id = hapax
        .list(ListQuery {
            state: None,
            after: None,
            limit: 1,
        })
        .await
        .unwrap()[0]
        .id;
    let audit = Audit {
        by: "ada",
        reason: "erasure request",
    };
    let error = hapax.forget(id, audit).await.unwrap_err();
    assert!(
        matches!(error, OperatorError::Unerased { .. }) && error.to_string().contains("once more"),
        "{error}"
    );
    assert!(run().await.is_err(), "it was served after it was forgotten");
    drop(reader);
    hapax.forget(id, audit).await.unwrap();
    assert_eq!(hapax.log(LogQuery::latest(10)).await.unwrap().len(), 2);
}

/// SQLite splits, merges and moves pages. A table that is written to in this way can leave deleted
/// rows in gaps of its pages.
#[tokio::test(flavor = "multi_thread")]
async fn no_page_that_sqlite_moved_about_keeps_a_seal() {
    let shop = Shop::new();
    let store = Arc::new(shop.open().await);
    // Three expiry queues, which grow where they meet and are swept from their fronts.
    let lifetimes = [1, 2, 3].map(|hours| Lifetime {
        retention: HOUR * hours,
        tombstone: HOUR * 10_000,
    });
    let sizes = [60, 200, 500, 900, 2_500, 6_000];
    let (mut forgotten, mut number) = (Vec::new(), 0_usize);
    for round in 0..60 {
        let mut written = tokio::task::JoinSet::new();
        for _ in 0..40 {
            let (store, lifetime, bytes) = (
                store.clone(),
                lifetimes[number * 7 % 3],
                sizes[number * 11 % 6],
            );
            written.spawn(async move {
                charge(&*store, &number.to_string(), body(bytes), lifetime).await
            });
            number += 1;
        }
        let heads = written.join_all().await;
        let picked: Vec<_> = heads
            .iter()
            .step_by(7)
            .map(|head| head.key.as_str().to_owned())
            .collect();
        forgotten.extend(picked.iter().map(|key| (key.clone(), seal(&shop, key))));
        forget_all(&store, forgotten.iter().rev().skip(20).take(4)).await;
        shop.clock.advance(HOUR / 8);
        if round % 3 == 0 {
            sweep_all(&*store).await;
        }
    }
    forget_all(&store, forgotten.iter()).await;
    let files: Vec<_> = std::fs::read_dir(shop.directory.path())
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    let all: Vec<u8> = std::process::Command::new("cat")
        .args(&files)
        .output()
        .unwrap()
        .stdout;
    let left: Vec<_> = forgotten
        .iter()
        .filter(|(_, seal)| memchr::memmem::find(&all, seal).is_some())
        .map(|(key, _)| key)
        .collect();
    hapax_testkit::report!(
        "{} answers written, {} forgotten, {} bytes in {} files looked through",
        number,
        forgotten.len(),
        all.len(),
        files.len()
    );
    assert!(
        left.is_empty() && memchr::memmem::find(&all, CANARY.as_bytes()).is_none(),
        "{left:?} are still there"
    );
    drop(store);
    assert_sound(&shop.raw());
}
