//! Receiving on every driver whose transactions can be joined: the story of tests/inbox.

use diesel_async::{
    AnsiTransactionManager, AsyncConnection, AsyncPgConnection, TransactionManager,
};
use hapax::Guest;
use hapax::inbox::{ReceiveError, receive};
use rusqlite::Connection;
use sea_orm::TransactionTrait;

use crate::inbox_place::Database;
use crate::story::{EFFECTS, story, told};

#[tokio::test]
async fn sqlx_on_postgres_receives() {
    let Some(database) = Database::new().await else {
        return;
    };
    let pool = sqlx::PgPool::connect(&database.url).await.expect("a pool");
    told!(
        tx = pool.begin().await.expect("begins"),
        &mut tx,
        tx.commit().await,
        tx.rollback().await
    );
    assert_eq!(database.effects().await, EFFECTS);
    let mut alone = pool.acquire().await.expect("a connection");
    let refused = receive(&mut *alone, "c", "m", None).await;
    assert!(
        matches!(refused, Err(ReceiveError::NoTransaction)),
        "{refused:?}"
    );
}

#[tokio::test]
async fn diesel_async_receives() {
    let Some(database) = Database::new().await else {
        return;
    };
    let mut connection = AsyncPgConnection::establish(&database.url)
        .await
        .expect("a connection");
    let begin = async |connection: &mut AsyncPgConnection| {
        AnsiTransactionManager::begin_transaction(connection)
            .await
            .expect("begins");
    };
    for (is_first, commits) in [(true, false), (true, true), (false, true)] {
        begin(&mut connection).await;
        story(&mut connection, is_first).await;
        if commits {
            AnsiTransactionManager::commit_transaction(&mut connection)
                .await
                .expect("commits");
        } else {
            AnsiTransactionManager::rollback_transaction(&mut connection)
                .await
                .expect("rolls back");
        }
    }
    assert_eq!(database.effects().await, EFFECTS);
    let refused = receive(&mut connection, "c", "m", None).await;
    assert!(
        matches!(refused, Err(ReceiveError::NoTransaction)),
        "{refused:?}"
    );
}

#[tokio::test]
async fn sea_orm_receives() {
    let Some(database) = Database::new().await else {
        return;
    };
    let db = sea_orm::Database::connect(&database.url)
        .await
        .expect("a connection");
    told!(
        tx = db.begin().await.expect("begins"),
        &mut tx,
        tx.commit().await,
        tx.rollback().await
    );
    assert_eq!(database.effects().await, EFFECTS);
}

async fn file() -> (String, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory
        .path()
        .join("shop.db")
        .to_str()
        .expect("text")
        .to_owned();
    drop(Guest::open(&path).await.expect("a file"));
    let connection = Connection::open(&path).expect("the file");
    connection
        .execute_batch("CREATE TABLE effects (message TEXT NOT NULL)")
        .expect("a table");
    (path, directory)
}

fn effects(path: &str) -> String {
    let sql =
        "SELECT group_concat(message, ' ') FROM (SELECT message FROM effects ORDER BY message)";
    let connection = Connection::open(path).expect("the file");
    connection
        .query_row(sql, [], |row| row.get(0))
        .expect("effects")
}

#[tokio::test]
async fn sqlx_on_sqlite_receives() {
    let (path, _directory) = file().await;
    let pool = sqlx::SqlitePool::connect(&format!("sqlite:{path}"))
        .await
        .expect("a pool");
    told!(
        tx = pool.begin_with("BEGIN IMMEDIATE").await.expect("begins"),
        &mut tx,
        tx.commit().await,
        tx.rollback().await
    );
    assert_eq!(effects(&path), EFFECTS);
}
