//! Whether the process runs, and whether to send requests to it.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use hapax::Store;

use super::Admin;

const STARTING: u8 = 0;
const STARTED: u8 = 1;
const DRAINING: u8 = 2;

/// How long a store may take to show that it is there.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether requests should be sent here, and if not, why.
#[derive(Default)]
pub struct Readiness {
    phase: AtomicU8,
    store: Mutex<Option<Arc<Watch>>>,
}

struct Watch {
    /// Weak, so that watching keeps no file open.
    store: Weak<dyn Store>,
    trouble: Box<dyn Fn() -> Option<String> + Send + Sync>,
}

impl Readiness {
    /// Everything that has to be there is there.
    pub fn started(&self) {
        // Not after a drain has begun: whoever starts may be slower than whoever ends.
        let _ = self.phase.compare_exchange(STARTING, STARTED, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// No more requests, please. There is no way back.
    pub fn draining(&self) {
        self.phase.store(DRAINING, Ordering::SeqCst);
    }

    /// Watches a store: by asking it, and by what it knows of its own trouble. For the embedded one that is what its `stats` say is
    /// failing, which is how a disk shows that can be read but not written.
    pub fn watch_store(&self, store: &Arc<dyn Store>, trouble: impl Fn() -> Option<String> + Send + Sync + 'static) {
        let watch = Watch { store: Arc::downgrade(store), trouble: Box::new(trouble) };
        *self.store.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(watch));
    }

    /// Why no requests should be sent here, in one line; `None` if they should.
    pub async fn why_not(&self) -> Option<String> {
        match self.phase.load(Ordering::SeqCst) {
            STARTING => return Some("starting".to_owned()),
            DRAINING => return Some("draining".to_owned()),
            _ => {}
        }
        let watch = self.store.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let trouble = watch?.trouble().await?;
        Some(format!("the store fails: {}", trouble.split_whitespace().collect::<Vec<_>>().join(" ")))
    }
}

impl Watch {
    async fn trouble(&self) -> Option<String> {
        if let Some(trouble) = (self.trouble)() {
            return Some(trouble);
        }
        let Some(store) = self.store.upgrade() else { return Some("it is closed".to_owned()) };
        match tokio::time::timeout(PATIENCE, store.pulse()).await {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("it did not answer within {PATIENCE:?}")),
        }
    }
}

pub(super) fn routes() -> Router<Admin> {
    Router::new().route("/healthz", get(async || "ok\n")).route("/readyz", get(ready))
}

async fn ready(State(admin): State<Admin>) -> (StatusCode, String) {
    match admin.ready.why_not().await {
        None => (StatusCode::OK, "ready\n".to_owned()),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")),
    }
}
