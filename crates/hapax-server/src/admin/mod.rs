//! The admin API: what operators ask over HTTP, on a separate listener.
//!
//! Without a token it must be on loopback, and every client on this machine is an operator. Web
//! pages of other sites are then the threat to keep out (`guard.rs`). With a token it checks every
//! caller, and may listen on any address (`caller.rs`). The document at `/openapi.json` has every
//! route, because the same macro declares both (`openapi.rs`).

mod answer;
mod caller;
mod guard;
mod health;
pub(crate) mod inbox;
pub(crate) mod keys;
mod listen;
pub(crate) mod log;
mod openapi;
pub(crate) mod operation;
pub(crate) mod outbox;
mod problem;
pub(crate) mod reload;
mod rules;
mod settle;

use std::pin::Pin;
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::{Router, middleware};
use hapax::Hapax;
use hapax::core::operation::OperationIds;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use health::Readiness;
pub use listen::{Limits, serve};
pub use rules::Rules;

use crate::telemetry::{Metrics, Unknowns};

/// The format that prometheus-client encodes.
pub(crate) const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The largest body of a request: an answer of the largest kept size as base64, and room for the
/// rest.
const BODY_BYTES_MAX: usize = 2 << 20;

/// Asks for something that metrics tell.
pub(crate) type Refresh = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// Everything that the admin listener answers from. Cheap to clone.
#[derive(Clone)]
pub struct Admin {
    /// Whether this process should receive requests.
    pub ready: Arc<Readiness>,
    /// The metrics.
    pub metrics: Metrics,
    /// The engine, with its store.
    pub hapax: Hapax,
    /// The rules of the configuration; a reload replaces them.
    pub rules: Arc<ArcSwap<Rules>>,
    /// Computes operation ids.
    operation_ids: OperationIds,
    unknowns: Unknowns,
    refusals: caller::Refusals,
    reloader: Option<reload::Reloader>,
    /// The messages in the database of the store, if it can have any.
    messages: Option<Messages>,
    /// What else is asked for before a scrape.
    refresh: Option<Refresh>,
}

/// The outbox and the inbox of a database.
#[derive(Clone)]
pub(crate) struct Messages {
    pub(crate) outbox: Arc<dyn hapax_flow::outbox::operate::Operators>,
    pub(crate) inbox: Arc<dyn hapax_flow::inbox::Operators>,
}

impl Admin {
    /// Creates the state of the listener. `operation_ids` are the store's.
    pub fn new(
        ready: Arc<Readiness>,
        metrics: Metrics,
        hapax: Hapax,
        operation_ids: OperationIds,
        rules: Rules,
    ) -> Admin {
        let rules = Arc::new(ArcSwap::from_pointee(rules));
        let current = rules.clone();
        let unknowns = Unknowns::new(hapax.clone(), &metrics, move |head| {
            current.load().waits_for_a_person(head)
        });
        Admin {
            ready,
            metrics,
            hapax,
            rules,
            operation_ids,
            unknowns,
            refusals: caller::Refusals::default(),
            reloader: None,
            messages: None,
            refresh: None,
        }
    }

    /// Lets operators reload the configuration.
    #[must_use]
    pub(crate) fn reloaded_by(self, reloader: reload::Reloader) -> Admin {
        Admin {
            reloader: Some(reloader),
            ..self
        }
    }

    /// Lets operators look into this outbox and inbox.
    #[must_use]
    pub(crate) fn with_messages(self, messages: Option<Messages>) -> Admin {
        Admin { messages, ..self }
    }

    /// Asks for something before each scrape.
    #[must_use]
    pub(crate) fn refreshing(self, refresh: Option<Refresh>) -> Admin {
        Admin { refresh, ..self }
    }
}

/// The router of the admin listener.
pub fn router(state: Admin) -> Router {
    let (router, document) = documented().split_for_parts();
    let document = openapi::spelled(&document);
    router
        .fallback(answer::no_such_path)
        .method_not_allowed_fallback(answer::no_such_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(axum::Extension(document))
        // These layers wrap all routes, including those added later. The check for pages of other
        // sites runs first, then the check of the caller.
        .layer(middleware::from_fn_with_state(
            state.clone(),
            caller::is_known,
        ))
        .layer(middleware::from_fn_with_state(
            state.clone(),
            guard::refuse_cross_site,
        ))
        .layer(middleware::from_fn(answer::limit_and_harden))
        .with_state(state)
}

/// Every route, with its documentation.
fn documented() -> OpenApiRouter<Admin> {
    OpenApiRouter::with_openapi(openapi::frame())
        .merge(health::routes())
        .merge(keys::routes())
        .merge(log::routes())
        .merge(settle::routes())
        .merge(outbox::routes())
        .merge(inbox::routes())
        .merge(reload::routes())
        .routes(routes!(metrics))
        .routes(routes!(openapi::document))
}

/// Everything that is counted, for Prometheus
#[utoipa::path(get, path = "/metrics", tag = "health", responses((status = 200, content_type = "application/openmetrics-text", body = String, description = "OpenMetrics 1.0")))]
async fn metrics(State(admin): State<Admin>) -> Response {
    admin.unknowns.refresh().await;
    if let Some(refresh) = &admin.refresh {
        refresh().await;
    }
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

    pub(super) fn admin_with(rules: Rules) -> Admin {
        let hapax = Hapax::builder(hapax::store::memory()).sweep(None).build();
        let ids = OperationIds::new(
            hapax::core::Secret::from_bytes([1; 32]),
            hapax::core::Timestamp::ZERO,
        );
        Admin::new(Arc::default(), Metrics::new(), hapax, ids, rules)
    }

    fn admin() -> Admin {
        admin_with(Rules::new(
            &crate::config::Config::new(http::Uri::default()),
        ))
    }

    async fn ask(admin: &Admin, path: &str) -> (StatusCode, String, String) {
        let request = Request::get(path)
            .header("host", "127.0.0.1:4001")
            .body(Body::empty())
            .unwrap();
        let response = router(admin.clone()).call(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        (
            parts.status,
            parts.headers["content-type"].to_str().unwrap().to_owned(),
            body,
        )
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
        assert_eq!(
            ready().await.0,
            503,
            "who has begun to drain never comes back"
        );
    }

    #[tokio::test]
    async fn a_failing_store_is_not_ready_and_says_why() {
        let admin = admin();
        let (trouble, store) = (
            Arc::new(std::sync::Mutex::new(None)),
            Arc::new(Faulty::new(Arc::new(hapax::store::memory()))),
        );
        let (seen, shared) = (trouble.clone(), store.clone() as Arc<dyn Store>);
        admin
            .ready
            .watch_store(&shared, move || seen.lock().unwrap().clone());
        admin.ready.started();
        let ready = async || ask(&admin, "/readyz").await.2;
        assert_eq!(ready().await, "ready\n");
        *trouble.lock().unwrap() = Some("disk\nfull".to_owned());
        assert_eq!(ready().await, "not ready: the store fails: disk full\n");
        *trouble.lock().unwrap() = None;
        store.fail_next(Verb::Info, Fault::ErrorBefore, 1);
        assert!(ready().await.starts_with("not ready: the store fails: "));
        assert_eq!(ready().await, "ready\n");
        drop((store, shared));
        assert_eq!(ready().await, "not ready: the store fails: it is closed\n");
    }

    #[tokio::test]
    async fn metrics_are_openmetrics() {
        let (status, content_type, body) = ask(&admin(), "/metrics").await;
        assert_eq!(
            (status, content_type.as_str()),
            (StatusCode::OK, OPENMETRICS)
        );
        assert!(
            body.contains("hapax_unknown 0") && body.ends_with("# EOF\n"),
            "{body}"
        );
    }
}
