//! The service under `axum-idempotent` with its sessions in Postgres: a handler that only answers.
//!
//! Arguments: address, URL of the database, connections to it, bytes of an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::{StatusCode, header::CONTENT_TYPE};
use axum::{Router, routing::post};
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use ruts::store::postgres::{PostgresStore, PostgresStoreBuilder};
use ruts::{CookieOptions, SessionLayer};
use sqlx::postgres::PgPoolOptions;
use tower_cookies::CookieManagerLayer;

/// As long as a day: nothing expires while it is measured.
const LIFE_SECONDS: u32 = 24 * 60 * 60;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, database, connections, bytes] = arguments.as_slice() else { return Err("wrong arguments".into()) };
    let pool = PgPoolOptions::new().max_connections(connections.parse()?).connect(database).await?;
    let store = PostgresStoreBuilder::new(pool).create_table(true).build().await?;
    let cookie = CookieOptions::build().name("session").path("/").max_age(u64::from(LIFE_SECONDS));
    let options = IdempotentOptions::new(i64::from(LIFE_SECONDS)).use_idempotency_key_header(None, true);
    let bytes: usize = bytes.parse()?;
    let app = Router::new()
        .route("/v1/charges", post(async move |_order: String| (StatusCode::CREATED, [(CONTENT_TYPE, "application/json")], answer(bytes))))
        .layer(IdempotentLayer::<PostgresStore>::new(options))
        .layer(SessionLayer::new(Arc::new(store)).with_cookie_options(cookie))
        .layer(CookieManagerLayer::new());
    let listener = tokio::net::TcpListener::bind(address).await?;
    axum::serve(listener, app).await?;
    Ok(())
}

/// Another one each time, so that a replay can be told from a second run.
fn answer(bytes: usize) -> String {
    static RUNS: AtomicU64 = AtomicU64::new(1);
    format!("{:0bytes$}", RUNS.fetch_add(1, Ordering::Relaxed))
}
