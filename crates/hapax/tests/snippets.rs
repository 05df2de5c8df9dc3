//! The snippets of the README and the docs: each is compiled here, or in hapax-flow if it uses that,
//! and a test compares it word for word with the page.

#![allow(
    dead_code,
    unused_variables,
    reason = "the snippets are compiled, not run"
)]

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::post;
use axum::{Json, Router};
use hapax::join::tokio_postgres::Effect;
use hapax::join::{FinishError, Kept};
use hapax::{Guest, Hapax, Key, Operation, Sqlite, StandardWebhooks};
use sqlx::PgPool;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[rustfmt::skip]
async fn readme() -> Result<(), BoxError> {
    #[derive(Clone)]
    struct User { id: String }
    let authentication = axum::middleware::from_fn(async |request: Request, next: Next| -> Response { next.run(request).await });
    async fn pay(order: &str, key: Key) {}

    let hapax = Hapax::sqlite("hapax.db").await?.namespace("shop");
    let guard = hapax.guard().required().principal_from(|user: &User| user.id.clone()).build()?;
    let app = Router::new()
        .route("/orders", post(order))
        .route_layer(guard)
        .layer(authentication);   // added last, runs first: it sets the `User`

    async fn order(operation: Operation, order: String) -> (StatusCode, String) {
        // Runs once for each key. The payment gets a key of its own, the same one on every attempt.
        pay(&order, operation.derive("payment")).await;
        (StatusCode::CREATED, format!("ordered {order}\n"))
    }

    axum::serve(tokio::net::TcpListener::bind("127.0.0.1:0").await?, app).await?;
    Ok(())
}

#[rustfmt::skip]
async fn backup() -> Result<(), BoxError> {
    let store = Arc::new(Sqlite::open("hapax.db").await?);
    let hapax = Hapax::builder_shared(store.clone()).build();   // shared, so that the store can still be asked
    let copied = store.backup("/backups/hapax-2026-11-15.db").await?;
    println!("{} bytes", copied.bytes);
    Ok(())
}

#[rustfmt::skip]
async fn guest() -> Result<(), BoxError> {
    let hapax = Hapax::new(Guest::open("shop.db").await?).namespace("shop");
    Ok(())
}

#[derive(serde::Deserialize)]
struct Order {
    item: String,
}

#[derive(serde::Serialize)]
struct Placed {
    id: i64,
}

#[derive(Debug)]
struct Error;

impl From<sqlx::Error> for Error {
    fn from(_: sqlx::Error) -> Self {
        Error
    }
}

impl From<FinishError<sqlx::Error>> for Error {
    fn from(_: FinishError<sqlx::Error>) -> Self {
        Error
    }
}

async fn insert(tx: &mut sqlx::PgTransaction<'_>, order: &Order) -> Result<i64, sqlx::Error> {
    let sql = "INSERT INTO orders (item) VALUES ($1) RETURNING id";
    let insert = sqlx::query_scalar(sql).bind(&order.item);
    insert.fetch_one(&mut **tx).await
}

#[rustfmt::skip]
async fn place(operation: Operation, State(pool): State<PgPool>, Json(order): Json<Order>) -> Result<Kept, Error> {
    let mut tx = pool.begin().await?;
    let id = insert(&mut tx, &order).await?;
    Ok(operation.finish(tx, (StatusCode::CREATED, Json(Placed { id }))).await?)     // joins, and commits
}

#[rustfmt::skip]
async fn effect(
    operation: Operation,
    mut client: tokio_postgres::Client,
    id: i64,
    item: String,
) -> Result<Kept, FinishError<tokio_postgres::Error>> {
    let order = prepare(&client).await.map_err(FinishError::RolledBack)?;
    order.finish(&operation, &mut client, &[&id, &item], (StatusCode::CREATED, Json(Placed { id }))).await
}

#[rustfmt::skip]
#[expect(clippy::needless_borrow, reason = "on the page the client is a value")]
async fn prepare(client: &tokio_postgres::Client) -> Result<Effect, tokio_postgres::Error> {
    let order = Effect::prepare(&client, "INSERT INTO orders (id, item) VALUES ($1, $2)").await?;    // once for each connection
    Ok(order)
}

mod outbox {
    use hapax::outbox::{EmitError, Message};

    use super::*;

    impl From<EmitError<sqlx::Error>> for Error {
        fn from(_: EmitError<sqlx::Error>) -> Self {
            Error
        }
    }

    impl From<serde_json::Error> for Error {
        fn from(_: serde_json::Error) -> Self {
            Error
        }
    }

    #[rustfmt::skip]
    async fn place(operation: Operation, State(pool): State<PgPool>, Json(order): Json<Order>) -> Result<Kept, Error> {
        let mut tx = pool.begin().await?;
        let id = insert(&mut tx, &order).await?;
        let message = Message::new("orders", id.to_string(), serde_json::to_vec(&Placed { id })?);
        operation.emit(&mut tx, message.json().step("placed")).await?;
        Ok(operation.finish(tx, (StatusCode::CREATED, Json(Placed { id }))).await?)     // order, message and record
    }
}

mod at_once {
    use hapax::Done;
    use hapax::join::OpenTransaction;
    use sqlx::{Postgres, Transaction};

    use super::*;

    #[rustfmt::skip]
    async fn order(hapax: Hapax, pool: PgPool, key: &str, item: String) -> Result<Done<bytes::Bytes>, BoxError> {
        let mut tx = pool.begin().await?;
        let work = async |tx: &mut Transaction<'_, Postgres>, _: &Operation| {
            sqlx::query("INSERT INTO orders (item) VALUES ($1)").bind(&item).execute(&mut **tx).await?;
            Ok::<_, sqlx::Error>("ordered".into())
        };
        let done = hapax.once("order").in_transaction(&mut tx, key, item.clone(), work).await?;
        tx.commit().await?;                                   // the order, the key and the value
        Ok(done)
    }

    #[derive(Clone)]
    struct User {
        id: String,
    }

    struct Failed;

    impl From<sqlx::Error> for Failed {
        fn from(_: sqlx::Error) -> Self {
            Failed
        }
    }

    impl axum::response::IntoResponse for Failed {
        fn into_response(self) -> Response {
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }

    #[rustfmt::skip]
    async fn guard(url: &str, pool: PgPool) -> Result<Router, BoxError> {
        let hapax = Hapax::postgres(url).await?.namespace("shop");
        let guard = hapax.guard().required().in_transaction(pool).principal_from(|user: &User| user.id.clone()).build()?;
        let app = Router::new().route("/orders", post(place)).route_layer(guard);
        Ok(app)
    }

    #[rustfmt::skip]
    async fn place(mut tx: OpenTransaction<Transaction<'static, Postgres>>, item: String) -> Result<StatusCode, Failed> {
        sqlx::query("INSERT INTO orders (item) VALUES ($1)").bind(&item).execute(&mut **tx).await?;
        Ok(StatusCode::CREATED)
    }
}

#[rustfmt::skip]
fn webhooks(hapax: &Hapax, secret: &str) -> Result<Router, BoxError> {
    async fn paid(operation: Operation, event: String) -> StatusCode { StatusCode::OK }

    let webhooks = StandardWebhooks::new("payments").secret(secret)?;
    let guard = hapax.guard().standard_webhooks(webhooks).build()?;
    let app = Router::new().route("/hooks/payments", post(paid)).route_layer(guard);
    Ok(app)
}

/// The lines of a text without their indentation.
fn lines(text: &str) -> Vec<&str> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect()
}

#[test]
fn every_rust_snippet_of_the_docs_is_compiled() {
    let mut compiled = lines(include_str!("snippets.rs"));
    compiled.extend(lines(include_str!("../../hapax-flow/tests/snippets.rs")));
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let mut pages = vec![format!("{root}/README.md")];
    let docs = std::fs::read_dir(format!("{root}/docs")).unwrap();
    pages.extend(docs.map(|page| page.unwrap().path().display().to_string()));
    let mut count = 0;
    for page in pages.iter().filter(|page| page.ends_with(".md")) {
        let text = std::fs::read_to_string(page).unwrap();
        for rest in text.split("```rust").skip(1) {
            let snippet = rest.split_once('\n').unwrap().1;
            let snippet = lines(snippet.split("```").next().unwrap());
            for line in snippet {
                assert!(compiled.contains(&line), "{page}: not compiled: {line}");
            }
            count += 1;
        }
    }
    assert!(count >= 5, "only {count} snippets were found");
}
