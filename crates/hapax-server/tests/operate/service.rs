//! The service behind: each request is an effect, and the ledger is the count of them that Hapax
//! has no hand in.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::any;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// What reached the service: by key, how often.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<BTreeMap<String, usize>>>);

impl Ledger {
    /// One more effect; its number in all.
    fn enter(&self, key: &str) -> usize {
        let mut effects = self.0.lock().unwrap();
        *effects.entry(key.to_owned()).or_default() += 1;
        effects.values().sum()
    }

    pub(crate) fn count(&self, key: &str) -> usize {
        self.0.lock().unwrap().get(key).copied().unwrap_or(0)
    }

    /// The keys that had another number of effects than one.
    pub(crate) fn not_once(&self) -> Vec<(String, usize)> {
        self.0
            .lock()
            .unwrap()
            .iter()
            .filter(|(_, count)| **count != 1)
            .map(|(key, count)| (key.clone(), *count))
            .collect()
    }
}

/// A service that tells its own name and the number of the effect.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    /// Requests to `/slow…` wait here, each for a permit.
    pub(crate) gate: Arc<Semaphore>,
    pub(crate) arrived: Arc<Semaphore>,
}

#[derive(Clone)]
struct Inside {
    name: &'static str,
    ledger: Ledger,
    gate: Arc<Semaphore>,
    arrived: Arc<Semaphore>,
}

impl Service {
    pub(crate) async fn start(name: &'static str, ledger: &Ledger) -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (gate, arrived) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let inside = Inside {
            name,
            ledger: ledger.clone(),
            gate: gate.clone(),
            arrived: arrived.clone(),
        };
        let router = Router::new()
            .route("/slow", any(slow))
            .fallback(any(effect))
            .with_state(inside);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Service {
            address,
            gate,
            arrived,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

async fn effect(
    State(service): State<Inside>,
    headers: HeaderMap,
) -> (StatusCode, [(&'static str, &'static str); 1], String) {
    let key = ["idempotency-key", "x-key"]
        .iter()
        .find_map(|name| headers.get(*name)?.to_str().ok())
        .unwrap_or_default();
    let number = service.ledger.enter(key);
    let status = if key.starts_with("lost") {
        StatusCode::BAD_GATEWAY
    } else {
        StatusCode::CREATED
    };
    let seen = headers
        .get("x-forwarded-for")
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    // Its own, which no caller gets.
    (
        status,
        [("x-request-id", "the-services-own")],
        format!("{} {key} effect {number} for {seen}", service.name),
    )
}

async fn slow(state: State<Inside>, headers: HeaderMap) -> impl IntoResponse {
    state.arrived.add_permits(1);
    state.gate.acquire().await.unwrap().forget();
    effect(state, headers).await
}
