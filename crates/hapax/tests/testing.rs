//! The helper for tests of a service: one clock for store and memory, and a handler alone.

mod common;

use std::time::Duration;

use axum::body::Body;
use axum::routing::post as handle;
use axum::{Router, http::Request};
use common::{Gate, Got, Ledger};
use hapax::core::store::{Dialect, Statement, Value};
use hapax::join::{Session, Transaction};
use hapax::observe::Source;
use hapax::testing::{TestHapax, operation};
use hapax::{Answer, FinishError, KeyRule, Part, Policy, Principal, Quotas, Velocity};
use tower::ServiceExt;

const HOUR: Duration = Duration::from_secs(60 * 60);

fn order(key: &str) -> Request<Body> {
    Request::post("/orders")
        .header("idempotency-key", key)
        .body(Body::empty())
        .unwrap()
}

async fn send(app: &Router, request: Request<Body>) -> Got {
    Got::read(app.clone().oneshot(request).await.unwrap()).await
}

fn orders(hapax: &TestHapax, policy: Policy) -> (Router, Ledger) {
    let ledger = Ledger::default();
    let counter = ledger.clone();
    let app = Router::new()
        .route(
            "/orders",
            handle(move || async move { counter.add("order").to_string() }),
        )
        .route_layer(hapax.guard().policy(policy).anonymous().build().unwrap());
    (app, ledger)
}

#[tokio::test]
async fn an_answer_in_memory_expires_with_its_record() {
    let hapax = TestHapax::new();
    let Policy {
        retention,
        tombstone,
        ..
    } = Policy::default();
    let (app, ledger) = orders(&hapax, Policy::default());
    send(&app, order("k")).await;
    hapax.pass(retention - HOUR).await;
    let repeat = app.clone().oneshot(order("k")).await.unwrap();
    assert_eq!(repeat.extensions().get(), Some(&Source::Cache));
    hapax.pass(HOUR).await;
    assert_eq!(send(&app, order("k")).await.problem(), "key-expired");
    hapax.pass(tombstone).await;
    assert_eq!(
        &send(&app, order("k")).await.body[..],
        b"2",
        "the key is new"
    );
    assert_eq!(ledger.len(), 2);
}

/// An app whose handler waits at a gate after its effect.
fn gated(hapax: &TestHapax) -> (Router, Ledger, Gate) {
    let (ledger, gate) = (Ledger::default(), Gate::new());
    let (counter, inner) = (ledger.clone(), gate.clone());
    let handler = move || async move {
        counter.add("order");
        inner.pass().await;
        "ordered"
    };
    let app = Router::new()
        .route("/orders", handle(handler))
        .route_layer(hapax.guard().anonymous().build().unwrap());
    (app, ledger, gate)
}

#[tokio::test]
async fn an_attempt_is_lost_when_its_lease_has_passed_and_may_end_late() {
    let hapax = TestHapax::new();
    let (app, ledger, gate) = gated(&hapax);
    let first = tokio::spawn(app.clone().oneshot(order("k")));
    gate.wait_for(1).await;
    hapax.pass(Policy::default().lease).await;
    assert_eq!(send(&app, order("k")).await.problem(), "outcome-unknown");
    gate.open(1);
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
    assert!(send(&app, order("k")).await.is_replay());
    assert_eq!(ledger.len(), 1);
}

#[tokio::test]
async fn an_attempt_goes_on_through_steps_shorter_than_its_lease() {
    let hapax = TestHapax::new();
    let (app, ledger, gate) = gated(&hapax);
    let first = tokio::spawn(app.clone().oneshot(order("k")));
    gate.wait_for(1).await;
    for _ in 0..5 {
        hapax.pass(Policy::default().lease * 2 / 3).await;
        assert_eq!(send(&app, order("k")).await.problem(), "in-flight");
    }
    gate.open(1);
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
    assert_eq!(ledger.len(), 1);
}

#[tokio::test]
async fn limits_on_new_keys_and_quotas_go_by_the_same_clock() {
    let hapax = TestHapax::new();
    let rule = Velocity {
        by: Part::Principal,
        keys: 1,
        per: HOUR,
    };
    let policy = Policy {
        velocity: vec![rule],
        ..Policy::default()
    };
    let retention = policy.retention;
    hapax.set_quotas(Quotas {
        records_per_principal_max: Some(10),
        ..Quotas::default()
    });
    let (app, _) = orders(&hapax, policy);
    assert_eq!(send(&app, order("k1")).await.status, 200);
    assert_eq!(send(&app, order("k2")).await.problem(), "too-many-keys");
    hapax.pass(HOUR).await;
    assert_eq!(send(&app, order("k2")).await.status, 200);
    let records = || hapax.usage(&Principal::Anonymous).unwrap().records;
    assert_eq!(records(), 2);
    // Quotas count by whole seconds.
    hapax.pass(retention + Duration::from_secs(1)).await;
    assert_eq!(records(), 0);
}

#[tokio::test]
async fn issued_keys_go_by_the_same_clock() {
    let hapax = TestHapax::new();
    let policy = Policy {
        key: KeyRule::Issued,
        ..Policy::default()
    };
    let (app, _) = orders(&hapax, policy);
    hapax.pass(HOUR * 24).await;
    let issue = async || hapax.issue(&Principal::Anonymous, HOUR).await.unwrap();
    let (used, unused) = (issue().await, issue().await);
    assert_eq!(send(&app, order(used.as_str())).await.status, 200);
    hapax.pass(HOUR * 2).await;
    let late = send(&app, order(unused.as_str())).await;
    assert_eq!(late.problem(), "key-expired");
}

/// A connection that must not be used.
struct Unused;

impl Session for Unused {
    type Error = std::io::Error;

    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    async fn run(&mut self, statement: &Statement) -> Result<Option<Vec<Value>>, std::io::Error> {
        panic!("{} was run", statement.sql)
    }

    fn code(_: &std::io::Error) -> Option<String> {
        None
    }
}

impl Transaction for Unused {
    async fn commit(self) -> Result<(), std::io::Error> {
        panic!("it was committed")
    }
}

#[tokio::test]
async fn an_operation_alone_derives_keys_and_cannot_finish() {
    let (one, again, other) = (operation("k1"), operation("k1"), operation("k2"));
    assert_eq!(one.derive("pay"), again.derive("pay"));
    assert_ne!(one.derive("pay"), one.derive("refund"));
    assert_ne!(one.derive("pay"), other.derive("pay"));
    assert_eq!((one.key().as_str(), one.attempt()), ("k1", 1));
    let finished = one.finish(Unused, Answer::new(200, "done")).await;
    assert!(matches!(finished, Err(FinishError::NotATransactionRoute)));
}

#[test]
#[should_panic(expected = "is no key")]
fn an_operation_needs_a_key() {
    operation("");
}
