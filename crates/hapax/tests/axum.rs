//! With axum: the extractor, nested routers, and authentication outside the layer.

mod common;

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::post as handle;
use axum::{Extension, Router};
use common::{Got, Ledger, faulty, post, quiet};
use hapax::{Operation, Principal};
use http::HeaderValue;
use tower::ServiceExt;

async fn send(app: &Router, request: http::Request<http_body_util::Full<bytes::Bytes>>) -> Got {
    Got::read(app.clone().oneshot(request.map(Body::new)).await.unwrap()).await
}

#[derive(Clone)]
struct User(&'static str);

/// Knows two tokens, until they are withdrawn.
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
                .layer()
                .principal_from(|user: &User| Principal::named(user.0)),
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
    // The answer is there, but its owner may not have it any more.
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
                .layer()
                .principal_from(|user: &User| Principal::named(user.0)),
        )
        .layer(Extension(Ledger::default()));
    assert_eq!(
        send(&app, with_token("k", "Bearer ada")).await.problem(),
        "principal-missing"
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
        .layer(quiet(store).layer().anonymous());
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
            .layer(hapax.layer().anonymous())
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
