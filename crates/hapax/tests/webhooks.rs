//! Webhooks that come in, through the layer: verified before anything else.

mod common;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Body;
use axum::routing::post as handle;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::{Got, Ledger, faulty, quiet};
use hapax::{Guard, Hapax, StandardWebhooks};
use hmac::{Hmac, KeyInit, Mac};
use http::{Method, Request};
use sha2::Sha256;
use tower::ServiceExt;

const OLD: &str = "whsec_b2xkIG9sZCBvbGQgb2xkIG9sZCBvbGQg";
const NEW: &str = "whsec_bmV3IG5ldyBuZXcgbmV3IG5ldyBuZXcg";
const OTHER: &str = "whsec_b3RoZXIgb3RoZXIgb3RoZXIgb3RoZXIg";

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("a time after 1970").as_secs()
}

/// A signature, made by hand.
fn signature(secret: &str, id: &str, at: u64, body: &str) -> String {
    let bytes = STANDARD
        .decode(secret.trim_start_matches("whsec_"))
        .unwrap();
    let mut mac = Hmac::<Sha256>::new_from_slice(&bytes).unwrap();
    mac.update(format!("{id}.{at}.{body}").as_bytes());
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

fn signed(secret: &str, id: &str, at: u64, body: &str) -> Request<Body> {
    with(&signature(secret, id, at, body), id, at, body)
}

fn with(signature: &str, id: &str, at: u64, body: &str) -> Request<Body> {
    Request::post("/hook")
        .header("webhook-id", id)
        .header("webhook-timestamp", at)
        .header("webhook-signature", signature)
        .body(Body::from(body.to_owned()))
        .unwrap()
}

async fn send(app: &Router, request: Request<Body>) -> Got {
    Got::read(app.clone().oneshot(request).await.unwrap()).await
}

fn sender(name: &str, secrets: &[&str]) -> StandardWebhooks {
    let add = |webhooks: StandardWebhooks, secret: &&str| webhooks.secret(secret).unwrap();
    secrets.iter().fold(StandardWebhooks::new(name), add)
}

fn guard(hapax: &Hapax, webhooks: StandardWebhooks) -> Guard {
    hapax.guard().standard_webhooks(webhooks).build().unwrap()
}

/// A service that counts what reaches it.
fn app(guard: Guard) -> (Router, Ledger) {
    let ledger = Ledger::default();
    let counter = ledger.clone();
    let handler = move |body: String| async move { counter.add(body).to_string() };
    let methods = handle(handler.clone()).put(handler.clone()).get(handler);
    (Router::new().route("/hook", methods).layer(guard), ledger)
}

fn hapax() -> Hapax {
    quiet(faulty().0)
}

#[tokio::test]
async fn a_webhook_has_one_effect_however_often_it_comes() {
    let (app, ledger) = app(guard(&hapax(), sender("a", &[OLD])));
    let first = send(&app, signed(OLD, "m1", now(), "{}")).await;
    assert_eq!(first.status, 200, "{first:?}");
    // A sender signs each try anew.
    let again = send(&app, signed(OLD, "m1", now() - 1, "{}")).await;
    assert!(again.is_replay(), "{again:?}");
    assert_eq!(ledger.len(), 1);
    send(&app, signed(OLD, "m2", now(), "{}")).await;
    assert_eq!(ledger.len(), 2);
}

#[tokio::test]
async fn what_is_not_well_signed_reaches_nobody_and_has_no_record() {
    let (app, ledger) = app(guard(&hapax(), sender("a", &[OLD])));
    let (at, good) = (now(), signature(OLD, "m1", now(), "{}"));
    let unsigned = Request::post("/hook").body(Body::from("{}")).unwrap();
    let mut put = signed(OLD, "m1", at, "{}");
    *put.method_mut() = Method::PUT;
    for (what, request) in [
        ("another secret", signed(OTHER, "m1", at, "{}")),
        ("another body", with(&good, "m1", at, "{ }")),
        ("another id", with(&good, "m2", at, "{}")),
        ("another time", with(&good, "m1", at - 1, "{}")),
        ("an old one", signed(OLD, "m1", at - 400, "{}")),
        ("one from the future", signed(OLD, "m1", at + 400, "{}")),
        ("no signature", with("v1a,x", "m1", at, "{}")),
        ("nothing", unsigned),
        ("a method that is not guarded", put),
    ] {
        let refused = send(&app, request).await;
        assert_eq!(refused.status, 401, "{what}: {refused:?}");
        assert_eq!(refused.problem(), "credentials-invalid", "{what}");
    }
    assert_eq!(ledger.len(), 0);
    // No record was left by them.
    let first = send(&app, signed(OLD, "m1", at, "{}")).await;
    assert!(first.status == 200 && !first.is_replay(), "{first:?}");
    // Nor do they see the record that there is now.
    let refused = send(&app, signed(OTHER, "m1", at, "{}")).await;
    assert_eq!(refused.status, 401);
    // Nothing is verified of what has no effect.
    let get = Request::get("/hook").body(Body::empty()).unwrap();
    assert_eq!(send(&app, get).await.status, 200);
}

#[tokio::test]
async fn secrets_rotate() {
    let (app, ledger) = app(guard(&hapax(), sender("a", &[OLD, NEW])));
    assert_eq!(send(&app, signed(OLD, "m1", now(), "1")).await.status, 200);
    assert!(send(&app, signed(NEW, "m1", now(), "1")).await.is_replay());
    let at = now();
    let both = [OTHER, NEW].map(|secret| signature(secret, "m2", at, "2"));
    let both = with(&both.join(" "), "m2", at, "2");
    assert_eq!(send(&app, both).await.status, 200);
    assert_eq!(ledger.len(), 2);
}

#[tokio::test]
async fn senders_are_apart_though_their_ids_are_the_same() {
    let hapax = hapax();
    let (one, of_one) = app(guard(&hapax, sender("one", &[OLD])));
    let (other, of_other) = app(guard(&hapax, sender("other", &[NEW])));
    assert!(!send(&one, signed(OLD, "m1", now(), "1")).await.is_replay());
    assert!(
        !send(&other, signed(NEW, "m1", now(), "2"))
            .await
            .is_replay()
    );
    assert_eq!((of_one.len(), of_other.len()), (1, 1));
    assert_eq!(
        send(&other, signed(OLD, "m1", now(), "1")).await.status,
        401
    );
}

#[tokio::test]
async fn the_tolerance_is_as_said() {
    let webhooks = sender("a", &[OLD]).tolerance(Duration::from_secs(3600));
    let (app, _) = app(guard(&hapax(), webhooks));
    let late = send(&app, signed(OLD, "m1", now() - 3000, "{}")).await;
    assert_eq!(late.status, 200);
}

#[tokio::test]
async fn a_large_body_is_verified_as_a_whole() {
    let (app, ledger) = app(guard(&hapax(), sender("a", &[OLD])));
    // Larger than what is kept in memory; axum itself takes two megabytes.
    let body = "x".repeat(1_500_000);
    assert_eq!(
        send(&app, signed(OLD, "m1", now(), &body)).await.status,
        200
    );
    let at = now();
    let mut changed = body.clone();
    changed.replace_range(1_400_000..1_400_001, "y");
    let changed = with(&signature(OLD, "m2", at, &body), "m2", at, &changed);
    assert_eq!(send(&app, changed).await.status, 401);
    assert_eq!(ledger.len(), 1);
}
