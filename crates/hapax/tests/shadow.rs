//! Shadow mode: it counts what would have happened, and refuses, replays, changes and delays
//! nothing.

mod common;

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use common::{
    Broken, Gate, Got, Guarded, Ledger, by, charged, charges, faulty, gated, guard, post, quiet,
    send, spawn,
};
use hapax::{
    Body, Event, Hapax, KeyRule, KeySource, Limits, NeverDispatched, Part, Policy, Principal,
    Store, Velocity, Would,
};
use hapax_core::store::ListQuery;
use hapax_testkit::{Fault, Verb};
use http::{HeaderValue, Request};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use tower::{Layer, ServiceExt, service_fn};

/// Collects what the observer reports would have happened.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    fn watching(&self, store: Arc<dyn Store>) -> Hapax {
        let told = self.0.clone();
        let observer = move |event: &Event<'_>| match event {
            Event::Shadowed { would, .. } => told.lock().unwrap().push(word(would)),
            Event::Rejected { .. } | Event::Replayed { .. } | Event::Dispatching(_) => {
                panic!("a shadow did something: {event:?}")
            }
            _ => {}
        };
        Hapax::builder_shared(store)
            .sweep(None)
            .observer(observer)
            .build()
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn word(would: &Would) -> String {
    match would {
        Would::Run => "run".to_owned(),
        Would::Replay => "replay".to_owned(),
        Would::Reject(rejection) => rejection.row().slug.to_owned(),
    }
}

fn shadow() -> Policy {
    Policy {
        shadow: true,
        store_timeout: Duration::from_millis(200),
        ..Policy::default()
    }
}

/// A service that answers with everything it received, and sets fields that Hapax usually sets.
fn mirror(hapax: &Hapax, policy: Policy) -> (Guarded, Ledger) {
    let ledger = Ledger::default();
    let service = guard(hapax, policy, {
        let ledger = ledger.clone();
        move |request: Request<Body>| {
            let ledger = ledger.clone();
            async move {
                assert!(request.extensions().get::<hapax::Operation>().is_none());
                let (parts, body) = request.into_parts();
                let body = body.collect().await.map_err(Broken)?.to_bytes();
                ledger.add(format!("{:?} {body:?}", parts.headers));
                let mut response = charged(0);
                *response.body_mut() = Body::from(format!(
                    "{} {} {:?} {body:?}",
                    parts.method, parts.uri, parts.headers
                ));
                Ok(response)
            }
        }
    });
    (service, ledger)
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

/// Makes a request that can be sent twice.
type Made<'a> = &'a dyn Fn() -> Request<Full<Bytes>>;

#[tokio::test]
async fn nothing_is_refused_or_changed_and_what_would_have_been_is_counted() {
    let (store, _) = faulty();
    let told = Told::default();
    let hapax = told.watching(store.clone());
    let (service, ledger) = mirror(
        &hapax,
        Policy {
            key: KeyRule::Required,
            ..shadow()
        },
    );
    let (plain, unguarded) = mirror(
        &quiet(store),
        Policy {
            key: KeyRule::Off,
            ..Policy::default()
        },
    );
    let without_key = || Request::post("/charges").body(Full::from("5")).unwrap();
    let requests: [(Made<'_>, &str); 11] = [
        (
            &|| with(post("/charges", "\"k\"", "5"), "accept-encoding", "gzip"),
            "run",
        ),
        (
            &|| with(post("/charges", "k", "5"), "accept-encoding", "br"),
            "replay",
        ),
        (&|| post("/charges", "k", "6"), "key-reused"),
        (&|| by(post("/charges", "k", "6"), "ada"), "run"),
        (&without_key, "key-missing"),
        (&|| post("/charges", "a b", "5"), "key-malformed"),
        (
            &|| with(post("/charges", "a", "5"), "idempotency-key", "b"),
            "key-malformed",
        ),
        (&|| post("/charges?idem=1", "a", "5"), "key-in-url"),
        (
            &|| {
                with(
                    post("/charges", "d", "5"),
                    "idempotency-deadline",
                    "tomorrow",
                )
            },
            "deadline-malformed",
        ),
        (
            &|| {
                with(
                    post("/charges", "d", "5"),
                    "idempotency-deadline",
                    "@1700000000",
                )
            },
            "deadline-passed",
        ),
        (
            &|| with(post("/charges", "p", "5"), "prefer", "wait=10"),
            "run",
        ),
    ];
    for (request, would) in requests {
        let request = || with(request(), "x-request-id", "request-7");
        let (watched, bare) = (
            send(&service, request()).await,
            send(&plain, request()).await,
        );
        assert_eq!(told.take(), [would]);
        assert_eq!(
            (watched.status, &watched.body),
            (bare.status, &bare.body),
            "{would}"
        );
        // The service's fields pass unchanged, even those that Hapax usually sets, and none is
        // added.
        assert_eq!(watched.header("idempotent-replayed"), Some("true"));
        assert_eq!(watched.header("idempotency-expires"), None);
        let mut headers = watched.headers;
        headers.remove("idempotent-replayed");
        assert_eq!(headers, bare.headers, "{would}");
    }
    assert_eq!(ledger.lines(), unguarded.lines());
    // Requests that would not be guarded are not counted.
    let get = Request::get("/charges")
        .header("idempotency-key", "k")
        .body(Full::from(""))
        .unwrap();
    assert_eq!(
        (send(&service, get).await.status.as_u16(), told.take()),
        (201, vec![])
    );
}

#[tokio::test]
async fn would_be_conflicts_run_and_the_answers_extensions_say_what_would_have_been() {
    let (store, _) = faulty();
    let told = Told::default();
    let (ledger, gate) = (Ledger::default(), Gate::new());
    let service = guard(&told.watching(store), shadow(), {
        let (ledger, gate) = (ledger.clone(), gate.clone());
        move |_| {
            let (ledger, gate) = (ledger.clone(), gate.clone());
            async move {
                let number = ledger.add("effect");
                gate.pass().await;
                Ok(charged(number))
            }
        }
    });
    let first = spawn(&service, post("/charges", "k", "5"));
    gate.wait_for(1).await;
    let second = tokio::spawn(service.clone().oneshot(post("/charges", "k", "5")));
    gate.wait_for(2).await;
    assert_eq!(told.take(), ["run", "in-flight"]);
    gate.open(2);
    assert_eq!(first.await.unwrap().body, &b"{\"charge\":1}"[..]);
    let second = second.await.unwrap().unwrap();
    assert_eq!(
        second.extensions().get::<Would>().map(word).as_deref(),
        Some("in-flight")
    );
    assert_eq!(Got::read(second).await.body, &b"{\"charge\":2}"[..]);
    gate.open(1);
    send(&service, post("/charges", "k", "5")).await;
    assert_eq!((told.take(), ledger.len()), (vec!["replay".to_owned()], 3));
}

/// The repeat shows how the status of the first answer was classified.
#[tokio::test]
async fn what_an_attempt_would_have_ended_in_is_remembered() {
    for (status, again) in [
        (201, "replay"),
        (404, "replay"),
        (503, "run"),
        (502, "outcome-unknown"),
    ] {
        let (store, _) = faulty();
        let told = Told::default();
        let service = guard(&told.watching(store), shadow(), move |_| async move {
            let mut response = charged(1);
            *response.status_mut() = status.try_into().unwrap();
            Ok(response)
        });
        for would in ["run", again] {
            assert_eq!(
                send(&service, post("/charges", "k", "5")).await.status,
                status
            );
            assert_eq!(told.take(), [would], "{status}");
        }
    }
    // A route that keeps no answers could not replay one.
    let (store, _) = faulty();
    let told = Told::default();
    let (service, _) = mirror(
        &told.watching(store),
        Policy {
            keep_answers: false,
            ..shadow()
        },
    );
    for would in ["run", "answer-not-kept"] {
        send(&service, post("/charges", "k", "5")).await;
        assert_eq!(told.take(), [would]);
    }
}

#[tokio::test]
async fn an_error_of_the_service_goes_up_as_it_is() {
    let (store, _) = faulty();
    let told = Told::default();
    let hapax = told.watching(store);
    type BoxError = Box<dyn std::error::Error + Send + Sync>;
    let layer = || hapax.guard().policy(shadow()).anonymous().build().unwrap();
    let never = layer().layer(service_fn(|_: Request<Body>| async {
        Err::<http::Response<Body>, BoxError>(Box::new(NeverDispatched("refused".into())))
    }));
    let breaks = layer().layer(service_fn(|_: Request<Body>| async {
        Err::<http::Response<Body>, BoxError>("reset".into())
    }));
    assert!(
        never
            .clone()
            .oneshot(post("/a", "k", "5"))
            .await
            .err()
            .unwrap()
            .is::<NeverDispatched>()
    );
    assert!(never.oneshot(post("/a", "k", "5")).await.is_err());
    assert_eq!(
        told.take(),
        ["run", "run"],
        "what never left would have been released"
    );
    assert_eq!(
        breaks
            .clone()
            .oneshot(post("/b", "k", "5"))
            .await
            .err()
            .unwrap()
            .to_string(),
        "reset"
    );
    assert!(breaks.oneshot(post("/b", "k", "5")).await.is_err());
    assert_eq!(told.take(), ["run", "outcome-unknown"]);
}

/// A body that arrives in these pieces, without a declared length.
struct Pieces(Vec<Result<&'static str, std::io::Error>>);

impl futures_core::Stream for Pieces {
    type Item = Result<Frame<Bytes>, std::io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = (!self.0.is_empty()).then(|| self.0.remove(0));
        Poll::Ready(next.map(|piece| piece.map(|text| Frame::data(Bytes::from(text)))))
    }
}

fn in_pieces(pieces: Vec<Result<&'static str, std::io::Error>>) -> Request<StreamBody<Pieces>> {
    Request::post("/charges")
        .header("idempotency-key", "k")
        .body(StreamBody::new(Pieces(pieces)))
        .unwrap()
}

#[tokio::test]
async fn a_body_over_the_limit_is_passed_on_whole_and_one_that_breaks_off_breaks_off() {
    for memory in [0, 4, 8] {
        let (store, _) = faulty();
        let told = Told::default();
        let policy = Policy {
            body_memory_bytes_max: memory,
            body_bytes_max: 8,
            ..shadow()
        };
        let read = Arc::new(Mutex::new(Vec::new()));
        let log = read.clone();
        let service = guard(
            &told.watching(store.clone()),
            policy,
            move |request: Request<Body>| {
                let log = log.clone();
                async move {
                    let mut body = request.into_body();
                    let (mut bytes, mut error) = (Vec::new(), None);
                    while let Some(frame) = body.frame().await {
                        match frame {
                            Ok(frame) => bytes.extend_from_slice(&frame.into_data().unwrap()),
                            Err(cause) => error = Some(cause.to_string()),
                        }
                    }
                    log.lock()
                        .unwrap()
                        .push((String::from_utf8(bytes).unwrap(), error));
                    Ok(charged(1))
                }
            },
        );
        let take = || read.lock().unwrap().pop().unwrap();
        let got = send(
            &service,
            in_pieces(vec![Ok("abc"), Ok("def"), Ok("ghi"), Ok("jkl"), Ok("mno")]),
        )
        .await;
        assert_eq!(
            (got.status.as_u16(), told.take()),
            (201, vec!["body-too-large".to_owned()])
        );
        assert_eq!(
            take(),
            ("abcdefghijklmno".to_owned(), None),
            "with {memory} bytes in memory"
        );
        // The declared length is too large.
        send(&service, post("/charges", "k", "0123456789")).await;
        assert_eq!(
            (take(), told.take()),
            (
                ("0123456789".to_owned(), None),
                vec!["body-too-large".to_owned()]
            )
        );
        // A truncated body must not look complete.
        send(
            &service,
            in_pieces(vec![
                Ok("abc"),
                Ok("def"),
                Err(std::io::Error::other("reset")),
                Ok("ghi"),
            ]),
        )
        .await;
        assert_eq!(
            (take(), told.take()),
            (
                ("abcdef".to_owned(), Some("reset".to_owned())),
                vec!["body-unreadable".to_owned()]
            )
        );
        assert!(
            store
                .list(ListQuery {
                    state: None,
                    after: None,
                    limit: 10
                })
                .await
                .unwrap()
                .is_empty()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_or_hangs_delays_a_request_by_its_timeout_at_most() {
    let (store, _) = faulty();
    let told = Told::default();
    let (service, ledger) = mirror(&told.watching(store.clone()), shadow());
    store.down(true);
    let began = tokio::time::Instant::now();
    assert_eq!(send(&service, post("/charges", "a", "5")).await.status, 201);
    assert!(
        began.elapsed() <= Duration::from_millis(200),
        "{:?}",
        began.elapsed()
    );
    store.down(false);
    assert_eq!(
        (told.take(), ledger.len()),
        (vec!["store-unavailable".to_owned()], 1)
    );

    store.fail_next(Verb::PutIf, Fault::Hang, 1_000);
    let began = tokio::time::Instant::now();
    assert_eq!(send(&service, post("/charges", "b", "5")).await.status, 201);
    assert!(
        began.elapsed() <= Duration::from_millis(200),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(
        (told.take(), ledger.len()),
        (vec!["store-unavailable".to_owned()], 2)
    );
}

#[tokio::test(start_paused = true)]
async fn an_end_that_the_store_does_not_take_delays_the_answer_by_its_timeout_at_most() {
    let (store, clock) = faulty();
    let told = Told::default();
    let (service, ledger) = mirror(&told.watching(store.clone()), shadow());
    store.let_through(Verb::PutIf, 1);
    store.fail_next(Verb::PutIf, Fault::Hang, 1);
    let began = tokio::time::Instant::now();
    assert_eq!(send(&service, post("/charges", "k", "5")).await.status, 201);
    assert!(
        began.elapsed() <= Duration::from_millis(200),
        "{:?}",
        began.elapsed()
    );
    store.release();
    clock.advance(Duration::from_secs(11));
    // The record has lapsed. A guarding layer would have retried the completion; a shadow does not,
    // so the outcome is unknown.
    send(&service, post("/charges", "k", "5")).await;
    assert_eq!(
        (told.take(), ledger.len()),
        (vec!["run".to_owned(), "outcome-unknown".to_owned()], 2)
    );
}

/// Notifies when it is dropped.
struct Dropped(Arc<tokio::sync::Notify>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[tokio::test]
async fn a_caller_that_hangs_up_ends_the_work_as_without_the_layer_and_leaves_nothing_behind() {
    let (store, clock) = faulty();
    let told = Told::default();
    let hapax = told.watching(store.clone());
    let (gate, ended) = (Gate::new(), Arc::new(tokio::sync::Notify::new()));
    let service = guard(&hapax, shadow(), {
        let (gate, ended) = (gate.clone(), ended.clone());
        move |_| {
            let (gate, dropped) = (gate.clone(), Dropped(ended.clone()));
            async move {
                gate.pass().await;
                drop(dropped);
                Ok(charged(1))
            }
        }
    });
    let caller = spawn(&service, post("/charges", "k", "5"));
    gate.wait_for(1).await;
    caller.abort();
    ended.notified().await;
    // No attempt or task is left for a drain to wait for.
    assert_eq!(hapax.drain(Duration::from_secs(5)).await.left_unknown, 0);
    clock.advance(Duration::from_secs(11));
    let after = Told::default();
    let (again, _) = mirror(&after.watching(store), shadow());
    send(&again, post("/charges", "k", "5")).await;
    assert_eq!(
        (told.take(), after.take()),
        (vec!["run".to_owned()], vec!["outcome-unknown".to_owned()])
    );
    // A draining node would refuse the request; a shadow lets it through.
    gate.open(1);
    assert_eq!(
        send(&service, post("/charges", "new", "5")).await.status,
        201
    );
    assert_eq!(told.take(), ["draining"]);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_while_the_work_runs_and_not_for_longer_than_an_attempt_may() {
    let (store, _) = faulty();
    let told = Told::default();
    let policy = Policy {
        longest_attempt: Duration::from_secs(60),
        ..shadow()
    };
    let gate = Gate::new();
    let service = guard(&told.watching(store.clone()), policy, {
        let gate = gate.clone();
        move |_| {
            let gate = gate.clone();
            async move {
                gate.pass().await;
                Ok(charged(1))
            }
        }
    });
    let caller = spawn(&service, post("/charges", "k", "5"));
    gate.wait_for(1).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let renewed = store.calls(Verb::Renew);
    assert!(renewed >= 8, "{renewed}");
    tokio::time::sleep(Duration::from_secs(600)).await;
    let at_the_end = store.calls(Verb::Renew);
    assert!(at_the_end <= 20, "{at_the_end}");
    gate.open(1);
    assert_eq!(caller.await.unwrap().status, 201);
}

#[tokio::test]
async fn what_a_shadow_saw_is_nothing_to_the_layer_that_guards_after_it() {
    let (store, _) = faulty();
    let hapax = quiet(store.clone());
    let (watched, _) = mirror(&hapax, shadow());
    send(&watched, post("/charges", "k", "5")).await;
    let (guarded, ledger) = common::charges(&hapax, Policy::default());
    assert!(
        send(&guarded, post("/charges", "k", "6"))
            .await
            .header("idempotency-expires")
            .is_some()
    );
    assert_eq!(ledger.len(), 1);
    let heads = store
        .list(ListQuery {
            state: None,
            after: None,
            limit: 10,
        })
        .await
        .unwrap();
    let mut namespaces: Vec<_> = heads
        .iter()
        .map(|head| (&*head.scope.namespace, head.kept))
        .collect();
    namespaces.sort_unstable();
    assert_eq!(
        namespaces,
        [("default", true), ("shadow:default", false)],
        "and no answer is kept"
    );
}

/// A shadow uses neither the limit of attempts in flight nor the budgets of new keys.
#[tokio::test(start_paused = true)]
async fn a_shadow_takes_nothing_from_those_who_are_guarded() {
    let (store, _) = faulty();
    let limits = Limits {
        attempts_in_flight_max: 1,
        velocity_entries_max: 1,
        ..Limits::default()
    };
    let hapax = Hapax::builder_shared(store)
        .limits(limits)
        .sweep(None)
        .build();
    let velocity = vec![Velocity {
        by: Part::Header("x-card".into()),
        keys: 1,
        per: Duration::from_secs(3_600),
    }];
    let (watched, seen, gate) = gated(
        &hapax,
        Policy {
            velocity: velocity.clone(),
            ..shadow()
        },
        201,
    );
    let running = spawn(&watched, with(post("/charges", "a", "5"), "x-card", "1"));
    while seen.len() == 0 {
        tokio::task::yield_now().await;
    }
    let (guarded, ledger) = charges(
        &hapax,
        Policy {
            velocity,
            ..Policy::default()
        },
    );
    let got = send(&guarded, with(post("/charges", "b", "5"), "x-card", "2")).await;
    assert_eq!(
        (got.status.as_u16(), ledger.len()),
        (201, 1),
        "while the shadow's attempt has all its room and its one bucket"
    );
    gate.open(1);
    assert_eq!(running.await.unwrap().status, 201);
}

#[test]
#[should_panic(expected = "it may not begin with \"shadow:\"")]
fn a_namespace_of_shadows_is_nobodys() {
    let _ = Hapax::new(hapax::store::memory()).namespace("shadow:shop");
}

#[tokio::test]
async fn keys_in_the_body_and_credentials_that_are_absent_are_seen_in_a_shadow_too() {
    let (store, _) = faulty();
    let told = Told::default();
    let hapax = told.watching(store);
    let policy = Policy {
        key_source: KeySource::Body("/k".parse().unwrap()),
        ..shadow()
    };
    let (service, ledger) = mirror(&hapax, policy.clone());
    for (body, would) in [
        (r#"{"k":"a"}"#, Some("run")),
        (r#"{"k":"a"}"#, Some("replay")),
        ("{}", None),
        (r#"{"k":1.5}"#, Some("key-malformed")),
    ] {
        assert_eq!(
            send(&service, post("/charges", "ignored", body))
                .await
                .status,
            201
        );
        assert_eq!(told.take(), Vec::from_iter(would), "{body}");
    }
    assert!(
        ledger.lines().iter().all(|line| line.contains("ignored")),
        "the key field as it was sent"
    );
    let layer = hapax
        .guard()
        .policy(shadow())
        .principal(|_| None::<Principal>)
        .build()
        .unwrap();
    let nobody = layer.layer(service_fn(|_: Request<Body>| async {
        Ok::<_, std::convert::Infallible>(charged(1))
    }));
    assert_eq!(
        nobody
            .oneshot(post("/charges", "k", "5"))
            .await
            .unwrap()
            .status(),
        201
    );
    assert_eq!(told.take(), ["principal-missing"]);
}
