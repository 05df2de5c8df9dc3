//! The guard and its builder: mistakes, who is asking, and rejections in the service's own words.

mod common;

use std::time::Duration;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::post as handle;
use axum::{Json, Router};
use common::lines::Lines;
use common::{Got, Ledger, faulty, post, quiet};
use hapax::core::policy::PolicyError;
use hapax::{Guard, Hapax, KeyRule, KeySource, Policy, Rejection};
use http_body_util::Full;
use tower::ServiceExt;

type Request = http::Request<Full<bytes::Bytes>>;

async fn send(app: &Router, request: Request) -> Got {
    Got::read(app.clone().oneshot(request.map(Body::new)).await.unwrap()).await
}

/// A service that counts its charges.
fn charges(guard: Guard) -> (Router, Ledger) {
    let ledger = Ledger::default();
    let counter = ledger.clone();
    let charge = move || async move { counter.add("charge").to_string() };
    let app = Router::new()
        .route("/charges", handle(charge).get(async || "none"))
        .layer(guard);
    (app, ledger)
}

fn hapax() -> Hapax {
    quiet(faulty().0)
}

fn without_key() -> Request {
    http::Request::post("/charges")
        .body(Full::default())
        .unwrap()
}

#[tokio::test]
async fn every_mistake_of_a_guard_is_told_at_once() {
    let error = hapax()
        .guard()
        .key_field("content-type")
        .retention(Duration::ZERO)
        .transaction()
        .anonymous()
        .build()
        .unwrap_err();
    assert_eq!(
        error.mistakes(),
        [
            PolicyError::Zero("retention"),
            PolicyError::KeyField("content-type".into()),
            PolicyError::NoTransactions
        ]
    );
    let text = format!("{error:?}");
    assert!(text.starts_with("the guard cannot be built, for 3 reasons:\n- `retention` is zero"));
    assert_eq!(text, error.to_string());
}

#[tokio::test]
async fn a_policy_does_not_undo_what_was_set_before_it() {
    let guard = hapax().guard().required().policy(Policy::default());
    let error = guard.anonymous().build().unwrap_err();
    assert_eq!(error.mistakes(), [PolicyError::Undone]);
    let guard = hapax().guard().policy(Policy::default()).required();
    guard.anonymous().build().unwrap();
}

#[tokio::test]
async fn short_methods_set_what_they_say() {
    let (app, ledger) = charges(
        hapax()
            .guard()
            .required()
            .key_field("x-key")
            .anonymous()
            .build()
            .unwrap(),
    );
    assert_eq!(send(&app, without_key()).await.problem(), "key-missing");
    let mut request = without_key();
    request.headers_mut().insert("x-key", "k".parse().unwrap());
    assert_eq!(send(&app, request).await.status, 200);
    assert_eq!(ledger.len(), 1);
}

#[derive(Clone)]
struct AppState {
    extractions: Ledger,
}

struct User {
    id: u64,
}

impl FromRequestParts<AppState> for User {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<User, Response> {
        // As an extractor that asks a database does.
        tokio::task::yield_now().await;
        state.extractions.add("asked");
        match parts.headers.get("x-user").map(|user| user.as_bytes()) {
            Some(b"ada") => Ok(User { id: 1 }),
            Some(b"bob") => Ok(User { id: 2 }),
            _ => Err((StatusCode::UNAUTHORIZED, "log in first").into_response()),
        }
    }
}

#[tokio::test]
async fn an_extractor_says_who_is_asking() {
    for key in [KeyRule::Optional, KeyRule::Required] {
        let state = AppState {
            extractions: Ledger::default(),
        };
        let policy = Policy {
            key,
            ..Policy::default()
        };
        let guard = hapax()
            .guard()
            .policy(policy)
            .principal_extractor(state.clone(), |user: User| user.id)
            .build()
            .unwrap();
        let (app, ledger) = charges(guard);

        let by = |user| common::by(post("/charges", "k", "5"), user);
        assert_eq!(send(&app, by("ada")).await.body, "1");
        assert_eq!(
            send(&app, by("bob")).await.body,
            "2",
            "not the answer of another caller"
        );
        assert!(send(&app, by("ada")).await.is_replay());
        let asked = state.extractions.len();

        let refused = send(&app, by("eve")).await;
        assert_eq!(
            (refused.status.as_u16(), &refused.body[..]),
            (401, &b"log in first"[..]),
            "in the extractor's own words"
        );
        let get = http::Request::get("/charges").body(Full::default());
        assert_eq!(send(&app, get.unwrap()).await.status, 200);
        let is_optional = key == KeyRule::Optional;
        if is_optional {
            assert_eq!(send(&app, without_key()).await.status, 200);
        }
        assert_eq!(
            (ledger.len(), state.extractions.len()),
            (2 + usize::from(is_optional), asked + 1),
            "a request that is not guarded is asked for nothing"
        );
    }
}

#[derive(Clone, Debug)]
struct AppError(Rejection);

impl IntoResponse for AppError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.row().status).unwrap();
        (status, Json(format!("shop:{}", self.0.row().slug))).into_response()
    }
}

#[tokio::test]
async fn rejections_are_told_in_the_services_own_words() {
    let guard = hapax()
        .guard()
        .required()
        .on_reject(AppError)
        .anonymous()
        .build()
        .unwrap();
    let seen = Ledger::default();
    let log = seen.clone();
    let (app, ledger) = charges(guard);
    let note = move |response: Response| {
        if let Some(rejection) = response.extensions().get::<Rejection>() {
            log.add(rejection.row().slug);
        }
        std::future::ready(response)
    };
    let app = app.layer(axum::middleware::map_response(note));
    let got = send(&app, without_key()).await;
    assert_eq!(
        (got.status.as_u16(), &got.body[..]),
        (400, &br#""shop:key-missing""#[..])
    );
    send(&app, post("/charges", "k", "5")).await;
    let got = send(&app, post("/charges", "k", "6")).await;
    assert_eq!(
        (got.status.as_u16(), &got.body[..]),
        (422, &br#""shop:key-reused""#[..])
    );
    assert_eq!(seen.lines(), ["key-missing", "key-reused"]);
    assert_eq!(ledger.len(), 1);
}

#[tokio::test]
async fn a_rejection_of_ones_own_keeps_the_retry_advice() {
    let (store, _) = faulty();
    let guard = quiet(store.clone())
        .guard()
        .map_rejection(|_, ours| {
            assert!(ours.headers().contains_key("retry-after"));
            http::Response::new(hapax::Body::from("come back"))
        })
        .anonymous()
        .build()
        .unwrap();
    let (app, ledger) = charges(guard);
    store.down(true);
    let got = send(&app, post("/charges", "k", "5")).await;
    assert_eq!(
        (got.status.as_u16(), &got.body[..]),
        (503, &b"come back"[..]),
        "a refusal is no success, whatever the service made of it"
    );
    assert_eq!(
        [got.header("retry-after"), got.header("cache-control")],
        [Some("1"), Some("no-store")]
    );
    assert_eq!(ledger.len(), 0);
}

#[tokio::test]
async fn dialects_of_sdks_are_spoken_only_if_asked_for() {
    for retry_dialects in [false, true] {
        let (store, _) = faulty();
        store.down(true);
        let policy = Policy {
            retry_dialects,
            ..Policy::default()
        };
        let guard = quiet(store).guard().policy(policy).anonymous();
        let (app, _) = charges(guard.build().unwrap());
        let got = send(&app, post("/charges", "k", "5")).await;
        assert_eq!(got.header("retry-after"), Some("1"));
        let text = String::from_utf8_lossy(&got.body).into_owned();
        assert_eq!(text.contains(r#""error":{"#), retry_dialects, "{text}");
        for name in ["x-should-retry", "stripe-should-retry", "retry-after-ms"] {
            assert_eq!(got.header(name).is_some(), retry_dialects, "{name}");
        }
    }
}

#[tokio::test]
async fn a_wrong_layer_order_is_told_once_and_blames_the_service() {
    #[derive(Clone)]
    struct Identity;
    let (lines, _listening) = Lines::listen(|_| true);
    let guard = hapax().guard().principal_from(|_: &Identity| "ada");
    let (app, ledger) = charges(guard.build().unwrap());
    for _ in 0..2 {
        let got = send(&app, post("/charges", "k", "5")).await;
        assert_eq!(
            (got.status.as_u16(), got.problem().as_str()),
            (500, "principal-not-set")
        );
    }
    lines.assert_one(&["ERROR", "Identity", ".route_layer(guard)"]);
    assert_eq!(ledger.len(), 0);
}

#[tokio::test]
async fn an_extractor_refuses_a_body_only_if_it_has_a_key() {
    let state = AppState {
        extractions: Ledger::default(),
    };
    let policy = Policy {
        key_source: KeySource::Body("/token".parse().unwrap()),
        ..Policy::default()
    };
    let guard = hapax()
        .guard()
        .policy(policy)
        .principal_extractor(state, |user: User| user.id)
        .build()
        .unwrap();
    let (app, ledger) = charges(guard);
    let with_body = |body: &'static str| {
        http::Request::post("/charges")
            .header("content-type", "application/json")
            .body(Full::from(body))
            .unwrap()
    };
    assert_eq!(send(&app, with_body("{}")).await.status, 200);
    assert_eq!(ledger.len(), 1);
    let refused = send(&app, with_body(r#"{"token":"k"}"#)).await;
    assert_eq!(
        (refused.status.as_u16(), &refused.body[..]),
        (401, &b"log in first"[..])
    );
    assert_eq!(ledger.len(), 1);
}

#[tokio::test]
async fn one_guard_has_one_mode() {
    let guard = hapax().guard().fenced().rerun().anonymous();
    assert_eq!(
        guard.build().unwrap_err().mistakes(),
        [PolicyError::TwoModes]
    );
}

#[tokio::test]
async fn a_small_limit_on_bodies_needs_no_second_setting() {
    let policy = Policy {
        body_bytes_max: 4,
        ..Policy::default()
    };
    let guard = hapax().guard().policy(policy).anonymous().build().unwrap();
    let (app, ledger) = charges(guard);
    let got = send(&app, post("/charges", "k", "12345")).await;
    assert_eq!(
        (got.problem().as_str(), ledger.len()),
        ("body-too-large", 0)
    );
}

/// A layer outside, such as a gateway, must not hold a key because of a service that was put
/// together in the wrong order.
#[tokio::test]
async fn a_wrong_layer_order_is_no_unknown_outcome_for_a_layer_outside() {
    #[derive(Clone)]
    struct Identity;
    let hapax = hapax();
    let inner = hapax.guard().principal_from(|_: &Identity| "ada");
    let (app, _) = charges(inner.build().unwrap());
    let outer = hapax
        .guard()
        .policy(Policy::default())
        .principal(|_| Some("outside"));
    let app = app.layer(outer.build().unwrap());
    for _ in 0..2 {
        let got = send(&app, post("/charges", "k", "5")).await;
        assert_eq!(got.problem(), "principal-not-set");
    }
}

#[test]
fn what_services_hold_can_be_cloned_and_sent() {
    fn is_shared<T: Clone + Send + Sync + std::fmt::Debug>() {}
    is_shared::<Hapax>();
    is_shared::<Guard>();
    is_shared::<hapax::Once>();
    is_shared::<hapax::Operation>();
}
