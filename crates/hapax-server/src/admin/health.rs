//! Health and readiness: whether the process runs, and whether it should receive requests.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use hapax::Store;
use parking_lot::Mutex;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Admin, problem};

const STARTING: u8 = 0;
const STARTED: u8 = 1;
const DRAINING: u8 = 2;

/// How long a store may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether this process should receive requests, and if not, why.
#[derive(Default)]
pub struct Readiness {
    phase: AtomicU8,
    fails_open: AtomicBool,
    store: Mutex<Option<Arc<Watch>>>,
}

/// Whether this process should receive requests.
#[derive(Debug, PartialEq, Eq)]
pub enum Ready {
    /// Yes.
    Yes,
    /// Yes, because some routes fail open. The other routes refuse requests, for this reason.
    FailingOpen(String),
    /// Not now, for this reason.
    No(String),
}

struct Watch {
    /// Weak, so that watching does not keep the store open.
    store: Weak<dyn Store>,
    trouble: Box<dyn Fn() -> Option<String> + Send + Sync>,
}

impl Readiness {
    /// Marks the start as complete.
    pub fn started(&self) {
        // Has no effect once a drain has begun: the start may finish later than that.
        let _ = self
            .phase
            .compare_exchange(STARTING, STARTED, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Turns readiness off for good.
    pub fn draining(&self) {
        self.phase.store(DRAINING, Ordering::SeqCst);
    }

    /// Watches a store: by asking it, and by `trouble`, the failures it knows of. For the embedded
    /// store these are the failures in its `stats`; they reveal a disk that can be read but not
    /// written.
    pub fn watch_store(
        &self,
        store: &Arc<dyn Store>,
        trouble: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) {
        let watch = Watch {
            store: Arc::downgrade(store),
            trouble: Box::new(trouble),
        };
        *self.store.lock() = Some(Arc::new(watch));
    }

    /// Sets whether some route lets requests through while the store fails. The process then stays
    /// ready, because otherwise a load balancer would send it no requests.
    pub fn fails_open(&self, fails_open: bool) {
        self.fails_open.store(fails_open, Ordering::SeqCst);
    }

    /// Whether this process should receive requests, with the reason in one line.
    pub async fn ask(&self) -> Ready {
        match self.phase.load(Ordering::SeqCst) {
            STARTING => return Ready::No("starting".to_owned()),
            DRAINING => return Ready::No("draining".to_owned()),
            _ => {}
        }
        let watch = self.store.lock().clone();
        let Some(watch) = watch else {
            return Ready::Yes;
        };
        let Some(trouble) = watch.trouble().await else {
            return Ready::Yes;
        };
        let why = format!(
            "the store fails: {}",
            trouble.split_whitespace().collect::<Vec<_>>().join(" ")
        );
        if self.fails_open.load(Ordering::SeqCst) {
            Ready::FailingOpen(why)
        } else {
            Ready::No(why)
        }
    }
}

impl Watch {
    async fn trouble(&self) -> Option<String> {
        if let Some(trouble) = (self.trouble)() {
            return Some(trouble);
        }
        let Some(store) = self.store.upgrade() else {
            return Some("it is closed".to_owned());
        };
        match tokio::time::timeout(PATIENCE, store.info()).await {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("it did not answer within {PATIENCE:?}")),
        }
    }
}

pub(super) fn routes() -> OpenApiRouter<Admin> {
    OpenApiRouter::new()
        .routes(routes!(health))
        .routes(routes!(ready))
}

/// Whether the process runs
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, body = String, description = "It does."), (status = 403, body = problem::Document, content_type = "application/problem+json", description = "`refused`: a page of another site.")))]
async fn health() -> &'static str {
    "ok\n"
}

/// Whether to send requests to it
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "health",
    responses(
        (status = 200, body = String, description = "Yes. Also while the store fails, if some route fails open: it says so."),
        (status = 503, body = String, description = "Not now, and why: it starts, it drains, or the store fails."),
        (status = 403, body = problem::Document, content_type = "application/problem+json", description = "`refused`: a page of another site."),
    )
)]
async fn ready(State(admin): State<Admin>) -> (StatusCode, String) {
    match admin.ready.ask().await {
        Ready::Yes => (StatusCode::OK, "ready\n".to_owned()),
        Ready::FailingOpen(why) => (
            StatusCode::OK,
            format!("ready, but {why}; only routes that fail open work\n"),
        ),
        Ready::No(why) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("not ready: {why}\n"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_store_that_fails_takes_us_out_unless_a_route_fails_open() {
        let ready = Readiness::default();
        let store: Arc<dyn Store> = Arc::new(hapax::store::memory());
        ready.watch_store(&store, || Some("disk\n full".to_owned()));
        ready.fails_open(true);
        assert_eq!(
            ready.ask().await,
            Ready::No("starting".to_owned()),
            "whatever the store does"
        );
        ready.started();
        assert_eq!(
            ready.ask().await,
            Ready::FailingOpen("the store fails: disk full".to_owned())
        );
        ready.fails_open(false);
        assert_eq!(
            ready.ask().await,
            Ready::No("the store fails: disk full".to_owned())
        );
        ready.watch_store(&store, || None);
        assert_eq!(ready.ask().await, Ready::Yes);
        ready.fails_open(true);
        ready.draining();
        assert_eq!(ready.ask().await, Ready::No("draining".to_owned()));
    }
}
