//! Keys that are not in a header: read from the body, or derived from parts of the request.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use common::{Broken, Got, Guarded, Ledger, by, charged, faulty, guard, quiet, send};
use hapax::core::policy::DERIVED_RETENTION_MAX;
use hapax::{Body, Hapax, KeyRule, KeySource, Part, Policy, Principal};
use hapax_core::{Memory, Secret};
use hapax_testkit::ManualClock;
use http::{HeaderMap, HeaderValue, Request};
use http_body_util::{BodyExt, Full};
use tower::Layer;

/// A service that records exactly what reached it.
#[derive(Clone, Default)]
struct Inner {
    ledger: Ledger,
    seen: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
}

impl Inner {
    fn behind(&self, hapax: &Hapax, policy: Policy) -> Guarded {
        let inner = self.clone();
        guard(hapax, policy, move |request: Request<Body>| {
            let inner = inner.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.map_err(Broken)?.to_bytes();
                inner
                    .seen
                    .lock()
                    .unwrap()
                    .push((parts.headers, body.clone()));
                Ok(charged(inner.ledger.add(String::from_utf8_lossy(&body))))
            }
        })
    }

    fn key(&self, number: usize) -> Option<String> {
        let seen = self.seen.lock().unwrap();
        seen[number]
            .0
            .get("idempotency-key")
            .map(|key| key.to_str().unwrap().to_owned())
    }
}

fn from_body(key: KeyRule) -> Policy {
    Policy {
        key,
        key_source: KeySource::Body("/client_token".parse().unwrap()),
        ..Policy::default()
    }
}

fn json(body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    Request::post("/charges")
        .header("content-type", "application/json")
        .body(Full::new(body.into()))
        .unwrap()
}

fn with(
    mut request: Request<Full<Bytes>>,
    name: &'static str,
    value: &'static str,
) -> Request<Full<Bytes>> {
    request
        .headers_mut()
        .append(name, HeaderValue::from_static(value));
    request
}

fn detail(got: &Got) -> String {
    let text = std::str::from_utf8(&got.body).unwrap();
    text.split("\"detail\":\"")
        .nth(1)
        .unwrap()
        .split("\",\"code\"")
        .next()
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn a_whole_number_in_the_body_is_the_key_of_its_digits() {
    let (store, _) = faulty();
    let inner = Inner::default();
    let service = inner.behind(&quiet(store), from_body(KeyRule::Required));
    let first = send(
        &service,
        json(r#"{"client_token": 9007199254740993, "amount": 5}"#),
    )
    .await;
    assert_eq!((first.status.as_u16(), first.is_replay()), (201, false));
    assert_eq!(inner.key(0).as_deref(), Some("9007199254740993"));
    assert!(
        send(
            &service,
            json(r#"{"client_token": 9007199254740993, "amount": 5}"#)
        )
        .await
        .is_replay()
    );
    // The next number is another key, although both are the same as a double.
    let next = send(
        &service,
        json(r#"{"client_token": 9007199254740992, "amount": 5}"#),
    )
    .await;
    assert_eq!((next.status.as_u16(), next.is_replay()), (201, false));
    // As a string it is the same key for a different request: refused, neither run again nor
    // replayed.
    assert_eq!(
        send(
            &service,
            json(r#"{"client_token": "9007199254740993", "amount": 5}"#)
        )
        .await
        .problem(),
        "key-reused"
    );
    assert_eq!(inner.ledger.lines().len(), 2);
}

#[tokio::test]
async fn a_key_in_the_body_makes_one_effect_and_reaches_the_service_in_its_field() {
    let (store, _) = faulty();
    let inner = Inner::default();
    let service = inner.behind(&quiet(store), from_body(KeyRule::Required));
    let body = r#"{"amount": 5, "client_token": "order 17"}"#;
    // The header field is ignored, whatever it contains and however often it occurs.
    let first = send(
        &service,
        with(
            with(json(body), "idempotency-key", "else"),
            "idempotency-key",
            "a, b",
        ),
    )
    .await;
    assert_eq!((first.status.as_u16(), first.is_replay()), (201, false));
    for _ in 0..3 {
        assert!(send(&service, json(body)).await.is_replay());
    }
    // A different request under the same key, spelled differently.
    let other = r#"{"client_token": "\u006frder 17", "amount": 6}"#;
    assert_eq!(send(&service, json(other)).await.problem(), "key-reused");
    assert_eq!(inner.ledger.lines(), [body]);
    assert_eq!(
        inner.key(0).as_deref(),
        Some("\"order 17\""),
        "as any other key that cannot be bare"
    );
}

#[tokio::test]
async fn a_key_at_the_end_of_a_body_that_was_spilled_to_a_file_is_found() {
    let (store, _) = faulty();
    let inner = Inner::default();
    let policy = Policy {
        body_memory_bytes_max: 1_024,
        ..from_body(KeyRule::Required)
    };
    let service = inner.behind(&quiet(store), policy);
    let body = format!(
        "{{\"note\":[{}0],\"client_token\":\"k\"}}",
        "\"padding\",".repeat(20_000)
    );
    assert_eq!(send(&service, json(body.clone())).await.status, 201);
    assert!(send(&service, json(body.clone())).await.is_replay());
    assert_eq!(
        (inner.ledger.lines(), inner.key(0).as_deref()),
        (vec![body], Some("k"))
    );
}

#[tokio::test]
async fn a_body_in_which_another_reader_might_find_another_key_is_refused() {
    let cases: [(&[u8], &str); 21] = [
        (
            br#"{"client_token":"a","client_token":"b"}"#,
            "has a member name twice",
        ),
        (
            br#"{"client_token":"a","x":[{"y":1,"y":2}]}"#,
            "has a member name twice",
        ),
        (
            br#"{"client_token":"a","Client_Token":"b"}"#,
            "only in letter case",
        ),
        (br#"{"CLIENT_TOKEN":"b"}"#, "only in letter case"),
        (
            r#"{"client_to\u212Aen":"b"}"#.as_bytes(),
            "only in letter case",
        ),
        (b"\xef\xbb\xbf{\"client_token\":\"a\"}", "byte order mark"),
        (br#"{"client_token":"a""#, "not one well-formed JSON text"),
        (br#"{"client_token":"a",}"#, "not one well-formed JSON text"),
        (
            br#"{"client_token":"a"} {}"#,
            "not one well-formed JSON text",
        ),
        (
            br#"{/* c */"client_token":"a"}"#,
            "not one well-formed JSON text",
        ),
        (
            br#"{"client_token":"\ud800"}"#,
            "not one well-formed JSON text",
        ),
        (b"\x1f\x8b\x08 compressed", "not one well-formed JSON text"),
        (
            br#"{"client_token":7.0}"#,
            "or a whole number in plain digits",
        ),
        (br#"{"client_token":7e0}"#, "something else than a string"),
        (br#"{"client_token":-0}"#, "something else than a string"),
        (br#"{"client_token":true}"#, "something else than a string"),
        (br#"{"client_token":["a"]}"#, "something else than a string"),
        (
            br#"{"client_token":{"a":1}}"#,
            "something else than a string",
        ),
        (br#"{"client_token":""}"#, "an empty text"),
        (br#"{"client_token":"a\n"}"#, "printable ASCII"),
        (r#"{"client_token":"é"}"#.as_bytes(), "printable ASCII"),
    ];
    for key in [KeyRule::Required, KeyRule::Optional] {
        let (store, _) = faulty();
        let inner = Inner::default();
        let service = inner.behind(&quiet(store), from_body(key));
        for (body, words) in cases {
            let got = send(&service, json(body)).await;
            assert_eq!(
                got.problem(),
                "key-malformed",
                "{key:?} {}",
                body.escape_ascii()
            );
            assert!(
                detail(&got).contains(words),
                "{}: {}",
                body.escape_ascii(),
                detail(&got)
            );
        }
        let long = format!("{{\"client_token\":\"{}\"}}", "k".repeat(256));
        assert!(detail(&send(&service, json(long)).await).contains("more than 255 bytes"));
        let deep = format!(
            "{{\"x\":{}{},\"client_token\":\"k\"}}",
            "[".repeat(200),
            "]".repeat(200)
        );
        assert!(detail(&send(&service, json(deep)).await).contains("nested too deeply"));
        assert_eq!(inner.ledger.len(), 0);
    }
}

#[tokio::test]
async fn without_a_key_in_the_body_a_request_is_refused_or_passes_by_the_rule() {
    let bodies: [&[u8]; 5] = [
        b"",
        b"{}",
        br#"{"client_token":null}"#,
        br#"{"x":{"client_token":"k"}}"#,
        b"17",
    ];
    let (store, _) = faulty();
    let inner = Inner::default();
    let (required, optional) = (from_body(KeyRule::Required), from_body(KeyRule::Optional));
    let hapax = quiet(store.clone());
    let service = inner.behind(&hapax, required);
    for body in bodies {
        let got = send(&service, json(body)).await;
        assert_eq!(got.problem(), "key-missing");
        assert!(
            detail(&got).contains("/client_token in the JSON body"),
            "{}",
            detail(&got)
        );
    }
    assert_eq!(
        send(
            &service,
            Request::post("/charges?idem=1")
                .body(Full::from("{}"))
                .unwrap()
        )
        .await
        .problem(),
        "key-in-url"
    );
    assert_eq!(inner.ledger.len(), 0);

    let service = inner.behind(&hapax, optional);
    for (number, body) in bodies.into_iter().chain([&b"a=1&b=2"[..]]).enumerate() {
        // A body that is not JSON and is not declared as JSON has no key either.
        let mut request = with(json(body), "accept-encoding", "gzip");
        if number == bodies.len() {
            request.headers_mut().insert(
                "content-type",
                HeaderValue::from_static("application/x-www-form-urlencoded"),
            );
        }
        let got = send(&service, request).await;
        assert_eq!(
            (got.status.as_u16(), got.header("idempotency-expires")),
            (201, None)
        );
        let (headers, passed) = inner.seen.lock().unwrap()[number].clone();
        assert_eq!(passed, body, "the body that was read is passed on");
        assert_eq!(
            headers["accept-encoding"], "gzip",
            "an unguarded request is left as it is"
        );
        assert!(!headers.contains_key("hapax-fence") && !headers.contains_key("idempotency-key"));
    }
}

#[tokio::test]
async fn who_is_asking_matters_only_where_there_is_a_key() {
    let (store, _) = faulty();
    let inner = Inner::default();
    let handler = inner.behind(
        &quiet(store.clone()),
        Policy {
            key: KeyRule::Off,
            ..Policy::default()
        },
    );
    let layer = quiet(store)
        .guard()
        .policy(from_body(KeyRule::Optional))
        .principal(|_| None::<Principal>)
        .build()
        .unwrap();
    let service = layer.layer(handler);
    assert_eq!(send(&service, json("{}")).await.status, 201);
    assert_eq!(
        send(&service, json(r#"{"client_token":"k"}"#))
            .await
            .problem(),
        "principal-missing"
    );
    assert_eq!(inner.ledger.lines(), ["{}"]);
}

fn derived(key: KeyRule, parts: &[Part]) -> Policy {
    Policy {
        key,
        key_source: KeySource::Derived(parts.to_vec()),
        retention: DERIVED_RETENTION_MAX,
        tombstone: Duration::ZERO,
        ..Policy::default()
    }
}

fn order_and_amount() -> [Part; 3] {
    [
        Part::Principal,
        Part::Header("x-order".into()),
        Part::Body("/amount".parse().unwrap()),
    ]
}

fn order(order: &'static str, body: &'static str) -> Request<Full<Bytes>> {
    by(with(json(body), "x-order", order), "ada")
}

#[tokio::test]
async fn requests_that_agree_in_every_part_have_one_effect_within_the_window() {
    let clock = ManualClock::new();
    let store = Arc::new(Memory::new(
        Arc::new(clock.clone()),
        Secret::from_bytes([7; 32]),
    ));
    let inner = Inner::default();
    let policy = derived(KeyRule::Required, &order_and_amount());
    let node = || inner.behind(&quiet(store.clone()), policy.clone());
    let service = node();
    assert!(
        !send(&service, order("17", r#"{"amount":5}"#))
            .await
            .is_replay()
    );
    assert!(
        send(&service, order("17", r#"{"amount":5}"#))
            .await
            .is_replay()
    );
    let key = inner.key(0).unwrap();
    assert!(key.starts_with("drv1_") && key.len() == 69, "{key}");
    // Every part counts: each of these gives another key, not the same key with a different
    // request.
    for other in [
        order("18", r#"{"amount":5}"#),
        order("17", r#"{"amount":5.0}"#),
        by(order("17", r#"{"amount":5}"#), "bob"),
    ] {
        let got = send(&service, other).await;
        assert_eq!((got.status.as_u16(), got.is_replay()), (201, false));
    }
    // The fingerprint still covers the whole request.
    assert_eq!(
        send(&service, order("17", r#"{"amount":5,"note":"again"}"#))
            .await
            .problem(),
        "key-reused"
    );
    // After the window the request is new, and no tombstone refuses it.
    clock.advance(DERIVED_RETENTION_MAX);
    assert!(
        !send(&node(), order("17", r#"{"amount":5}"#))
            .await
            .is_replay()
    );
    assert_eq!(inner.ledger.len(), 5);
}

#[tokio::test]
async fn a_part_that_is_absent_is_named_or_lets_the_request_pass() {
    let (store, _) = faulty();
    let inner = Inner::default();
    let service = inner.behind(
        &quiet(store.clone()),
        derived(KeyRule::Required, &order_and_amount()),
    );
    for (request, words) in [
        (json(r#"{"amount":5}"#), "the header x-order"),
        (order("17", "{}"), "/amount in the JSON body"),
        (
            order("17", r#"{"amount":null}"#),
            "/amount in the JSON body",
        ),
    ] {
        let got = send(&service, request).await;
        assert_eq!(got.problem(), "key-missing");
        assert!(detail(&got).contains(words), "{}", detail(&got));
    }
    assert_eq!(
        send(&service, order("17", r#"{"amount":5,"amount":6}"#))
            .await
            .problem(),
        "key-malformed"
    );
    assert_eq!(inner.ledger.len(), 0);
    let service = inner.behind(
        &quiet(store),
        derived(KeyRule::Optional, &order_and_amount()),
    );
    for _ in 0..2 {
        assert!(!send(&service, json(r#"{"amount":5}"#)).await.is_replay());
    }
    assert_eq!(
        inner.ledger.len(),
        2,
        "without all parts there is no key, and nothing is guarded"
    );
}

#[tokio::test]
async fn a_layer_says_beforehand_what_it_may_have_to_do_with() {
    let layer = |policy: Policy| {
        let (store, _) = faulty();
        quiet(store)
            .guard()
            .policy(policy)
            .principal(|_| Some(Principal::Anonymous))
            .build()
            .unwrap()
            .layer(())
    };
    let head = |method: &str, key: bool| {
        let request = Request::builder().method(method).uri("/x");
        let request = if key {
            request.header("idempotency-key", "k")
        } else {
            request
        };
        request.body(()).unwrap().into_parts().0
    };
    let asks = |policy: Policy| {
        let layer = layer(policy);
        [head("POST", true), head("POST", false), head("GET", true)]
            .map(|parts| layer.may_guard(&parts))
    };
    assert_eq!(asks(Policy::default()), [true, false, false]);
    assert_eq!(
        asks(Policy {
            key: KeyRule::Required,
            ..Policy::default()
        }),
        [true, true, false]
    );
    assert_eq!(
        asks(Policy {
            key: KeyRule::Off,
            ..Policy::default()
        }),
        [false; 3]
    );
    assert_eq!(asks(from_body(KeyRule::Optional)), [true, true, false]);
    assert_eq!(
        asks(derived(KeyRule::Optional, &[Part::Principal])),
        [true, true, false]
    );
}
