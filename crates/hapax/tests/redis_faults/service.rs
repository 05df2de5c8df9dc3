//! The child process: an axum service on the Redis store, with a ledger of its own.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use hapax::store::redis::{Options, Redis};
use hapax::{Hapax, Limits, Operation, Policy};
use hapax_testkit::crash::{Child, Ledger, announce, pause_forever};

/// Short, so that keys of a killed service are soon held as unknown.
const LEASE: Duration = Duration::from_secs(1);

const DIRECTORY: &str = "HAPAX_TEST_DIRECTORY";
const REDIS: &str = "HAPAX_TEST_REDIS";

/// Starts a service whose ledger is in `directory`. Returns its address.
pub fn start(test: &str, directory: &Path, redis: &str) -> (Child, SocketAddr) {
    let directory = directory.to_str().expect("a path of this test");
    let envs = [(DIRECTORY, directory), (REDIS, redis)];
    let mut child = Child::spawn(test, "service", &envs);
    let address = child.wait_for("listens at ");
    (child, address.parse().expect("an address"))
}

/// Serves until the parent kills this process, or ends.
pub fn serve() -> ! {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(listen());
    pause_forever()
}

async fn listen() {
    let variable = |name: &str| std::env::var(name).expect("the parent sets it");
    let directory = variable(DIRECTORY);
    let ledger = Arc::new(Ledger::open(Path::new(&directory).join("ledger")));
    let options = Options::best_effort(&variable(REDIS)).expect("an address");
    let store = Redis::open(options).await.expect("the Redis is up");
    // Every repeat asks the store.
    let limits = Limits {
        cache_bytes_max: 0,
        ..Limits::default()
    };
    let hapax = Hapax::builder(store).limits(limits).build();
    let policy = Policy {
        lease: LEASE,
        ..Policy::default()
    };
    let guard = hapax.guard().policy(policy).anonymous().build();
    let app = Router::new()
        .route("/charges", post(charge).layer(guard.expect("a policy")))
        .with_state(ledger);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, app).await });
    announce(format!("listens at {address}"));
}

async fn charge(State(ledger): State<Arc<Ledger>>, operation: Operation) -> (StatusCode, String) {
    // Work that waits for others lets a kill come before its effect and after it.
    tokio::task::yield_now().await;
    ledger.append(operation.key().as_str());
    tokio::task::yield_now().await;
    let answer = format!("{} charged by {}", operation.key(), operation.fence());
    (StatusCode::CREATED, answer)
}
