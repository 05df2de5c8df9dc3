//! A service with its own tables in its own file, which Hapax uses as a guest.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hapax::Guest;
use hapax::store::guest::Options;
use hapax_core::answer::Answer;
use hapax_core::fingerprint::Fingerprint;
use hapax_core::record::{AttemptToken, Head, State};
use hapax_core::store::{
    Change, Claim, Condition, Finish, Lifetime, Put, Statement, Store, Value, Written,
};
use hapax_core::{Key, Principal, RecordId, RequestId, Scope};
use hapax_testkit::ManualClock;
use rusqlite::types::ToSql;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use tempfile::TempDir;

pub(crate) const HOUR: Duration = Duration::from_secs(60 * 60);
pub(crate) const LEASE: Duration = Duration::from_secs(10);

pub(crate) struct Shop {
    pub(crate) directory: TempDir,
    pub(crate) path: PathBuf,
    pub(crate) clock: ManualClock,
}

impl Shop {
    /// A file with a table of orders, as it was before Hapax was added.
    pub(crate) fn new() -> Shop {
        let directory = tempfile::tempdir().unwrap();
        let shop = Shop {
            path: directory.path().join("shop.db"),
            directory,
            clock: ManualClock::new(),
        };
        shop.connect()
            .execute_batch("CREATE TABLE orders (number INTEGER PRIMARY KEY, item TEXT NOT NULL)")
            .unwrap();
        shop
    }

    pub(crate) fn options(&self) -> Options {
        Options {
            clock: Some(Arc::new(self.clock.clone())),
            ..Options::default()
        }
    }

    pub(crate) async fn guest(&self) -> Guest {
        Guest::open_with(&self.path, self.options()).await.unwrap()
    }

    /// A connection of the user.
    pub(crate) fn connect(&self) -> Connection {
        Connection::open(&self.path).unwrap()
    }

    /// The number of effects, from the user's own table.
    pub(crate) fn orders(&self) -> i64 {
        orders(&self.connect())
    }
}

pub(crate) fn orders(connection: &Connection) -> i64 {
    connection
        .query_row("SELECT count(*) FROM orders", [], |row| row.get(0))
        .unwrap()
}

/// A user's transaction with an effect in it.
pub(crate) fn ordering<'a>(connection: &'a mut Connection, item: &str) -> Transaction<'a> {
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap();
    transaction
        .execute("INSERT INTO orders (item) VALUES (?1)", [item])
        .unwrap();
    transaction
}

/// Runs a statement of the store as any driver would.
pub(crate) fn run(connection: &Connection, statement: &Statement) -> rusqlite::Result<()> {
    let values: Vec<&dyn ToSql> = statement
        .values
        .iter()
        .map(|value| match value {
            Value::Bytes(bytes) => bytes as &dyn ToSql,
            Value::Int(number) => number as &dyn ToSql,
        })
        .collect();
    connection.execute(statement.sql, &values[..]).map(drop)
}

pub(crate) fn claim(key: &str) -> Put {
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
        lease: LEASE,
        terms: None,
        request_id: RequestId::new("request-7"),
        scope: scope.clone(),
        key: key.clone(),
    };
    Put {
        id: RecordId::of(&scope, &key),
        condition: Condition::Absent,
        change: Change::Claim(claim),
    }
}

/// Another attempt, after one whose lease has lapsed.
pub(crate) fn takeover(key: &str, head: &Head) -> Put {
    Put {
        condition: Condition::Lapsed { fence: head.fence },
        ..claim(key)
    }
}

pub(crate) fn finish(head: &Head, state: State, answer: Option<&str>) -> Put {
    let answer = answer.map(|body| Arc::new(Answer::new(201, body.to_owned())));
    let lifetime = Lifetime {
        retention: HOUR,
        tombstone: HOUR,
    };
    let finish = Finish {
        state,
        status: Some(201),
        answer,
        lifetime,
    };
    Put {
        id: head.id,
        condition: Condition::Held { fence: head.fence },
        change: Change::Finish(finish),
    }
}

pub(crate) fn complete(head: &Head, body: &str) -> Put {
    finish(head, State::Completed, Some(body))
}

pub(crate) async fn win(store: &dyn Store, put: Put) -> Head {
    match store.put_if(put).await.unwrap() {
        Written::Won(won) => won.head,
        Written::Lost(seen) => panic!("lost to {seen:?}"),
    }
}

pub(crate) async fn lose(store: &dyn Store, put: Put) -> Option<Head> {
    match store.put_if(put).await.unwrap() {
        Written::Won(won) => panic!("won: {won:?}"),
        Written::Lost(seen) => seen.record.map(|record| record.head),
    }
}

/// The record's state by the store's clock, and the body of its answer.
pub(crate) async fn look(store: &dyn Store, id: RecordId) -> (State, Option<String>) {
    let reading = store.get(vec![id]).await.unwrap();
    let record = reading.records[0].clone().unwrap();
    let body = record
        .answer
        .map(|answer| String::from_utf8(answer.body.to_vec()).unwrap());
    (record.head.state_at(reading.now), body)
}

/// The statement by which this write joins a transaction.
pub(crate) fn joining(store: &dyn Store, put: &Put) -> Statement {
    store
        .joins()
        .expect("a guest takes part in transactions")
        .statement(put)
}
