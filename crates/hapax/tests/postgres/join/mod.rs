//! Attempts that end in a user's transaction: its effect and the record commit together, or neither
//! does. The tests count effects in the user's table of orders only.

mod answers;
mod company;
mod crash;
mod order;
mod refused;
mod rights;

use std::sync::Arc;
use std::time::Duration;

use hapax::Postgres;
use hapax_core::audit::Signed;
use hapax_core::operation::{OperationId, OperationIds};
use hapax_core::store::{
    Change, Dialect, Finish, Lifetime, Statement, StoreError, Terms, Value, Written,
};
use hapax_core::{Answer, AttemptToken, Condition, Head, Put, Record, RecordId, State, Store};
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use crate::{lanes, place};

const HOUR: Duration = Duration::from_secs(3600);

/// The two ways to end an attempt in a user's transaction.
const WAYS: [Way; 2] = [Way::Join, Way::Complete];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By a program that runs the attempt itself.
    Join,
    /// By a service behind a gateway, which received an operation id and a fence.
    Complete,
}

/// A service with a table of orders in the store's database.
struct Shop {
    url: String,
    store: Arc<Postgres>,
    operation_ids: OperationIds,
}

/// An attempt that was claimed on a transaction route, for an order with this key.
#[derive(Clone, Debug)]
struct Attempt {
    key: String,
    operation: OperationId,
    head: Head,
}

impl Shop {
    /// `None`, after printing why, if there is no server.
    async fn open() -> Option<Shop> {
        Some(Shop::at(place::prepared().await?.1).await)
    }

    async fn at(url: String) -> Shop {
        let store = Arc::new(place::open(&url).await);
        let operation_ids = store.info().await.expect("info").operation_ids();
        let shop = Shop {
            url,
            store,
            operation_ids,
        };
        shop.session()
            .await
            .batch_execute("CREATE TABLE public.orders (key text NOT NULL)")
            .await
            .expect("a table of orders");
        shop
    }

    async fn session(&self) -> Client {
        place::session(&self.url).await
    }

    /// A session with an uncommitted order.
    async fn ordering(&self, attempt: &Attempt) -> Client {
        let session = self.session().await;
        session
            .batch_execute(&format!("BEGIN; {}", attempt.order()))
            .await
            .expect("an order");
        session
    }

    /// A first attempt with a long lease.
    async fn claimed(&self, key: &str) -> Attempt {
        self.claimed_for(key, HOUR, Some(terms())).await
    }

    /// A first attempt whose lease is over at once, so that it can be taken over.
    async fn lapsed(&self, key: &str) -> Attempt {
        self.claimed_for(key, Duration::ZERO, Some(terms())).await
    }

    async fn claimed_for(&self, key: &str, lease: Duration, terms: Option<Terms>) -> Attempt {
        let head = lanes::won(
            self.store
                .put_if(claim(key, Condition::Absent, lease, terms))
                .await,
        );
        Attempt {
            key: key.to_owned(),
            operation: self.operation_ids.make(&head.id, head.created_at),
            head,
        }
    }

    async fn take_over(&self, attempt: &Attempt) -> Result<Written, StoreError> {
        self.store
            .put_if(claim(
                &attempt.key,
                Condition::Lapsed {
                    fence: attempt.head.fence,
                },
                HOUR,
                Some(terms()),
            ))
            .await
    }

    /// Changes the record under `Condition::Version`, with its current version.
    async fn operate(&self, attempt: &Attempt, change: impl FnOnce(Signed) -> Change) -> Head {
        let version = self
            .record(attempt.head.id)
            .await
            .expect("a record")
            .head
            .version;
        let change = change(Signed::new("ada", "asked the bank").expect("both are said"));
        lanes::won(
            self.store
                .put_if(Put {
                    id: attempt.head.id,
                    condition: Condition::Version { version },
                    change,
                })
                .await,
        )
    }

    async fn record(&self, id: RecordId) -> Option<Record> {
        self.store
            .get(vec![id])
            .await
            .expect("read")
            .records
            .pop()
            .flatten()
    }

    async fn state(&self, attempt: &Attempt) -> State {
        self.record(attempt.head.id)
            .await
            .expect("a record")
            .head
            .state
    }

    /// The number of orders with this key.
    async fn orders(&self, attempt: &Attempt) -> i64 {
        let sql = "SELECT count(*) FROM public.orders WHERE key = $1";
        self.session()
            .await
            .query_one(sql, &[&attempt.key])
            .await
            .expect("asked")
            .get(0)
    }

    /// One whole transaction: the order, the end of the attempt, the commit. Returns the SQL state
    /// if it failed.
    async fn order(&self, way: Way, attempt: &Attempt) -> Result<(), String> {
        let session = self.ordering(attempt).await;
        self.end(&session, way, attempt).await?;
        session.batch_execute("COMMIT").await.map_err(code)
    }

    /// Ends the attempt in the session's transaction.
    async fn end(&self, session: &Client, way: Way, attempt: &Attempt) -> Result<(), String> {
        match way {
            Way::Join => run(session, &self.statement(attempt)).await.map(drop),
            Way::Complete => {
                complete(session, attempt.operation.as_str(), attempt.fence(), 201).await
            }
        }
    }

    fn statement(&self, attempt: &Attempt) -> Statement {
        self.store
            .joins()
            .expect("Postgres joins")
            .statement(&attempt.finish())
    }
}

impl Attempt {
    fn fence(&self) -> i64 {
        i64::try_from(self.head.fence.as_u64()).expect("fences are below 2^53")
    }

    fn order(&self) -> String {
        format!("INSERT INTO public.orders VALUES ('{}')", self.key)
    }

    /// The write that completes the attempt with an answer, through the store or through the user's
    /// transaction.
    fn finish(&self) -> Put {
        let answer = Arc::new(Answer::new(201, "ordered"));
        let finish = Finish {
            state: State::Completed,
            status: Some(201),
            answer: Some(answer),
            lifetime: terms().lifetime,
        };
        Put {
            id: self.head.id,
            condition: Condition::Held {
                fence: self.head.fence,
            },
            change: Change::Finish(finish),
        }
    }
}

/// The terms of a route that keeps its answers for an hour.
fn terms() -> Terms {
    let lifetime = Lifetime {
        retention: HOUR,
        tombstone: HOUR,
    };
    Terms {
        lifetime,
        keep: true,
        bytes_max: 1 << 20,
        cookies: false,
        version: None,
    }
}

fn claim(key: &str, condition: Condition, lease: Duration, terms: Option<Terms>) -> Put {
    let mut put = lanes::claim(key);
    put.condition = condition;
    if let Change::Claim(claim) = &mut put.change {
        claim.lease = lease;
        claim.token = AttemptToken::from_bytes(uuid::Uuid::new_v4().into_bytes());
        claim.terms = terms.map(Arc::new);
    }
    put
}

/// Runs a statement of [`hapax_core::store::Joins`] as a driver would. Returns the store's time, or
/// the SQL state of the error.
async fn run(session: &Client, statement: &Statement) -> Result<i64, String> {
    assert_eq!(
        (statement.dialect, statement.now),
        (Dialect::Postgres, None)
    );
    let values: Vec<(&(dyn ToSql + Sync), Type)> = statement
        .values
        .iter()
        .map(|value| match value {
            Value::Bytes(bytes) => (bytes as &(dyn ToSql + Sync), Type::BYTEA),
            Value::Int(number) => (number as &(dyn ToSql + Sync), Type::INT8),
        })
        .collect();
    let rows = session
        .query_typed(statement.sql, &values)
        .await
        .map_err(code)?;
    Ok(rows[0].get(0))
}

/// The SQL call that any language makes, without parameter types.
async fn complete(
    session: &Client,
    operation: &str,
    fence: i64,
    status: u16,
) -> Result<(), String> {
    let sql = format!("SELECT hapax.complete('{operation}', {fence}, {status}, '{{}}', 'ordered')");
    session.batch_execute(&sql).await.map_err(code)
}

/// The SQL state of the server's error.
#[allow(clippy::needless_pass_by_value)] // `map_err` passes it by value.
fn code(error: tokio_postgres::Error) -> String {
    error
        .code()
        .unwrap_or_else(|| panic!("the connection was lost: {error}"))
        .code()
        .to_owned()
}
