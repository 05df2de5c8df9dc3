//! A service on sqlx 0.8 and Postgres whose orders commit together with their records.

mod join;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use hapax::join::Kept;
use hapax::{Guard, Hapax, Operation};
use sqlx::PgPool;

use crate::join::Transaction;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = std::env::var("DATABASE_URL")?;
    let pool = PgPool::connect(&url).await?;
    sqlx::query("CREATE TABLE orders (item TEXT NOT NULL)")
        .execute(&pool)
        .await?;
    let app = Router::new()
        .route("/orders", post(order).get(count))
        .route_layer(guard(&url).await?)
        .with_state(pool);
    let listener = tokio::net::TcpListener::bind(std::env::var("ADDRESS")?).await?;
    axum::serve(listener, app).await?;
    Ok(())
}

async fn guard(url: &str) -> Result<Guard, Failure> {
    let hapax = Hapax::postgres(url).migrate().await?.namespace("shop");
    let guard = hapax.guard().required().transaction().anonymous();
    Ok(guard.build()?)
}

async fn order(
    operation: Operation,
    State(pool): State<PgPool>,
    item: String,
) -> Result<Kept, Failed> {
    let mut transaction = Transaction::begin(&pool).await?;
    sqlx::query("INSERT INTO orders (item) VALUES ($1)")
        .bind(&item)
        .execute(&mut *transaction.0)
        .await?;
    Ok(operation
        .finish(transaction, (StatusCode::CREATED, item))
        .await?)
}

async fn count(State(pool): State<PgPool>) -> Result<String, Failed> {
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM orders")
        .fetch_one(&pool)
        .await?;
    Ok(count.to_string())
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
