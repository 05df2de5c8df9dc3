//! With axum: the extractor, nested routers, and authentication outside the layer.

mod common;

use std::collections::BTreeMap;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Json, Request};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::post as handle;
use axum::{Extension, Router};
use common::lines::Lines;
use common::{Got, Ledger, faulty, post, quiet};
use hapax::core::store::ListQuery;
use hapax::{Operation, Policy, Principal};
use http::HeaderValue;
use tower::ServiceExt;

async fn send(app: &Router, request: http::Request<http_body_util::Full<bytes::Bytes>>) -> Got {
    Got::read(app.clone().oneshot(request.map(Body::new)).await.unwrap()).await
}

#[derive(Clone)]
struct User(&'static str);

/// Accepts two tokens until they are withdrawn.
async fn authenticate(
    Extension(withdrawn): Extension<Ledger>,
    mut request: Request,
    next: Next,
) -> Response {
    let token = request
        .headers()
        .get("authorization")
        .and_then(|token| token.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    let user = match token.as_str() {
        "Bearer ada" => User("ada"),
        "Bearer bob" => User("bob"),
        _ => return StatusCode::UNAUTHORIZED.into_response(),
    };
    if withdrawn.lines().contains(&token) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    request.extensions_mut().insert(user);
    next.run(request).await
}

fn with_token(key: &str, token: &'static str) -> http::Request<http_body_util::Full<bytes::Bytes>> {
    let mut request = post("/charges", key, "5");
    request
        .headers_mut()
        .insert("authorization", HeaderValue::from_static(token));
    request
}

#[tokio::test]
async fn authentication_comes_before_replay() {
    let (store, _) = faulty();
    let (ledger, withdrawn) = (Ledger::default(), Ledger::default());
    let counter = ledger.clone();
    let app = Router::new()
        .route(
            "/charges",
            handle(move || async move { counter.add("charge").to_string() }),
        )
        .layer(
            quiet(store)
                .guard()
                .principal_from(|user: &User| Principal::named(user.0))
                .build()
                .unwrap(),
        )
        .layer(from_fn(authenticate))
        .layer(Extension(withdrawn.clone()));

    assert_eq!(
        &send(&app, with_token("k", "Bearer ada")).await.body[..],
        b"1"
    );
    assert!(send(&app, with_token("k", "Bearer ada")).await.is_replay());
    assert_eq!(
        &send(&app, with_token("k", "Bearer bob")).await.body[..],
        b"2",
        "another user, another operation"
    );
    // The answer is stored, but its owner is no longer authorized to read it.
    withdrawn.add("Bearer ada");
    let refused = send(&app, with_token("k", "Bearer ada")).await;
    assert_eq!(
        (
            refused.status.as_u16(),
            refused.body.len(),
            refused.is_replay()
        ),
        (401, 0, false)
    );
    assert_eq!(send(&app, post("/charges", "k", "5")).await.status, 401);
    assert_eq!(ledger.len(), 2);
}

#[tokio::test]
async fn a_layer_that_stands_outside_authentication_serves_nobody() {
    let (store, _) = faulty();
    let ledger = Ledger::default();
    let counter = ledger.clone();
    let app = Router::new()
        .route(
            "/charges",
            handle(move || async move { counter.add("charge").to_string() }),
        )
        .layer(from_fn(authenticate))
        .layer(
            quiet(store)
                .guard()
                .principal_from(|user: &User| Principal::named(user.0))
                .build()
                .unwrap(),
        )
        .layer(Extension(Ledger::default()));
    let got = send(&app, with_token("k", "Bearer ada")).await;
    assert_eq!(
        (got.status.as_u16(), got.problem().as_str()),
        (500, "principal-not-set")
    );
    assert_eq!(ledger.len(), 0);
}

#[tokio::test]
async fn the_operation_is_an_extractor() {
    let (store, _) = faulty();
    let seen = Ledger::default();
    let (required, optional) = (seen.clone(), seen.clone());
    let app = Router::new()
        .route(
            "/required",
            handle(move |operation: Operation| async move {
                required.add(operation.key().as_str()).to_string()
            }),
        )
        .route(
            "/optional",
            handle(move |operation: Option<Operation>| async move {
                optional
                    .add(operation.map_or("none".into(), |operation| {
                        operation.scope().path.to_string()
                    }))
                    .to_string()
            }),
        )
        .layer(quiet(store).guard().anonymous().build().unwrap());
    let without_key = |path: &str| {
        http::Request::post(path)
            .body(http_body_util::Full::default())
            .unwrap()
    };
    send(&app, post("/required", "k", "5")).await;
    send(&app, post("/optional", "k", "5")).await;
    send(&app, without_key("/optional")).await;
    assert_eq!(send(&app, without_key("/required")).await.status, 500);
    assert_eq!(seen.lines(), ["k", "/optional", "none"]);
}

#[tokio::test]
async fn two_nests_with_the_same_inner_path_do_not_share_keys() {
    let (store, _) = faulty();
    let hapax = quiet(store);
    let ledger = Ledger::default();
    let nest = |tenant: &'static str| {
        let ledger = ledger.clone();
        Router::new()
            .route(
                "/charges",
                handle(move || async move { ledger.add(tenant).to_string() }),
            )
            .layer(hapax.guard().anonymous().build().unwrap())
    };
    let app = Router::new().nest("/a", nest("a")).nest("/b", nest("b"));
    for (path, is_replay) in [
        ("/a/charges", false),
        ("/b/charges", false),
        ("/a/charges", true),
        ("/b/charges", true),
    ] {
        assert_eq!(
            send(&app, post(path, "k", "5")).await.is_replay(),
            is_replay,
            "{path}"
        );
    }
    assert_eq!(ledger.lines(), ["a", "b"]);
}

type Order = Json<BTreeMap<String, u32>>;

fn json(
    key: &str,
    body: impl Into<bytes::Bytes>,
) -> http::Request<http_body_util::Full<bytes::Bytes>> {
    let mut request = post("/orders", key, body);
    request
        .headers_mut()
        .insert("content-type", HeaderValue::from_static("application/json"));
    request
}

fn orders(ledger: &Ledger) -> Router {
    let counter = ledger.clone();
    let order = move |Json(_): Order| async move { counter.add("order").to_string() };
    Router::new().route("/orders", handle(order))
}

#[tokio::test]
async fn what_an_extractor_refuses_is_kept_and_a_corrected_body_needs_a_new_key() {
    let (store, _) = faulty();
    let ledger = Ledger::default();
    let app = orders(&ledger).route_layer(quiet(store).guard().anonymous().build().unwrap());
    let large = format!("{{\"{}\": 5}}", "x".repeat(3 << 20));
    let refused = [
        (400, json("k400", "{")),
        (413, json("k413", large)),
        (415, post("/orders", "k415", r#"{"amount": 5}"#)),
        (422, json("k422", r#"{"amount": "five"}"#)),
    ];
    for (status, request) in refused {
        let first = send(&app, request.clone()).await;
        assert_eq!(first.status, status);
        let repeat = send(&app, request).await;
        assert!(repeat.is_replay() && repeat.status == status, "{repeat:?}");
        assert_eq!(first.body, repeat.body);
        let corrected = send(&app, json(&format!("k{status}"), r#"{"amount": 5}"#)).await;
        assert_eq!(corrected.problem(), "key-reused");
    }
    assert_eq!(ledger.len(), 0);
    assert_eq!(
        send(&app, json("new", r#"{"amount": 5}"#)).await.status,
        200
    );
}

#[tokio::test]
async fn the_layers_limit_on_bodies_is_judged_before_axums() {
    let (store, _) = faulty();
    let (hapax, ledger) = (quiet(store), Ledger::default());
    let policy = Policy {
        body_memory_bytes_max: 1_000,
        body_bytes_max: 1_000,
        ..Policy::default()
    };
    let app = orders(&ledger)
        .layer(DefaultBodyLimit::max(100))
        .route_layer(hapax.guard().policy(policy).anonymous().build().unwrap());
    let body = |bytes: usize| format!("{{\"amount\": 5{}}}", " ".repeat(bytes - 13));
    // Over both: the layer refuses, and has begun nothing.
    let refused = send(&app, json("k", body(1_001))).await;
    assert_eq!(
        (refused.status.as_u16(), &*refused.problem()),
        (413, "body-too-large")
    );
    assert_eq!(hapax.list(ListQuery::default()).await.unwrap(), []);
    assert_eq!(send(&app, json("k", body(100))).await.status, 200);
    // Over axum's alone: the extractor refuses, and that is kept.
    let refused = send(&app, json("k2", body(101))).await;
    assert_eq!(refused.status, 413);
    assert_ne!(
        refused.header("content-type"),
        Some("application/problem+json")
    );
    assert!(send(&app, json("k2", body(101))).await.is_replay());
    assert_eq!(ledger.len(), 1);
}

#[tokio::test]
async fn a_handler_without_its_operation_is_told_why() {
    let needs = || handle(|_: Operation| async {}).put(|_: Operation| async {});
    let (store, _) = faulty();
    let app = Router::new()
        .route("/guarded", needs())
        .route_layer(quiet(store).guard().anonymous().build().unwrap())
        .route("/bare", needs());
    for (method, path, why) in [
        ("PUT", "/guarded", "its layer guards POST, PATCH, not PUT"),
        ("POST", "/guarded", "the request has no key"),
        ("POST", "/bare", "no layer of Hapax is around it"),
    ] {
        let (lines, _guard) = Lines::listen(|_| true);
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .body(http_body_util::Full::default())
            .unwrap();
        assert_eq!(send(&app, request).await.status, 500);
        lines.assert_one(&["ERROR", &format!("{method} {path}"), why]);
    }
}
