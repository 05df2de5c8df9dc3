//! A service on diesel-async and Postgres whose orders commit together with their records.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use diesel::prelude::*;
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
use hapax::join::Kept;
use hapax::{Guard, Hapax, Operation};
use tokio::sync::Mutex;

diesel::table! {
    orders (id) {
        id -> BigInt,
        item -> Text,
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// One connection is enough for a service this small.
type Database = Arc<Mutex<AsyncPgConnection>>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = std::env::var("DATABASE_URL")?;
    let mut connection = AsyncPgConnection::establish(&url).await?;
    diesel::sql_query("CREATE TABLE orders (id BIGSERIAL PRIMARY KEY, item TEXT NOT NULL)")
        .execute(&mut connection)
        .await?;
    let app = Router::new()
        .route("/orders", post(order).get(count))
        .route_layer(guard(&url).await?)
        .with_state(Arc::new(Mutex::new(connection)));
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
    State(database): State<Database>,
    item: String,
) -> Result<Kept, Failed> {
    let mut database = database.lock().await;
    // Of the connection itself: a guard or a pool's connection begins transactions too, and cannot
    // join them.
    let connection: &mut AsyncPgConnection = &mut database;
    connection
        .transaction(async |connection| {
            diesel::insert_into(orders::table)
                .values(orders::item.eq(&item))
                .execute(connection)
                .await?;
            // The end of this closure commits both.
            Ok(operation
                .join(connection, (StatusCode::CREATED, item.clone()))
                .await?)
        })
        .await
}

async fn count(State(database): State<Database>) -> Result<String, Failed> {
    let count: i64 = orders::table
        .count()
        .get_result(&mut *database.lock().await)
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
