//! A small payments service in which a retry is harmless. Its ledger is a separate file: what is in
//! it has happened.

use std::process::ExitCode;
use std::time::Duration;

use axum::extract::Request;
use axum::http::{StatusCode, header::AUTHORIZATION};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Json, Router};
use hapax::{Hapax, Operation, Sqlite};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::signal::unix::{SignalKind, signal};

const STORE: &str = "payments.db";
const LEDGER: &str = "payments.ledger";

#[tokio::main]
async fn main() -> ExitCode {
    let Err(error) = serve().await else {
        return ExitCode::SUCCESS;
    };
    let causes = std::iter::successors(Some(&*error), |error| error.source());
    eprintln!(
        "axum-payments: {}",
        causes
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(": ")
    );
    ExitCode::from(2)
}

async fn serve() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:3000".into());
    let store = Sqlite::open(STORE).await?;
    if store.restored().is_some() {
        eprintln!(
            "axum-payments: {STORE} is older than it was: what was charged since may be charged again by a retry"
        );
    }
    let hapax = Hapax::new(store).namespace("payments");
    let guard = hapax
        .guard()
        .required()
        .principal_from(|user: &User| user.0)
        .build()?;
    let app = Router::new()
        .route("/v1/charges", post(charge).get(list))
        .route_layer(guard)
        // The layer added last runs first: no caller gets a replay before it is authenticated.
        .layer(from_fn(authenticate));

    let listener = tokio::net::TcpListener::bind(&address)
        .await
        .map_err(|error| format!("cannot listen on {address}: {error}"))?;
    println!(
        "{}",
        include_str!("try.txt")
            .replace("ADDRESS", &address)
            .replace("PID", &std::process::id().to_string())
    );
    axum::serve(listener, app)
        .with_graceful_shutdown(shutdown(hapax))
        .await?;
    Ok(())
}

/// Waits for a signal, then for the running charges. Meanwhile new charges are refused and finished
/// ones are still replayed.
async fn shutdown(hapax: Hapax) {
    let mut terminate = signal(SignalKind::terminate()).expect("signals can be listened for");
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
    eprintln!("axum-payments: stopping");
    let left = hapax.drain(Duration::from_secs(30)).await.left_unknown;
    eprintln!("axum-payments: {left} charges left unknown");
}

#[derive(Clone, Copy)]
struct User(&'static str);

/// Identifies the user by bearer token. A real service verifies the token or looks it up.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let user = match request
        .headers()
        .get(AUTHORIZATION)
        .map(|value| value.as_bytes())
    {
        Some(b"Bearer ada-token") => User("ada"),
        Some(b"Bearer bob-token") => User("bob"),
        _ => return StatusCode::UNAUTHORIZED.into_response(),
    };
    request.extensions_mut().insert(user);
    next.run(request).await
}

#[derive(Deserialize)]
struct Charge {
    amount: u64,
}

/// The answer to a charge, and its line in the ledger. The id is the same on every attempt.
#[derive(Serialize, Deserialize)]
struct Charged {
    id: String,
    user: String,
    amount: u64,
}

async fn charge(
    user: Extension<User>,
    operation: Operation,
    Json(Charge { amount }): Json<Charge>,
) -> Response {
    let charged = Charged {
        id: format!("ch_{}", operation.derive("charge")),
        user: user.0.0.into(),
        amount,
    };
    if let Err(error) = append(&charged).await {
        eprintln!("axum-payments: {LEDGER}: {error}");
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    if amount >= 100_000 {
        // The bank has the money and is slow to answer. A process killed here has charged and not
        // answered.
        tokio::time::sleep(Duration::from_secs(20)).await;
    }
    (StatusCode::CREATED, Json(charged)).into_response()
}

/// The effect: a line that is on the disk when this returns.
async fn append(charged: &Charged) -> std::io::Result<()> {
    let line = serde_json::to_string(charged)? + "\n";
    let mut file = tokio::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(LEDGER)
        .await?;
    file.write_all(line.as_bytes()).await?;
    file.sync_all().await
}

async fn list(user: Extension<User>) -> Json<Vec<Charged>> {
    // A missing ledger is an empty one.
    let ledger = tokio::fs::read_to_string(LEDGER).await.unwrap_or_default();
    let lines = ledger
        .lines()
        .filter_map(|line| serde_json::from_str::<Charged>(line).ok());
    Json(lines.filter(|charged| charged.user == user.0.0).collect())
}
