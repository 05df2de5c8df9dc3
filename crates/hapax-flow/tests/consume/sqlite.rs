//! The same in the user's own SQLite file.

use std::sync::Arc;
use std::time::Duration;

use hapax::{BoxError, Guest};
use hapax_core::time::Timestamp;
use hapax_flow::consume::{Consumer, Incoming, Progress, Received, Versions};
use sqlx::{Sqlite, SqlitePool, Transaction};
use tempfile::TempDir;

use crate::place::{Running, consumer, keyed, message, with_payload};
use crate::script::Script;

struct File {
    pool: SqlitePool,
    _directory: TempDir,
}

impl File {
    async fn new() -> File {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("shop.db");
        let path = path.to_str().expect("text");
        drop(Guest::open(path).await.expect("a file"));
        let pool = SqlitePool::connect(&format!("sqlite:{path}")).await;
        let pool = pool.expect("a pool");
        let sql = "CREATE TABLE effects (place INTEGER PRIMARY KEY, message TEXT NOT NULL)";
        sqlx::query(sql).execute(&pool).await.expect("a table");
        File {
            pool,
            _directory: directory,
        }
    }

    async fn texts(&self, sql: &'static str) -> Vec<String> {
        let rows = sqlx::query_scalar(sql).fetch_all(&self.pool).await;
        rows.expect("texts")
    }

    async fn effects(&self) -> Vec<String> {
        self.texts("SELECT message FROM effects ORDER BY place")
            .await
    }

    async fn parked(&self) -> Vec<String> {
        self.texts("SELECT id FROM hapax_parked WHERE state = 1 ORDER BY id")
            .await
    }

    fn run(&self, consumer: Consumer, script: &Script) -> (Running, Arc<Progress>) {
        let handled = consumer
            .source(script.source())
            .database(self.pool.clone())
            .handle(write_effects);
        let progress = handled.progress();
        let running = Running::spawn(progress.clone(), |stop| handled.run(stop));
        (running, progress)
    }
}

async fn write_effects(
    batch: &[Received],
    tx: &mut Transaction<'static, Sqlite>,
) -> Result<(), BoxError> {
    for message in batch {
        let insert = sqlx::query("INSERT INTO effects (message) VALUES (?)");
        insert.bind(message.id()).execute(&mut **tx).await?;
        if &message.payload[..] == b"poison" {
            return Err("this message cannot be handled".into());
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_file_applies_a_message_once_and_parks_what_fails() {
    let file = File::new().await;
    let script = Script::default();
    let (running, progress) = file.run(consumer(), &script);
    let old = Incoming {
        at: Some(Timestamp::from_micros(1)),
        deliveries: Some(9),
        ..message("old")
    };
    script.deliver([message("a"), message("b"), message("a"), old]);
    script.deliver([
        with_payload(keyed("poison", "k"), "poison"),
        keyed("c", "k"),
    ]);
    script.drained().await;
    assert_eq!(file.effects().await, ["a", "b", "c"]);
    assert_eq!(file.parked().await, ["old", "poison"]);
    assert_eq!(progress.counts().duplicates, 1);
    let sql = "UPDATE hapax_parked SET state = 2, not_applied = 1 WHERE id = 'old'";
    sqlx::query(sql).execute(&file.pool).await.expect("again");
    while progress.counts().retried == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(file.effects().await, ["a", "b", "c", "old"]);
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn a_file_parks_a_gap_until_it_is_filled() {
    let file = File::new().await;
    let script = Script::default();
    let version = |version| Incoming {
        version: Some(version),
        ..keyed(format!("v{version}"), "order-1")
    };
    let (running, progress) = file.run(consumer().versions(Versions::ParkGaps), &script);
    // The gap closes in the batch in which it is found.
    script.deliver([1, 3, 2].map(version));
    script.drained().await;
    let retried = async {
        while progress.counts().retried == 0 {
            tokio::task::yield_now().await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(20), retried).await;
    assert!(ended.is_ok(), "{:?} is parked", file.parked().await);
    assert_eq!(file.effects().await, ["v1", "v2", "v3"]);
    // What a later version has overtaken is not applied, though an operator asks for it.
    let late = Incoming {
        at: Some(Timestamp::from_micros(1)),
        id: Some("late".to_owned()),
        ..version(2)
    };
    script.deliver([late]);
    script.drained().await;
    let sql = "UPDATE hapax_parked SET state = 2, not_applied = 1";
    sqlx::query(sql).execute(&file.pool).await.expect("again");
    while !file.texts("SELECT id FROM hapax_parked").await.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(file.effects().await, ["v1", "v2", "v3"]);
    running.stop().await.expect("it ran");
}
