//! The Rust API with tokio-postgres and rusqlite; tests/join has the other drivers.

use std::time::SystemTime;

use hapax::Guest;
use hapax::core::Timestamp;
use hapax::inbox::{Receipt, ReceiveError, Window, receive, set_window, sweep};
use rusqlite::{Connection, TransactionBehavior};

use crate::place::Database;
use crate::story::{DAY, EFFECTS, ago, told};

#[tokio::test]
async fn tokio_postgres_receives() {
    let Some(database) = Database::new().await else {
        return;
    };
    let mut client = database.session().await;
    told!(
        tx = client.transaction().await.expect("begins"),
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
async fn rusqlite_receives() {
    let (path, _directory) = file().await;
    let mut connection = Connection::open(&path).expect("the file");
    told!(
        tx = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .expect("begins"),
        &mut tx,
        tx.commit(),
        tx.rollback()
    );
    assert_eq!(effects(&path), EFFECTS);
}

/// A sweep of a file removes what is over, and nothing else.
#[tokio::test]
async fn a_sweep_of_a_file_removes_what_is_over() {
    let (path, _directory) = file().await;
    let mut connection = Connection::open(&path).expect("the file");
    let mut tx = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .expect("begins");
    set_window(&mut tx, "long", Window::Forever)
        .await
        .expect("a window");
    for consumer in ["c", "long"] {
        for (id, age) in [("young", DAY), ("old", 13 * DAY)] {
            assert_eq!(
                receive(&mut tx, consumer, id, Some(ago(age)))
                    .await
                    .expect("receives"),
                Receipt::New
            );
        }
    }
    let later = Timestamp::from_system_time(SystemTime::now()).after(2 * DAY);
    assert_eq!(sweep(&mut tx, later).await.expect("sweeps"), 1);
    assert_eq!(
        receive(&mut tx, "c", "young", Some(ago(DAY)))
            .await
            .expect("receives"),
        Receipt::Duplicate
    );
    // What is gone stays too old, though the clock says that it is not.
    assert_eq!(
        receive(&mut tx, "c", "old", Some(ago(13 * DAY)))
            .await
            .expect("receives"),
        Receipt::TooOld
    );
    assert_eq!(
        receive(&mut tx, "long", "old", Some(ago(13 * DAY)))
            .await
            .expect("receives"),
        Receipt::Duplicate
    );
}

#[tokio::test]
async fn a_database_without_an_inbox_says_what_to_do() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (url, _) = database.url.rsplit_once('/').expect("a URL");
    let (mut client, connection) =
        tokio_postgres::connect(&format!("{url}/postgres"), tokio_postgres::NoTls)
            .await
            .expect("a session");
    tokio::spawn(connection);
    let mut tx = client.transaction().await.expect("begins");
    let error = receive(&mut tx, "c", "m", None)
        .await
        .expect_err("no inbox");
    assert!(matches!(error, ReceiveError::NoInbox(_)), "{error}");
    let directory = tempfile::tempdir().expect("a directory");
    let mut connection = Connection::open(directory.path().join("other.db")).expect("a file");
    let mut tx = connection.transaction().expect("begins");
    let error = receive(&mut tx, "c", "m", None)
        .await
        .expect_err("no inbox");
    assert!(matches!(error, ReceiveError::NoInbox(_)), "{error}");
}
