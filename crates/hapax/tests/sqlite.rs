//! The SQLite store: the contract, a step-by-step comparison with the reference store, and the
//! states of a file when it is opened.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hapax::store::sqlite::{OpenError, Options, Sqlite, View};
use hapax_contract::Bench;
use hapax_core::answer::Answer;
use hapax_core::fingerprint::{Fingerprint, FingerprintPolicy};
use hapax_core::record::{AttemptToken, Head, State, StateFilter};
use hapax_core::store::{
    Change, Claim, Condition, Finish, Lifetime, ListQuery, Put, StoreErrorKind, Written,
};
use hapax_core::{Key, Memory, Principal, RecordId, Scope, Secret, Store};
use hapax_testkit::{ManualClock, history};
use tempfile::TempDir;

async fn open(path: &Path, clock: &ManualClock) -> Sqlite {
    Sqlite::open_with(
        path,
        Options {
            clock: Some(Arc::new(clock.clone())),
            ..Default::default()
        },
    )
    .await
    .unwrap()
}

mod contract {
    use super::*;

    async fn sqlite() -> Bench {
        let (directory, clock) = (tempfile::tempdir().unwrap(), ManualClock::new());
        let store = open(&directory.path().join("hapax.db"), &clock).await;
        Bench::by_hand(Arc::new(store), clock).keeping(directory)
    }

    hapax_contract::store_contract!(sqlite);
}

#[tokio::test]
async fn random_histories_are_the_same_in_memory_and_in_sqlite() {
    let mut tally = history::Tally::default();
    for seed in 0..40 {
        let (directory, clock) = (tempfile::tempdir().unwrap(), ManualClock::new());
        let memory = Memory::new(Arc::new(clock.clone()), Secret::from_bytes([7; 32]));
        let sqlite = open(&directory.path().join("hapax.db"), &clock).await;
        tally += history::run(seed, 250, &memory, &sqlite, &clock).await;
    }
    hapax_testkit::report!("{tally}");
    for kind in [
        "claim",
        "takeover",
        "completion",
        "late completion",
        "release",
        "loss",
        "settlement",
        "forgetting",
        "renewal",
    ] {
        for result in ["won", "lost"] {
            assert!(
                tally.count(kind, result) > 0,
                "no {kind} {result}: this run shows nothing of it"
            );
        }
    }
}

/// A claim of a record of the test.
fn claim(key: &str) -> Put {
    let scope = Arc::new(Scope {
        namespace: "n".into(),
        principal: Principal::Anonymous,
        method: "POST".into(),
        path: "/".into(),
    });
    let key = Key::new(key).unwrap();
    let claim = Claim {
        fingerprint: Fingerprint {
            digest: [1; 32],
            policy: Arc::default(),
        },
        token: AttemptToken::from_bytes([2; 16]),
        lease: Duration::from_secs(10),
        terms: None,
        request_id: None,
        scope: scope.clone(),
        key: key.clone(),
    };
    Put {
        id: RecordId::of(&scope, &key),
        condition: Condition::Absent,
        change: Change::Claim(claim),
    }
}

fn complete(head: &Head, body: &'static str) -> Put {
    let finish = Finish {
        state: State::Completed,
        status: Some(201),
        answer: Some(Arc::new(Answer::new(201, body))),
        lifetime: Lifetime::default(),
    };
    Put {
        id: head.id,
        condition: Condition::Held { fence: head.fence },
        change: Change::Finish(finish),
    }
}

async fn win(store: &dyn Store, put: Put) -> Head {
    match store.put_if(put).await.unwrap() {
        Written::Won(won) => won.head,
        Written::Lost(seen) => panic!("lost to {seen:?}"),
    }
}

struct File {
    _directory: TempDir,
    path: std::path::PathBuf,
    clock: ManualClock,
}

fn file() -> File {
    let directory = tempfile::tempdir().unwrap();
    File {
        path: directory.path().join("hapax.db"),
        _directory: directory,
        clock: ManualClock::new(),
    }
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_reopening_and_a_dead_owners_leases_are_over_at_once()
{
    let file = file();
    let store = open(&file.path, &file.clock).await;
    let secret = store.info().await.unwrap().secret;
    let done = win(&store, claim("done")).await;
    win(&store, complete(&done, "answer")).await;
    let running = win(&store, claim("running")).await;
    drop(store);

    let store = open(&file.path, &file.clock).await;
    assert_eq!(
        store.info().await.unwrap().secret,
        secret,
        "operation ids are the same after a restart"
    );
    let reading = store.get(vec![done.id, running.id]).await.unwrap();
    let [Some(done), Some(lost)] = &reading.records[..] else {
        panic!("{reading:?}")
    };
    assert_eq!(done.answer.as_deref(), Some(&Answer::new(201, "answer")));
    // The clock has not advanced.
    assert_eq!(lost.head.state_at(reading.now), State::Unknown);
    let Change::Claim(again) = claim("running").change else {
        unreachable!()
    };
    let takeover = Put {
        id: running.id,
        condition: Condition::Lapsed {
            fence: running.fence,
        },
        change: Change::Claim(again),
    };
    assert!(win(&store, takeover).await.fence > running.fence);
}

#[tokio::test]
async fn a_second_owner_is_refused_and_told_who_has_the_file() {
    let file = file();
    let owner = open(&file.path, &file.clock).await;
    let Err(error) = Sqlite::open(&file.path).await else {
        panic!("two owners")
    };
    assert!(
        matches!(&error, OpenError::Owned { owner, .. } if *owner == std::process::id().to_string()),
        "{error}"
    );
    assert!(error.to_string().contains("in use by process"), "{error}");
    drop(owner);
    Sqlite::open(&file.path).await.unwrap();
}

#[tokio::test]
async fn others_may_look_while_it_is_owned_and_after() {
    let file = file();
    // The owner uses the machine's clock, which the view shares.
    let owner = Sqlite::open(&file.path).await.unwrap();
    let done = win(&owner, claim("done")).await;
    win(&owner, complete(&done, "answer")).await;
    let running = win(&owner, claim("running")).await;

    let states = |view: &View| {
        let reading = view.get(&[done.id, running.id]).unwrap();
        reading
            .records
            .iter()
            .map(|record| record.as_ref().unwrap().head.state_at(reading.now).word())
            .collect::<Vec<_>>()
    };
    let view = View::open(&file.path).unwrap();
    assert_eq!(states(&view), ["completed", "running"]);
    assert_eq!(
        view.list(&ListQuery {
            state: Some(StateFilter::Running),
            after: None,
            limit: 9
        })
        .unwrap()
        .len(),
        1
    );
    drop(owner);
    assert_eq!(
        states(&View::open(&file.path).unwrap()),
        ["completed", "unknown"]
    );
    assert!(
        matches!(
            View::open(file.path.with_extension("none")),
            Err(OpenError::Io { .. })
        ),
        "looking creates nothing"
    );
}

#[tokio::test]
async fn what_is_not_a_store_is_left_alone() {
    let file = file();
    std::fs::write(
        &file.path,
        "Dear diary, this is not a database, but it is longer than a header.".repeat(20),
    )
    .unwrap();
    let before = std::fs::read(&file.path).unwrap();
    assert!(matches!(
        Sqlite::open(&file.path).await,
        Err(OpenError::NotAStore { .. })
    ));
    assert_eq!(std::fs::read(&file.path).unwrap(), before);

    let other = file.path.with_extension("other");
    rusqlite::Connection::open(&other)
        .unwrap()
        .execute_batch("CREATE TABLE orders (id INTEGER)")
        .unwrap();
    assert!(matches!(
        Sqlite::open(&other).await,
        Err(OpenError::NotAStore { .. })
    ));

    let nowhere = file.path.join("nowhere/hapax.db");
    assert!(matches!(
        Sqlite::open(&nowhere).await,
        Err(OpenError::Io { .. })
    ));
}

#[tokio::test]
async fn a_newer_file_is_refused_by_its_format() {
    let file = file();
    drop(open(&file.path, &file.clock).await);
    rusqlite::Connection::open(&file.path)
        .unwrap()
        .pragma_update(None, "user_version", 99)
        .unwrap();
    let Err(error) = Sqlite::open(&file.path).await else {
        panic!("opened")
    };
    assert!(
        matches!(
            error,
            OpenError::Newer {
                found: 99,
                known: 7,
                ..
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn a_damaged_answer_is_an_error_and_never_a_replay() {
    let file = file();
    let store = open(&file.path, &file.clock).await;
    let head = win(&store, claim("k")).await;
    win(&store, complete(&head, "the answer, undamaged")).await;
    let other = win(&store, claim("other")).await;
    drop(store);
    let raw = rusqlite::Connection::open(&file.path).unwrap();
    let changed = raw
        .execute("UPDATE answers SET content = CAST(substr(content, 1, length(content) - 8) || zeroblob(8) AS BLOB)", [])
        .unwrap();
    assert_eq!(changed, 1);
    drop(raw);

    let store = open(&file.path, &file.clock).await;
    assert_eq!(
        store.get(vec![head.id]).await.unwrap_err().kind(),
        StoreErrorKind::Corrupt
    );
    assert_eq!(
        store.put_if(claim("k")).await.unwrap_err().kind(),
        StoreErrorKind::Corrupt
    );
    // Only that record fails, not others in the same batch.
    let (damaged, fine) = tokio::join!(store.put_if(claim("k")), store.put_if(claim("fine")));
    assert!(damaged.is_err() && matches!(fine, Ok(Written::Won(_))));
    assert!(store.get(vec![other.id]).await.unwrap().records[0].is_some());
}

#[tokio::test]
async fn the_sqlite_that_is_linked_is_not_one_that_corrupts() {
    assert!(
        rusqlite::version_number() >= hapax::store::sqlite::SQLITE_VERSION_MIN,
        "{}",
        rusqlite::version()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_that_arrive_during_a_commit_share_the_next() {
    let file = file();
    let store = Arc::new(open(&file.path, &file.clock).await);
    // Sequential writes are not batched: each has its own commit.
    for i in 0..20 {
        win(&*store, claim(&format!("alone-{i}"))).await;
    }
    assert_eq!(store.stats().commits, 20);
    let writes: Vec<_> = (0..2_000)
        .map(|i| {
            let store = store.clone();
            tokio::spawn(async move { win(&*store, claim(&format!("together-{i}"))).await })
        })
        .collect();
    for write in writes {
        write.await.unwrap();
    }
    let commits = store.stats().commits - 20;
    hapax_testkit::report!("2,000 concurrent writes in {commits} commits");
    assert!(commits < 1_000, "{commits} commits");
}

#[tokio::test]
async fn a_record_that_cannot_be_read_does_not_stop_the_sweep() {
    let file = file();
    let store = open(&file.path, &file.clock).await;
    let mut put = claim("bad");
    let Change::Claim(claimed) = &mut put.change else {
        unreachable!()
    };
    claimed.fingerprint.policy = Arc::new(FingerprintPolicy::json());
    let bad = win(&store, put).await;
    win(&store, claim("good")).await;
    drop(store);
    let raw = rusqlite::Connection::open(&file.path).unwrap();
    let text = FingerprintPolicy::json().to_string();
    assert_eq!(
        raw.execute(
            "UPDATE policies SET text = 'from the future' WHERE text = ?1",
            [text]
        )
        .unwrap(),
        1
    );
    drop(raw);

    let store = open(&file.path, &file.clock).await;
    file.clock.advance(Duration::from_secs(11));
    // Sweeps one record at a time, so that a damaged one could block the sweep for ever.
    let swept = [
        store.sweep(1).await.unwrap().lost,
        store.sweep(1).await.unwrap().lost,
    ];
    assert_eq!(swept.iter().sum::<usize>(), 1);
    assert_eq!(
        store.get(vec![bad.id]).await.unwrap_err().kind(),
        StoreErrorKind::Unsupported
    );
}
