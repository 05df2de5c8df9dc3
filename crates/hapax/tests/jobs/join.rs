//! Work that finishes in a transaction.

use std::sync::Arc;

use hapax::{Answer, Guest, Hapax, Mode, NotDone, Once, Operation, Policy, Rejection, RunError};
use rusqlite::{Connection, TransactionBehavior};

use crate::common::quiet;
use crate::{policy, succeed};

/// A user's SQLite file with a table of orders, and Hapax as a guest in it.
pub(crate) struct Shop {
    directory: tempfile::TempDir,
    hapax: Hapax,
}

impl Shop {
    pub(crate) async fn open() -> Shop {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shop.db");
        let table = "CREATE TABLE orders (item TEXT NOT NULL)";
        Connection::open(&path)
            .unwrap()
            .execute_batch(table)
            .unwrap();
        Shop {
            hapax: quiet(Arc::new(Guest::open(&path).await.unwrap())),
            directory,
        }
    }

    pub(crate) fn once(&self, keep_answers: bool) -> Once {
        let policy = Policy {
            keep_answers,
            ..policy(Mode::Transaction)
        };
        self.hapax.once("order").policy(policy).unwrap()
    }

    pub(crate) fn connect(&self) -> Connection {
        Connection::open(self.directory.path().join("shop.db")).unwrap()
    }

    pub(crate) fn orders(&self) -> i64 {
        let count = "SELECT count(*) FROM orders";
        self.connect()
            .query_row(count, [], |row| row.get(0))
            .unwrap()
    }
}

/// Writes an order and finishes in the same transaction with this answer.
pub(crate) async fn order(operation: Operation, mut connection: Connection, answer: &'static str) {
    let order = move || {
        let immediate = TransactionBehavior::Immediate;
        let transaction = connection.transaction_with_behavior(immediate).unwrap();
        transaction
            .execute("INSERT INTO orders VALUES ('tea')", [])
            .unwrap();
        operation
            .finish_blocking(transaction, Answer::new(201, answer))
            .unwrap();
    };
    tokio::task::spawn_blocking(order).await.unwrap();
}

/// The effect is committed, so a mark of the work must not count.
#[tokio::test]
async fn work_that_has_committed_is_not_told_as_not_done() {
    let shop = Shop::open().await;
    let once = shop.once(false);
    let connection = shop.connect();
    let work = async move |operation: Operation| {
        order(operation.clone(), connection, "ordered").await;
        Err(NotDone::new(&operation, "offline"))
    };
    let error = once.run("k", "", work).await.unwrap_err();
    assert!(
        matches!(error, RunError::Rejected(Rejection::AnswerNotKept { .. })),
        "{error:?}"
    );
    assert!(succeed(&once, "k").await.is_err());
    assert_eq!(shop.orders(), 1);
}
