//! Route settings that no other test covers, each through the layer.

mod common;

use std::time::Duration;

use common::{Broken, charges, faulty, gated, post, quiet, ready_to_wait, send};
use hapax::{Body, Class, KeySource, Policy};
use hapax_testkit::{Fault, Verb};
use http::{Request, Response};
use http_body_util::BodyExt;

#[tokio::test]
async fn a_route_says_what_its_statuses_mean() {
    let classes = [
        (404, Class::Release),
        (409, Class::Unknown),
        (503, Class::Keep),
    ];
    for (status, first, again, effects) in [
        (404, "404", "404", 2),
        (409, "409", "outcome-unknown", 1),
        (503, "503", "replay", 1),
        // Statuses that the route does not name keep their default class.
        (400, "400", "replay", 1),
        (500, "500", "outcome-unknown", 1),
    ] {
        let (store, _) = faulty();
        let policy = Policy {
            classes: classes.into(),
            ..Policy::default()
        };
        let (service, ledger, gate) = gated(&quiet(store), policy, status);
        gate.open(2);
        for expected in [first, again] {
            let got = send(&service, post("/", "k", "x")).await;
            let word = match got.header("content-type") {
                Some("application/problem+json") => got.problem(),
                _ if got.is_replay() => "replay".to_owned(),
                _ => got.status.as_u16().to_string(),
            };
            assert_eq!(word, expected, "{status}");
        }
        assert_eq!(ledger.len(), effects, "{status}");
    }
}

#[tokio::test]
async fn a_strict_route_takes_the_quoted_form_alone() {
    let (store, _) = faulty();
    let (service, ledger) = charges(
        &quiet(store),
        Policy {
            strict_key: true,
            ..Policy::default()
        },
    );
    assert_eq!(
        send(&service, post("/", "k", "x")).await.problem(),
        "key-malformed"
    );
    assert_eq!(send(&service, post("/", "\"k\"", "x")).await.status, 201);
    assert!(send(&service, post("/", "\"k\"", "x")).await.is_replay());
    assert_eq!(ledger.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_holds_a_request_up_for_its_timeout_and_no_longer() {
    for timeout in [Duration::from_millis(50), Duration::from_secs(3)] {
        let (store, _) = faulty();
        let (service, ledger) = charges(
            &quiet(store.clone()),
            Policy {
                store_timeout: timeout,
                ..Policy::default()
            },
        );
        store.fail_next(Verb::PutIf, Fault::Hang, 1_000);
        let began = tokio::time::Instant::now();
        assert_eq!(
            send(&service, post("/", "k", "x")).await.problem(),
            "store-unavailable"
        );
        assert!(
            (timeout / 2..=timeout * 2).contains(&began.elapsed()),
            "{timeout:?}: {:?}",
            began.elapsed()
        );
        assert_eq!(ledger.len(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeat_waits_as_long_as_the_route_says_and_at_most_as_long_as_it_allows() {
    let (store, _) = faulty();
    let policy = Policy {
        wait: Duration::from_secs(2),
        wait_max: Duration::from_secs(5),
        ..Policy::default()
    };
    let (service, ledger, gate) = gated(&quiet(store), policy, 201);
    let first = common::spawn(&service, post("/", "k", "x"));
    gate.wait_for(1).await;
    for (request, seconds) in [
        (post("/", "k", "x"), 2),
        (ready_to_wait(post("/", "k", "x"), 3), 3),
        (ready_to_wait(post("/", "k", "x"), 99), 5),
    ] {
        let began = tokio::time::Instant::now();
        assert_eq!(send(&service, request).await.problem(), "in-flight");
        assert_eq!(began.elapsed().as_secs(), seconds);
    }
    gate.open(1);
    assert_eq!(
        (first.await.unwrap().status.as_u16(), ledger.len()),
        (201, 1)
    );
}

#[tokio::test]
async fn what_is_declared_harmless_is_guarded_all_the_same() {
    let (store, _) = faulty();
    let (service, ledger) = charges(
        &quiet(store.clone()),
        Policy {
            naturally_idempotent: true,
            store_timeout: Duration::from_millis(50),
            ..Policy::default()
        },
    );
    send(&service, post("/", "k", "x")).await;
    assert!(send(&service, post("/", "k", "x")).await.is_replay());
    store.down(true);
    assert_eq!(
        send(&service, post("/", "new", "x")).await.problem(),
        "store-unavailable"
    );
    assert_eq!(ledger.len(), 1);
}

#[tokio::test]
async fn a_key_from_the_body_reaches_a_service_that_is_called_without_its_store() {
    let (store, _) = faulty();
    let policy = Policy {
        key_source: KeySource::Body("/k".parse().unwrap()),
        naturally_idempotent: true,
        fail_open: true,
        store_timeout: Duration::from_millis(50),
        ..Policy::default()
    };
    let service = common::guard(
        &quiet(store.clone()),
        policy,
        |request: Request<Body>| async move {
            let key = request.headers()["idempotency-key"]
                .to_str()
                .unwrap()
                .to_owned();
            let body = request
                .into_body()
                .collect()
                .await
                .map_err(Broken)?
                .to_bytes();
            Ok(Response::new(Body::from(format!("{key} {body:?}"))))
        },
    );
    store.down(true);
    let got = send(&service, post("/", "ignored", "{\"k\":\"mine\"}")).await;
    assert_eq!(&got.body[..], br#"mine b"{\"k\":\"mine\"}""#);
}
