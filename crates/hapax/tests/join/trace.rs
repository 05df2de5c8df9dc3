//! A message belongs to the trace of the request that emitted it.

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::routing::post;
use hapax::join::OpenTransaction;
use hapax::outbox::Message;
use hapax::{Guest, Hapax, Mode, Operation, Policy};

use serde_json::Value;
use sqlx::{Sqlite, SqlitePool, Transaction};
use tower::ServiceExt;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const OWN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Emits a message, and one with a trace of its own.
async fn emit(operation: &Operation, tx: &mut Transaction<'static, Sqlite>) {
    let message = Message::new("orders", "17", "placed");
    let own = Message::new("orders", "17", "own").header("traceparent", OWN);
    for message in [message, own] {
        operation.emit(tx, message).await.expect("a message");
    }
}

/// A handler that ends its own transaction, and one that the guard lends one to.
fn app(hapax: &Hapax, pool: &SqlitePool) -> Router {
    let own = pool.clone();
    let finishing = async move |operation: Operation| {
        let mut tx = own.begin().await.expect("a transaction");
        emit(&operation, &mut tx).await;
        operation
            .finish(tx, StatusCode::CREATED)
            .await
            .expect("it commits")
    };
    let lent = async |mut tx: OpenTransaction<Transaction<'static, Sqlite>>,
                      operation: Operation| {
        emit(&operation, &mut tx).await;
        StatusCode::CREATED
    };
    let policy = Policy {
        mode: Mode::Transaction,
        ..Policy::default()
    };
    let guard = hapax.guard().policy(policy).anonymous().build();
    let lending = hapax
        .guard()
        .in_transaction(pool.clone())
        .anonymous()
        .build();
    Router::new()
        .route("/finishing", post(finishing))
        .route_layer(guard.expect("a guard"))
        .merge(
            Router::new()
                .route("/lent", post(lent))
                .route_layer(lending.expect("a guard")),
        )
}

#[tokio::test]
async fn a_message_has_the_trace_of_its_request_unless_it_names_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("shop.db");
    let hapax = Hapax::builder(Guest::open(&path).await.expect("a file")).build();
    let url = format!("sqlite:{}", path.display());
    let pool = SqlitePool::connect(&url).await.expect("a pool");
    let app = app(&hapax, &pool);
    for (path, key) in [("/finishing", "order-17"), ("/lent", "order-18")] {
        let request = Request::post(path)
            .header("idempotency-key", key)
            .header("x-request-id", "r-1")
            .header("traceparent", PARENT)
            .header("tracestate", "a=1")
            .body(Body::empty())
            .expect("a request");
        let response = app.clone().oneshot(request).await.expect("an answer");
        assert_eq!(response.status(), StatusCode::CREATED, "{path}");
    }
    let rows = sqlx::query_scalar::<_, String>("SELECT headers FROM hapax_outbox ORDER BY seq");
    let rows = rows.fetch_all(&pool).await.expect("the messages");
    let headers: Vec<Value> = rows
        .iter()
        .map(|headers| serde_json::from_str(headers).expect("JSON"))
        .collect();
    assert_eq!(headers.len(), 4);
    for headers in headers.chunks(2) {
        assert_eq!(headers[0]["traceparent"], PARENT);
        assert_eq!(headers[0]["tracestate"], "a=1");
        assert_eq!(headers[0]["correlation-id"], "r-1");
        assert_eq!(headers[1]["traceparent"], OWN);
        assert_eq!(
            headers[1].get("tracestate"),
            None,
            "the state of another trace"
        );
    }
}
