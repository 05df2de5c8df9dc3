//! A database that is restored from a backup while every node is stopped, which is the usual
//! procedure: the operator must still get an alarm.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use hapax::store::postgres::schema;
use hapax::store::postgres::{ConnectOptions, Options};
use hapax::{Postgres, Store};
use hapax_core::audit::{LogQuery, Signed};
use hapax_core::store::{Lifetime, Written};

use super::alarm;
use super::subject::{LONG, Subject, answer, kept};
use super::world::{Server, name, open, prepared};

const WRITES: usize = 5;

/// A node that records its last writes in this file.
async fn node(url: &str, file: &Path) -> Postgres {
    let options = Options {
        high_water_file: Some(file.to_owned()),
        ..Options::new(url).expect("a URL")
    };
    Postgres::open_with(options)
        .await
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Claims and completes `WRITES` keys, and waits until the file names the last of them.
async fn charge(store: &Postgres, name: &str, lifetime: Lifetime, file: Option<&Path>) {
    let subjects = Subject::many(name, WRITES);
    for subject in &subjects {
        let Ok(Written::Won(won)) = store.put_if(subject.claim(LONG)).await else {
            panic!("{name}")
        };
        let written = store
            .put_if(subject.complete(won.head.fence, &answer(name), lifetime))
            .await;
        assert!(matches!(written, Ok(Written::Won(_))), "{written:?}");
    }
    let Some(file) = file else { return };
    let last = store
        .get(vec![subjects[WRITES - 1].id])
        .await
        .unwrap()
        .records
        .remove(0)
        .unwrap()
        .head;
    let line = format!("write {} {} ", last.id, last.version);
    let written = async {
        while !std::fs::read_to_string(file)
            .unwrap_or_default()
            .contains(&line)
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), written)
        .await
        .expect("the file names the last write");
}

/// The number of alarms so far, including those of other tests.
fn alarms() -> usize {
    alarm::heard("without writes that it had acknowledged").len()
}

/// What a node finds when it starts: whether the database was set back, its epoch, and the fence it
/// issues now.
async fn found(store: &Postgres) -> (bool, u64, u64) {
    let epoch = store.info().await.expect("info").epoch;
    let Ok(Written::Won(won)) = store
        .put_if(Subject::new(&uuid::Uuid::new_v4().to_string()).claim(LONG))
        .await
    else {
        panic!()
    };
    (store.stats().restored, epoch, won.head.fence.as_u64())
}

fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .arg(from)
        .arg(to)
        .status()
        .expect("cp runs");
    assert!(copied.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_was_restored_while_all_nodes_were_stopped_is_an_alarm() {
    alarm::listen();
    let Some(mut server) = Server::start() else {
        return;
    };
    let url = prepared(&server).await;
    let directory = tempfile::tempdir().unwrap();
    let (file, backup) = (
        directory.path().join("high-water"),
        directory.path().join("backup"),
    );
    let store = node(&url, &file).await;
    charge(&store, "before", kept(), Some(&file)).await;
    drop(store);
    // The backup is a copy of the stopped server.
    let data = server.data().to_owned();
    tokio::task::block_in_place(|| {
        server.stop();
        copy(&data, &backup);
        server.start_again();
    });
    // An ordinary restart of both raises no alarm.
    let store = node(&url, &file).await;
    let (restored, epoch, _) = found(&store).await;
    assert!(
        !restored && store.stats().commits_lost == 0,
        "a false alarm: {:?}",
        store.stats()
    );
    charge(&store, "after", kept(), Some(&file)).await;
    let (_, _, fence) = found(&store).await;
    drop(store);

    tokio::task::block_in_place(|| {
        server.stop();
        std::fs::remove_dir_all(&data).unwrap();
        copy(&backup, &data);
        server.start_again();
    });
    // Without the file a node does not notice.
    assert!(!found(&open(&url).await).await.0);
    let heard = alarms();
    let store = node(&url, &file).await;
    let (restored, epoch_after, fence_after) = found(&store).await;
    assert!(
        restored && store.stats().commits_lost >= WRITES as u64,
        "{:?}",
        store.stats()
    );
    assert!(alarms() > heard);
    assert!(epoch_after > epoch, "what nodes have in memory is void");
    assert!(
        fence_after > fence,
        "a fence that was given is given again: {fence_after} after {fence}"
    );
    // The alarm is raised once.
    charge(&store, "since", kept(), Some(&file)).await;
    drop(store);
    let store = node(&url, &file).await;
    assert!(
        !found(&store).await.0 && store.stats().commits_lost == 0,
        "{:?}",
        store.stats()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dump_restored_into_the_same_database_is_an_alarm() {
    alarm::listen();
    let Some(server) = Server::shared() else {
        return;
    };
    let url = prepared(server).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("high-water");
    let store = node(&url, &file).await;
    charge(&store, "dumped", kept(), Some(&file)).await;
    let dump = tokio::task::block_in_place(|| {
        let dump = server
            .client("pg_dump")
            .arg(name(&url))
            .stdin(Stdio::null())
            .output()
            .expect("pg_dump runs");
        assert!(
            dump.status.success(),
            "{}",
            String::from_utf8_lossy(&dump.stderr)
        );
        String::from_utf8(dump.stdout).expect("a text")
    });
    charge(&store, "lost", kept(), Some(&file)).await;
    drop(store);
    let restore = || {
        tokio::task::block_in_place(|| {
            server.terminate_backends(name(&url));
            server.psql(name(&url), "DROP SCHEMA hapax CASCADE");
            server.psql(name(&url), &dump);
        });
    };
    restore();
    let store = node(&url, &file).await;
    let (restored, ..) = found(&store).await;
    assert!(restored, "{:?}", store.stats());
    charge(&store, "since", kept(), None).await;
    drop(store);

    // Where there is no file, the operator reports the restore.
    restore();
    let store = open(&url).await;
    let (restored, epoch, _) = found(&store).await;
    assert!(!restored, "nobody can tell");
    let signed = Signed::new("ada", "the disk of db-1 failed").unwrap();
    let noted = schema::restored(&ConnectOptions::parse(&url).unwrap(), &signed)
        .await
        .expect("noted");
    let (_, epoch_after, fence) = found(&store).await;
    assert!(
        epoch_after == noted.epoch
            && noted.epoch > epoch
            && fence > noted.floor
            && noted.floor > noted.now.as_micros(),
        "{noted:?}"
    );
    let log = store.log(LogQuery::latest(1)).await.unwrap();
    assert_eq!(
        (
            log[0].action.word(),
            log[0].signed.by(),
            log[0].signed.reason()
        ),
        ("restored", "ada", "the disk of db-1 failed")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_be_gone_by_now_is_no_witness() {
    alarm::listen();
    let Some(server) = Server::shared() else {
        return;
    };
    let url = prepared(server).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("high-water");
    let store = node(&url, &file).await;
    charge(&store, "kept", kept(), Some(&file)).await;
    // These records expire at once and are removed by the sweep.
    charge(
        &store,
        "brief",
        Lifetime {
            retention: Duration::ZERO,
            tombstone: Duration::ZERO,
        },
        None,
    )
    .await;
    while store.sweep(100).await.unwrap().removed < WRITES {}
    drop(store);
    let store = node(&url, &file).await;
    assert!(!found(&store).await.0, "{:?}", store.stats());
    drop(store);
    // All records that the file names have expired and are removed.
    server.psql(
        name(&url),
        "UPDATE hapax.heads SET tombstone_until = 1, expires_at = 1; DELETE FROM hapax.heads",
    );
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(
        text.contains("\nwrite "),
        "void: the file names nothing: {text}"
    );
    let moved = format!(
        "UPDATE hapax.pace SET skew = {}",
        30 * 24 * 60 * 60 * 1_000_000_u64
    );
    server.psql(name(&url), &moved);
    let store = node(&url, &file).await;
    assert!(!found(&store).await.0, "{:?}", store.stats());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_another_store_says_nothing() {
    let Some(server) = Server::shared() else {
        return;
    };
    let (one, other) = (prepared(server).await, prepared(server).await);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("high-water");
    let store = node(&one, &file).await;
    charge(&store, "elsewhere", kept(), Some(&file)).await;
    drop(store);
    let store = node(&other, &file).await;
    assert!(!found(&store).await.0, "{:?}", store.stats());
    // From then on the file belongs to this store.
    charge(&store, "here", kept(), Some(&file)).await;
}
