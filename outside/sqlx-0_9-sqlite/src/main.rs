//! A service that keeps its orders in SQLite through sqlx 0.9 and its refunds through rusqlite, in
//! one file, each committing together with the record of its key.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use hapax::join::Kept;
use hapax::{Guard, Guest, Hapax, Operation};
use rusqlite::{Connection, TransactionBehavior};
use sqlx::SqlitePool;

const FILE: &str = "shop.db";

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    Connection::open(FILE)?.execute_batch(
        "CREATE TABLE orders (item TEXT NOT NULL); CREATE TABLE refunds (item TEXT NOT NULL)",
    )?;
    let pool = SqlitePool::connect(&format!("sqlite:{FILE}")).await?;
    let app = Router::new()
        .route("/orders", post(order).get(count_orders))
        .route("/refunds", post(refund).get(count_refunds))
        .route_layer(guard().await?)
        .with_state(pool);
    let listener = tokio::net::TcpListener::bind(std::env::var("ADDRESS")?).await?;
    axum::serve(listener, app).await?;
    Ok(())
}

async fn guard() -> Result<Guard, Failure> {
    let hapax = Hapax::new(Guest::open(FILE).await?).namespace("shop");
    let guard = hapax.guard().required().transaction().anonymous();
    Ok(guard.build()?)
}

async fn order(
    operation: Operation,
    State(pool): State<SqlitePool>,
    item: String,
) -> Result<Kept, Failed> {
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::query("INSERT INTO orders (item) VALUES (?1)")
        .bind(&item)
        .execute(&mut *transaction)
        .await?;
    Ok(operation
        .finish(transaction, (StatusCode::CREATED, item))
        .await?)
}

async fn count_orders(State(pool): State<SqlitePool>) -> Result<String, Failed> {
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM orders")
        .fetch_one(&pool)
        .await?;
    Ok(count.to_string())
}

async fn refund(operation: Operation, item: String) -> Result<Kept, Failed> {
    let work = move || {
        let mut connection = Connection::open(FILE)?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute("INSERT INTO refunds (item) VALUES (?1)", [&item])?;
        Ok(operation.finish_blocking(transaction, (StatusCode::CREATED, item))?)
    };
    tokio::task::spawn_blocking(work).await?
}

async fn count_refunds() -> Result<String, Failed> {
    let count = |connection: Connection| {
        connection.query_row("SELECT count(*) FROM refunds", [], |row| {
            row.get::<_, i64>(0)
        })
    };
    let count = tokio::task::spawn_blocking(move || Connection::open(FILE).and_then(count));
    Ok(count.await??.to_string())
}

/// Nothing was committed: 500 lets the key run again.
struct Failed(Failure);

impl<E: Into<Failure>> From<E> for Failed {
    fn from(error: E) -> Failed {
        Failed(error.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        eprintln!("{}", self.0);
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}
