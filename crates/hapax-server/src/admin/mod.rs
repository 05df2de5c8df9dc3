//! What operators ask over HTTP, on a listener of its own.
//!
//! It asks nobody who they are, so it listens on loopback. There a web page is the stranger to keep out: one that has its own name point
//! at this machine (DNS rebinding), or one that sends a form. Both show in what a browser says of the request, and are refused.

mod guard;
mod health;
pub(crate) mod keys;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hapax::Hapax;

pub use health::Readiness;

use crate::telemetry::{Metrics, Unknowns};

/// What prometheus-client encodes.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Everything that operators can ask about. Cheap to clone.
#[derive(Clone)]
pub struct Admin {
    /// Whether to send requests here.
    pub ready: Arc<Readiness>,
    /// What has been counted.
    pub metrics: Metrics,
    /// What is remembered.
    pub hapax: Hapax,
    unknowns: Unknowns,
}

impl Admin {
    /// Answers about these.
    pub fn new(ready: Arc<Readiness>, metrics: Metrics, hapax: Hapax) -> Admin {
        let unknowns = Unknowns::new(hapax.clone(), &metrics);
        Admin { ready, metrics, hapax, unknowns }
    }
}

/// Everything the admin listener answers.
pub fn router(state: Admin) -> Router {
    Router::new()
        .merge(health::routes())
        .merge(keys::routes())
        .route("/metrics", get(metrics))
        // Around everything above it, and so around whatever is added there.
        .layer(middleware::from_fn(guard::refuse_strangers))
        .with_state(state)
}

async fn metrics(State(admin): State<Admin>) -> Response {
    admin.unknowns.refresh().await;
    ([(CONTENT_TYPE, OPENMETRICS)], admin.metrics.encode()).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::{Request, StatusCode};
    use hapax::Store;
    use hapax_testkit::{Fault, Faulty, Verb};
    use http_body_util::BodyExt;
    use tower_service::Service;

    use super::*;

    fn admin() -> Admin {
        Admin::new(
            Arc::default(),
            Metrics::new(&["POST /charges".into()]),
            Hapax::builder(hapax::store::memory()).sweep(None).build(),
        )
    }

    async fn ask(admin: &Admin, path: &str) -> (StatusCode, String, String) {
        let request = Request::get(path).header("host", "127.0.0.1:4001").body(Body::empty()).unwrap();
        let response = router(admin.clone()).call(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        (parts.status, parts.headers["content-type"].to_str().unwrap().to_owned(), body)
    }

    #[tokio::test]
    async fn health_is_the_process_and_readiness_is_what_it_is_for() {
        let admin = admin();
        let ready = async || {
            assert_eq!(ask(&admin, "/healthz").await.2, "ok\n");
            let (status, _, body) = ask(&admin, "/readyz").await;
            (status.as_u16(), body)
        };
        assert_eq!(ready().await, (503, "not ready: starting\n".to_owned()));
        admin.ready.started();
        assert_eq!(ready().await, (200, "ready\n".to_owned()));
        admin.ready.draining();
        assert_eq!(ready().await, (503, "not ready: draining\n".to_owned()));
        admin.ready.started();
        assert_eq!(ready().await.0, 503, "who has begun to drain never comes back");
    }

    #[tokio::test]
    async fn a_failing_store_is_not_ready_and_says_why() {
        let admin = admin();
        let (trouble, store) = (Arc::new(std::sync::Mutex::new(None)), Arc::new(Faulty::new(Arc::new(hapax::store::memory()))));
        let (seen, shared) = (trouble.clone(), store.clone() as Arc<dyn Store>);
        admin.ready.watch_store(&shared, move || seen.lock().unwrap().clone());
        admin.ready.started();
        let ready = async || ask(&admin, "/readyz").await.2;
        assert_eq!(ready().await, "ready\n");
        *trouble.lock().unwrap() = Some("disk\nfull".to_owned());
        assert_eq!(ready().await, "not ready: the store fails: disk full\n");
        *trouble.lock().unwrap() = None;
        store.fail_next(Verb::Pulse, Fault::ErrorBefore, 1);
        assert!(ready().await.starts_with("not ready: the store fails: "));
        assert_eq!(ready().await, "ready\n");
        drop((store, shared));
        assert_eq!(ready().await, "not ready: the store fails: it is closed\n");
    }

    #[tokio::test]
    async fn metrics_are_openmetrics() {
        let (status, content_type, body) = ask(&admin(), "/metrics").await;
        assert_eq!((status, content_type.as_str()), (StatusCode::OK, OPENMETRICS));
        assert!(body.contains("hapax_unknown 0") && body.ends_with("# EOF\n"), "{body}");
    }
}
