//! Failovers and restores that lost acknowledged writes: the store cannot undo that, but it must
//! raise an alarm.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use hapax::{Postgres, Store};
use hapax_core::store::Written;

use super::alarm;
use super::subject::{LONG, Subject, answer, kept};
use super::world::{Server, both, name, open, prepared};

const WRITES: usize = 10;

/// Claims and completes `WRITES` keys; both writes are acknowledged.
async fn charge(store: &Postgres, name: &str) {
    for subject in Subject::many(name, WRITES) {
        let Ok(Written::Won(won)) = store.put_if(subject.claim(LONG)).await else {
            panic!("{name}")
        };
        let written = store
            .put_if(subject.complete(won.head.fence, &answer(name), kept()))
            .await;
        assert!(matches!(written, Ok(Written::Won(_))), "{written:?}");
    }
}

/// Asks for the store info until the store is back, as every node does each second.
async fn comes_back(store: &Postgres) {
    let asking = async {
        while store.info().await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), asking)
        .await
        .expect("the store is back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_that_lost_commits_is_an_alarm() {
    alarm::listen();
    let Some(mut primary) = Server::in_memory(&[]) else {
        return;
    };
    let url = prepared(&primary).await;
    let mut standby = tokio::task::block_in_place(|| primary.synchronous_standby());
    let url = both(&url, &primary, &standby);
    let store = open(&url).await;
    charge(&store, "replicated").await;

    // A standby alone is refused as a store: its data may be old.
    let refused = Postgres::open(&standby.url(name(&url)))
        .await
        .err()
        .expect("a standby is refused")
        .to_string();
    assert!(refused.contains("standby"), "{refused}");

    // From now on the standby receives nothing, and the primary does not wait for it.
    primary.alone();
    standby.set("primary_conninfo", "");
    while primary.psql("postgres", "SELECT count(*) FROM pg_stat_replication") != "0" {
        tokio::task::yield_now().await;
    }
    charge(&store, "acknowledged").await;
    assert_eq!(
        (store.stats().failovers, store.stats().commits_lost),
        (0, 0)
    );
    tokio::task::block_in_place(|| {
        primary.kill();
        standby.promote();
    });
    comes_back(&store).await;

    let stats = store.stats();
    assert_eq!(stats.failovers, 1, "{stats:?}");
    assert!(stats.commits_lost >= WRITES as u64, "{stats:?}");
    let alarms = alarm::heard("without writes that it had acknowledged");
    assert_eq!(alarms.len(), 1, "{alarms:?}");
    hapax_testkit::report!("{}", alarms[0]);
    // The alarm is raised once, and the store continues.
    charge(&store, "after").await;
    comes_back(&store).await;
    assert_eq!(
        (store.stats().failovers, store.stats().commits_lost),
        (1, stats.commits_lost)
    );
    let fresh = open(&url).await;
    assert_eq!(
        (fresh.stats().failovers, fresh.stats().commits_lost),
        (0, 0),
        "who comes later has nothing to miss"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_restored_elsewhere_is_an_alarm_when_it_is_opened() {
    alarm::listen();
    let (Some(server), Some(elsewhere)) = (Server::shared(), Server::made_anew()) else {
        return;
    };
    let url = prepared(server).await;
    charge(&open(&url).await, "before").await;
    let restored = elsewhere.database();
    tokio::task::block_in_place(|| {
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
        elsewhere.psql(
            name(&restored),
            &String::from_utf8(dump.stdout).expect("a text"),
        );
    });

    assert_eq!(alarm::heard("another system"), Vec::<String>::new());
    let store = open(&restored).await;
    assert_eq!(store.stats().failovers, 1, "{:?}", store.stats());
    let alarms = alarm::heard("another system");
    assert_eq!(alarms.len(), 1, "{alarms:?}");
    hapax_testkit::report!("{}", alarms[0]);
    // The remaining records are served, and the next opening raises no further alarm.
    let reading = store
        .get(
            Subject::many("before", WRITES)
                .iter()
                .map(|subject| subject.id)
                .collect(),
        )
        .await
        .unwrap();
    assert!(
        reading
            .records
            .iter()
            .flatten()
            .all(|record| record.answer == Some(answer("before"))),
        "{reading:?}"
    );
    assert_eq!(reading.records.iter().flatten().count(), WRITES);
    assert_eq!(open(&restored).await.stats().failovers, 0);
    assert_eq!(alarm::heard("another system").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_standby_did_not_confirm_is_not_acknowledged_even_if_the_wait_for_it_is_cancelled()
{
    let Some(primary) = Server::in_memory(&[]) else {
        return;
    };
    let url = prepared(&primary).await;
    let mut standby = tokio::task::block_in_place(|| primary.synchronous_standby());
    let store = Arc::new(open(&url).await);
    charge(&store, "confirmed").await;
    tokio::task::block_in_place(|| standby.stop());
    let claim = tokio::spawn({
        let store = store.clone();
        async move { store.put_if(Subject::new("unconfirmed").claim(LONG)).await }
    });
    // The test cancels the hanging statement. The server then reports a commit, with only a warning
    // that the standby may not have it.
    let cancel = format!(
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE datname = '{}' AND wait_event = 'SyncRep'",
        name(&url)
    );
    while tokio::task::block_in_place(|| primary.psql("postgres", &cancel)) != "t" {
        assert!(!claim.is_finished(), "void: nobody waited for the standby");
    }
    let written = claim.await.unwrap();
    assert!(
        written.is_err(),
        "only the primary has it, and if that is lost the key runs again: {written:?}"
    );
    tokio::task::block_in_place(|| standby.start_again());
    charge(&store, "confirmed again").await;
}
