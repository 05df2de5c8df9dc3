//! The metrics, fed by the library's own layer on a real store.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use bytes::Bytes;
use hapax::{Hapax, Idempotency, Policy, Principal, Rejection, Store};
use hapax_server::admin::{Admin, Readiness, Rules};
use hapax_server::config::Config;
use hapax_server::telemetry::{Metrics, Outcome, Timed};
use hapax_testkit::{Fault, Faulty, Verb};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::sync::Notify;
use tower_layer::Layer;
use tower_service::Service;

const KEY: &str = "sk_key_that_nobody_may_see";
const PRINCIPAL: &str = "ada_whom_nobody_may_see";

struct Shop {
    metrics: Metrics,
    hapax: Hapax,
    service: Idempotency<Router>,
    store: Arc<Faulty>,
    /// Lets the handler of `/slow` continue.
    go_on: Arc<Notify>,
    /// Notified when the handler has begun.
    begun: Arc<Notify>,
}

fn shop() -> Shop {
    let metrics = Metrics::new();
    let store = Arc::new(Faulty::new(Arc::new(hapax::store::memory())));
    let timed = Timed::new(store.clone() as Arc<dyn Store>, &metrics);
    let hapax = Hapax::builder(timed)
        .observer(metrics.observer(Arc::new(())))
        .sweep(None)
        .build();
    let (go_on, begun) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let slow = {
        let (go_on, begun) = (go_on.clone(), begun.clone());
        async move || {
            begun.notify_one();
            go_on.notified().await;
            "slow"
        }
    };
    let router = Router::new()
        .route("/charges", post(async || (StatusCode::CREATED, "{}")))
        .route("/lost", post(async || StatusCode::BAD_GATEWAY))
        .route("/slow", post(slow));
    let layer = hapax
        .guard()
        .policy(Policy::default())
        .principal(|_| Some(Principal::named(PRINCIPAL)))
        .build()
        .unwrap();
    Shop {
        metrics,
        hapax,
        service: layer.layer(router),
        store,
        go_on,
        begun,
    }
}

impl Shop {
    async fn send(&self, path: &str, body: &'static str) -> Response<hapax::Body> {
        let request = Request::post(path)
            .header("idempotency-key", KEY)
            .body(Full::new(Bytes::from(body)))
            .unwrap();
        self.service.clone().call(request).await.unwrap()
    }

    #[track_caller]
    fn metric(&self, name: &str) -> f64 {
        let text = self.metrics.encode();
        let found = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        found.unwrap_or_else(|| panic!("no {name} in\n{text}"))
    }

    #[track_caller]
    fn check(&self, expected: &[(&str, f64)]) {
        for (name, value) in expected {
            assert_eq!(self.metric(name), *value, "{name}");
        }
    }
}

#[tokio::test]
async fn what_the_layer_does_is_counted() {
    let shop = shop();
    shop.send("/charges", "5").await;
    shop.send("/charges", "5").await;
    shop.send("/charges", "6").await;
    shop.check(&[
        ("hapax_replays_total{source=\"cache\"}", 1.0),
        ("hapax_duplicates_prevented_total", 1.0),
        ("hapax_attempts_total{state=\"completed\"}", 1.0),
        ("hapax_attempts_in_flight", 0.0),
        ("hapax_store_seconds_count{verb=\"put_if\"}", 2.0),
    ]);
    shop.send("/lost", "5").await;
    shop.send("/lost", "5").await;
    shop.check(&[
        ("hapax_attempts_total{state=\"unknown\"}", 1.0),
        ("hapax_duplicates_prevented_total", 2.0),
    ]);
}

#[tokio::test]
async fn attempts_are_in_flight_until_they_are_written_down_and_waits_are_counted() {
    let shop = shop();
    let (first, waiter) = {
        let slow = |wait: &str| {
            let request = Request::post("/slow")
                .header("idempotency-key", KEY)
                .header("prefer", wait);
            let mut service = shop.service.clone();
            let call = service.call(request.body(Full::new(Bytes::new())).unwrap());
            tokio::spawn(async move {
                call.await
                    .unwrap()
                    .into_body()
                    .collect()
                    .await
                    .unwrap()
                    .to_bytes()
            })
        };
        let first = slow("wait=0");
        shop.begun.notified().await;
        (first, slow("wait=30"))
    };
    shop.check(&[("hapax_attempts_in_flight", 1.0)]);
    while shop.metric("hapax_waits_total") != 1.0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        shop.send("/slow", "")
            .await
            .extensions()
            .get::<Rejection>()
            .map(|rejection| rejection.row().slug),
        Some("in-flight")
    );
    shop.go_on.notify_one();
    assert_eq!(
        (&first.await.unwrap()[..], &waiter.await.unwrap()[..]),
        (&b"slow"[..], &b"slow"[..])
    );
    shop.check(&[
        ("hapax_attempts_in_flight", 0.0),
        ("hapax_replays_total{source=\"wait\"}", 1.0),
        ("hapax_duplicates_prevented_total", 2.0),
    ]);
}

#[tokio::test]
async fn store_failures_are_counted_by_kind() {
    let shop = shop();
    shop.send("/charges", "5").await;
    shop.store.fail_next(Verb::List, Fault::ErrorBefore, 1);
    let query = || hapax::core::store::ListQuery {
        state: None,
        after: None,
        limit: 1,
    };
    shop.hapax.list(query()).await.unwrap_err();
    shop.store.fail_next(Verb::List, Fault::Hang, 1);
    tokio::select! {
        biased;
        _ = shop.hapax.list(query()) => panic!("it hangs"),
        () = tokio::task::yield_now() => {}
    }
    shop.check(&[
        ("hapax_store_errors_total{kind=\"unavailable\"}", 1.0),
        ("hapax_store_errors_total{kind=\"abandoned\"}", 1.0),
        ("hapax_store_seconds_count{verb=\"list\"}", 2.0),
    ]);
}

#[tokio::test(start_paused = true)]
async fn unknown_outcomes_are_counted_from_the_store_now_and_then() {
    let shop = shop();
    shop.send("/lost", "5").await;
    let (ready, rules) = (
        Arc::new(Readiness::default()),
        Rules::new(&Config::new(http::Uri::default())),
    );
    let ids = shop.store.info().await.unwrap().operation_ids();
    let mut admin = hapax_server::admin::router(Admin::new(
        ready,
        shop.metrics.clone(),
        shop.hapax.clone(),
        ids,
        rules,
    ));
    let mut scrape = async || {
        let request = Request::get("/metrics")
            .header("host", "localhost")
            .body(axum::body::Body::empty())
            .unwrap();
        let body = admin
            .call(request)
            .await
            .unwrap()
            .into_body()
            .collect()
            .await
            .unwrap()
            .to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    };
    assert!(scrape().await.contains("\nhapax_unknown 1\n"));
    assert!(scrape().await.contains("\nhapax_unknown 1\n"));
    assert_eq!(
        shop.store.calls(Verb::List),
        1,
        "a count is good for a while"
    );
    tokio::time::advance(Duration::from_secs(6)).await;
    scrape().await;
    assert_eq!(shop.store.calls(Verb::List), 2);
}

#[tokio::test]
async fn requests_are_counted_by_route_and_outcome() {
    let shop = shop();
    let (route, took) = (
        shop.metrics.route(&"POST /**".into()),
        Duration::from_millis(3),
    );
    for outcome in [
        Outcome::First,
        Outcome::First,
        Outcome::Replayed,
        Outcome::from(&Rejection::KeyReused),
        Outcome::Refused,
    ] {
        route.request(outcome, took);
    }
    shop.check(&[
        (
            "hapax_requests_total{route=\"POST /**\",outcome=\"first\"}",
            2.0,
        ),
        (
            "hapax_requests_total{route=\"POST /**\",outcome=\"replayed\"}",
            1.0,
        ),
        (
            "hapax_requests_total{route=\"POST /**\",outcome=\"key-reused\"}",
            1.0,
        ),
        (
            "hapax_requests_total{route=\"POST /**\",outcome=\"upstream_failed\"}",
            0.0,
        ),
        (
            "hapax_request_seconds_count{route=\"POST /**\",class=\"first\"}",
            2.0,
        ),
        (
            "hapax_request_seconds_count{route=\"POST /**\",class=\"rejected\"}",
            2.0,
        ),
        (
            "hapax_request_seconds_bucket{le=\"0.005\",route=\"POST /**\",class=\"first\"}",
            2.0,
        ),
    ]);
}

#[tokio::test]
async fn no_key_and_no_principal_is_told() {
    let shop = shop();
    shop.send("/charges?secret=1", "5").await;
    shop.send("/lost", "5").await;
    let text = shop.metrics.encode();
    for hidden in [KEY, PRINCIPAL, "/charges", "secret"] {
        assert!(!text.contains(hidden), "{hidden} in\n{text}");
    }
}
