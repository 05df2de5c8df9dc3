//! The layer, called without a port on small services that keep their own ledger: one effect, exact
//! replays, waiting, scopes.

mod common;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use common::{Got, by, charges, faulty, gated, post, quiet, ready_to_wait, send, spawn};
use hapax::middleware::Origin;
use hapax::{Event, FingerprintPolicy, Hapax, KeyRule, Policy, Principal, RecordId, Scope};
use hapax_core::Key;
use hapax_testkit::Verb;
use http::HeaderValue;
use http_body_util::Full;
use tokio::sync::watch;
use tower::ServiceExt;

#[tokio::test]
async fn one_request_a_hundred_times_in_a_row_has_one_effect() {
    let (store, _) = faulty();
    let (service, ledger) = charges(&quiet(store), Policy::default());
    let first = send(&service, post("/charges", "k", "5")).await;
    assert_eq!(
        (first.status.as_u16(), &first.body[..], first.is_replay()),
        (201, &b"{\"charge\":1}"[..], false)
    );
    for _ in 1..100 {
        let again = send(&service, post("/charges", "\"k\"", "5")).await;
        assert_eq!(
            (again.status, &again.body, again.is_replay()),
            (first.status, &first.body, true)
        );
    }
    assert_eq!(ledger.lines(), ["5"]);
}

#[tokio::test]
async fn twenty_at_once_have_one_effect_and_byte_equal_answers() {
    let (store, _) = faulty();
    let (service, ledger, gate) = gated(&quiet(store), Policy::default(), 201);
    let callers: Vec<_> = (0..20)
        .map(|_| spawn(&service, ready_to_wait(post("/charges", "k", "5"), 30)))
        .collect();
    gate.wait_for(1).await;
    gate.open(20);
    for caller in callers {
        let got = caller.await.unwrap();
        assert_eq!(
            (got.status.as_u16(), &got.body[..]),
            (201, &b"{\"charge\":1}"[..])
        );
    }
    assert_eq!(ledger.len(), 1);
}

#[tokio::test]
async fn a_replay_is_faithful_apart_from_the_published_list() {
    let (store, _) = faulty();
    // Replays from memory, and from the store on another node.
    let (service, _) = charges(&quiet(store.clone()), Policy::default());
    let (elsewhere, _) = charges(&quiet(store), Policy::default());
    let first = send(&service, post("/charges", "k", "5")).await;

    assert_eq!(first.header("set-cookie"), Some("session=first-caller"));
    assert_eq!(
        first.header("idempotent-replayed"),
        None,
        "the service cannot speak as us"
    );
    assert!(
        first
            .header("idempotency-expires")
            .is_some_and(|date| date.ends_with(" GMT"))
    );

    let mut expected = first.headers.clone();
    for name in ["set-cookie", "date", "connection", "x-hop", "x-request-id"] {
        expected.remove(name);
    }
    expected.insert("idempotent-replayed", HeaderValue::from_static("true"));
    for mut again in [
        send(&service, post("/charges", "k", "5")).await,
        send(&elsewhere, post("/charges", "k", "5")).await,
    ] {
        let id = again.headers.remove("x-request-id");
        assert!(
            id.is_some() && id.as_ref() != first.headers.get("x-request-id"),
            "each request has its own"
        );
        assert_eq!((&again.headers, &again.body), (&expected, &first.body));
        let links: Vec<_> = again.headers.get_all("link").iter().collect();
        assert_eq!(links, ["<a>", "<b>"]);
    }
}

#[tokio::test]
async fn cookies_are_replayed_only_where_the_route_says_so() {
    let (store, _) = faulty();
    let (service, _) = charges(
        &quiet(store),
        Policy {
            replay_cookies: true,
            ..Policy::default()
        },
    );
    send(&service, post("/charges", "k", "5")).await;
    assert_eq!(
        send(&service, post("/charges", "k", "5"))
            .await
            .header("set-cookie"),
        Some("session=first-caller")
    );
}

#[tokio::test]
async fn a_waiter_gets_what_a_replay_gets_and_not_what_the_first_caller_got() {
    let (store, _) = faulty();
    let (service, ledger, gate) = gated(&quiet(store), Policy::default(), 201);
    let first = spawn(&service, post("/charges", "k", "5"));
    gate.wait_for(1).await;
    let waiter = spawn(&service, ready_to_wait(post("/charges", "k", "5"), 30));
    tokio::task::yield_now().await;
    gate.open(2);
    let (first, waiter) = (first.await.unwrap(), waiter.await.unwrap());
    assert_eq!(first.header("set-cookie"), Some("session=first-caller"));
    assert_eq!(waiter.header("set-cookie"), None);
    assert_eq!((waiter.is_replay(), &waiter.body), (true, &first.body));
    assert_eq!(ledger.len(), 1);
}

/// A future that counts how often it is polled.
struct Counted<F>(Pin<Box<F>>, Arc<AtomicUsize>);

impl<F: Future> Future for Counted<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.as_mut().poll(cx)
    }
}

#[tokio::test(start_paused = true)]
async fn two_thousand_waiters_cost_one_execution_and_no_store_polls() {
    let (store, _) = faulty();
    let waiting = Arc::new(watch::Sender::new(0));
    let counter = waiting.clone();
    let observer = move |event: &Event<'_>| {
        counter.send_modify(|count| *count += usize::from(matches!(event, Event::Waiting(_))));
    };
    let hapax = Hapax::builder_shared(store.clone())
        .sweep(None)
        .observer(observer)
        .build();
    let (service, ledger, gate) = gated(&hapax, Policy::default(), 201);
    let polls = Arc::new(AtomicUsize::new(0));
    let callers: Vec<_> = (0..2_000)
        .map(|_| {
            let call = service
                .clone()
                .oneshot(ready_to_wait(post("/charges", "k", "5"), 30));
            tokio::spawn(Counted(Box::pin(call), polls.clone()))
        })
        .collect();
    waiting
        .subscribe()
        .wait_for(|count| *count == 1_999)
        .await
        .unwrap();
    let before = polls.load(Ordering::SeqCst);
    gate.open(2_000);
    let mut replays = 0;
    for caller in callers {
        let got = Got::read(caller.await.unwrap().unwrap()).await;
        assert_eq!(
            (got.status.as_u16(), &got.body[..]),
            (201, &b"{\"charge\":1}"[..])
        );
        replays += usize::from(got.is_replay());
    }
    assert_eq!((ledger.len(), replays), (1, 1_999));
    // One claim and one completion for any number of waiters, and each waiter is woken once.
    assert_eq!((store.calls(Verb::PutIf), store.calls(Verb::Get)), (2, 0));
    assert_eq!(polls.load(Ordering::SeqCst) - before, 2_000);
}

#[tokio::test(start_paused = true)]
async fn waiters_of_an_attempt_that_ended_retryable_get_advice_and_do_not_rush_in() {
    let (store, _) = faulty();
    let (service, ledger, gate) = gated(&quiet(store), Policy::default(), 503);
    let callers: Vec<_> = (0..2_000)
        .map(|_| spawn(&service, ready_to_wait(post("/charges", "k", "5"), 30)))
        .collect();
    gate.wait_for(1).await;
    gate.open(5_000);
    let mut advised = 0;
    for caller in callers {
        let got = caller.await.unwrap();
        if got.status == 503 {
            assert_eq!(
                &got.body[..],
                b"{\"charge\":1}",
                "the first caller hears what the service said"
            );
        } else {
            assert_eq!(
                (got.problem().as_str(), got.header("x-should-retry")),
                ("in-flight", Some("true"))
            );
            advised += 1;
        }
    }
    assert_eq!((ledger.len(), advised), (1, 1_999));
    assert_eq!(send(&service, post("/charges", "k", "5")).await.status, 503);
    assert_eq!(ledger.len(), 2, "a later repeat is a new attempt");
}

#[tokio::test(start_paused = true)]
async fn who_does_not_wait_is_told_to_come_back() {
    let (store, _) = faulty();
    let (service, ledger, gate) = gated(&quiet(store), Policy::default(), 201);
    let first = spawn(&service, post("/charges", "k", "5"));
    gate.wait_for(1).await;
    assert_eq!(
        send(&service, post("/charges", "k", "5")).await.problem(),
        "in-flight"
    );
    // So is a caller whose wait has run out.
    assert_eq!(
        send(&service, ready_to_wait(post("/charges", "k", "5"), 2))
            .await
            .problem(),
        "in-flight"
    );
    gate.open(1);
    assert_eq!(first.await.unwrap().status, 201);
    assert_eq!(ledger.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn waiters_on_another_node_share_one_poll_of_the_store() {
    let (store, _) = faulty();
    let (here, ledger, gate) = gated(&quiet(store.clone()), Policy::default(), 201);
    let (elsewhere, other_ledger) = charges(&quiet(store.clone()), Policy::default());
    let first = spawn(&here, post("/charges", "k", "5"));
    gate.wait_for(1).await;

    let waiters: Vec<_> = (0..500)
        .map(|_| spawn(&elsewhere, ready_to_wait(post("/charges", "k", "5"), 30)))
        .collect();
    let polls_before = store.calls(Verb::Get);
    store.wait_for_calls(Verb::Get, polls_before + 3).await;
    gate.open(1);
    first.await.unwrap();
    for waiter in waiters {
        let got = waiter.await.unwrap();
        assert_eq!(
            (got.status.as_u16(), &got.body[..], got.is_replay()),
            (201, &b"{\"charge\":1}"[..], true)
        );
    }
    assert_eq!((ledger.len(), other_ledger.len()), (1, 0));
    assert!(
        store.calls(Verb::Get) < 10,
        "{} polls",
        store.calls(Verb::Get)
    );
    assert!(
        store.calls(Verb::PutIf) < 10,
        "{} claims",
        store.calls(Verb::PutIf)
    );
}

#[tokio::test]
async fn a_client_that_hangs_up_at_any_moment_does_not_stop_the_attempt() {
    let (store, _) = faulty();
    let hapax = quiet(store);
    let mut began = 0;
    for polls in 0..40 {
        let (service, ledger) = charges(&hapax, Policy::default());
        let key = format!("hang-up-{polls}");
        // The client disconnects after `polls` polls.
        let mut call = Box::pin(service.clone().oneshot(post("/charges", &key, "5")));
        for _ in 0..polls {
            let is_done =
                std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut call).poll(cx).is_ready()))
                    .await;
            if is_done {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(call);
        let got = send(&service, ready_to_wait(post("/charges", &key, "5"), 30)).await;
        assert_eq!(
            (got.status.as_u16(), &got.body[..]),
            (201, &b"{\"charge\":1}"[..]),
            "after {polls} polls"
        );
        assert_eq!(ledger.len(), 1, "after {polls} polls");
        began += usize::from(got.is_replay());
    }
    assert!(
        began > 5,
        "{began} of the hang-ups came after the attempt had begun"
    );
}

#[tokio::test]
async fn a_different_request_is_refused_in_every_state_and_learns_nothing_else() {
    let (store, _) = faulty();
    let (service, _, gate) = gated(&quiet(store.clone()), Policy::default(), 201);
    let (elsewhere, _) = charges(&quiet(store), Policy::default());
    let typed = || {
        let mut request = post("/charges", "k", "5");
        request
            .headers_mut()
            .insert("content-type", HeaderValue::from_static("text/plain"));
        request
    };
    let first = spawn(&service, post("/charges", "k", "5"));
    gate.wait_for(1).await;
    let mut others = vec![
        // While it runs: without waiting, with waiting, and on another node.
        send(&service, post("/charges", "k", "6")).await,
        send(&service, ready_to_wait(post("/charges", "k", "6"), 30)).await,
        send(&elsewhere, post("/charges", "k", "6")).await,
    ];
    gate.open(1);
    first.await.unwrap();
    // When completed: from memory, from the store, and with a different target or header instead of
    // the body.
    others.push(send(&service, post("/charges", "k", "6")).await);
    others.push(send(&elsewhere, post("/charges", "k", "6")).await);
    others.push(send(&service, post("/charges?x=1", "k", "5")).await);
    others.push(send(&service, typed()).await);
    others
        .iter_mut()
        .for_each(|other| assert!(other.headers.remove("x-request-id").is_some()));
    for other in &others {
        assert_eq!(
            (other.status.as_u16(), other.problem().as_str()),
            (422, "key-reused")
        );
        assert_eq!(
            (&other.headers, &other.body),
            (&others[0].headers, &others[0].body)
        );
    }
}

#[tokio::test]
async fn two_scopes_with_the_same_key_and_body_see_nothing_of_each_other() {
    let (store, _) = faulty();
    let hapax = quiet(store.clone());
    let (service, ledger) = charges(&hapax, Policy::default());
    let (other_namespace, other_ledger) =
        charges(&quiet(store).namespace("other"), Policy::default());

    let ada = send(&service, by(post("/charges", "k", "5"), "ada")).await;
    // Another principal, path, method or namespace, and an anonymous caller: each has its own
    // effect.
    let mut patch = by(post("/charges", "k", "5"), "ada");
    *patch.method_mut() = http::Method::PATCH;
    let apart = [
        send(&service, by(post("/charges", "k", "5"), "bob")).await,
        send(&service, by(post("/charges/", "k", "5"), "ada")).await,
        send(&service, patch).await,
        send(&service, post("/charges", "k", "5")).await,
    ];
    for (number, got) in apart.iter().enumerate() {
        assert_eq!(
            (got.is_replay(), got.body.to_vec()),
            (false, format!("{{\"charge\":{}}}", number + 2).into_bytes())
        );
    }
    assert!(
        !send(&other_namespace, by(post("/charges", "k", "5"), "ada"))
            .await
            .is_replay()
    );
    assert_eq!((ledger.len(), other_ledger.len()), (5, 1));
    assert_eq!(
        send(&service, by(post("/charges", "k", "5"), "ada"))
            .await
            .body,
        ada.body
    );

    // A running attempt of one principal does not block another principal, whose different request
    // under the same key is not refused as a reused key.
    let (service, _, gate) = gated(&hapax, Policy::default(), 201);
    let first = spawn(&service, by(post("/slow", "k", "5"), "ada"));
    gate.wait_for(1).await;
    let bob = spawn(&service, by(post("/slow", "k", "6"), "bob"));
    gate.wait_for(2).await;
    gate.open(2);
    assert_eq!(
        (
            first.await.unwrap().status.as_u16(),
            bob.await.unwrap().status.as_u16()
        ),
        (201, 201)
    );
}

#[tokio::test]
async fn what_is_not_guarded_passes_untouched() {
    let (store, _) = faulty();
    let (service, ledger) = charges(&quiet(store.clone()), Policy::default());
    for method in ["GET", "PUT", "DELETE", "OPTIONS"] {
        for _ in 0..2 {
            let mut request = post("/charges", "k", "5");
            *request.method_mut() = method.parse().unwrap();
            assert!(!send(&service, request).await.is_replay());
        }
    }
    let without_key = || {
        http::Request::post("/charges")
            .body(Full::<bytes::Bytes>::from("5"))
            .unwrap()
    };
    send(&service, without_key()).await;
    send(&service, without_key()).await;
    assert_eq!((ledger.len(), store.calls(Verb::PutIf)), (10, 0));
}

#[tokio::test]
async fn a_key_that_does_nothing_is_told_to_its_caller() {
    let status = async |policy: Policy, method: &str, field: &'static str| {
        let (store, _) = faulty();
        // The service cannot set Hapax's own fields.
        let service = common::guard(&quiet(store), policy, async |_| {
            let answer = http::Response::builder().header("idempotency-status", "guarded");
            Ok(answer
                .body(hapax::Body::from(bytes::Bytes::from_static(b"done")))
                .unwrap())
        });
        let mut request = post("/charges", "k", "5");
        *request.method_mut() = method.parse().unwrap();
        let key = request.headers_mut().remove("idempotency-key").unwrap();
        request.headers_mut().insert(field, key);
        send(&service, request)
            .await
            .header("idempotency-status")
            .map(str::to_owned)
    };
    let plain = Policy::default;
    for method in ["PUT", "DELETE", "GET"] {
        assert_eq!(
            status(plain(), method, "idempotency-key").await.as_deref(),
            Some("not-guarded"),
            "{method}"
        );
        assert_eq!(
            status(plain(), method, "x-key").await,
            None,
            "{method} without a key"
        );
        assert_eq!(
            status(
                Policy {
                    key: KeyRule::Off,
                    ..plain()
                },
                method,
                "idempotency-key"
            )
            .await,
            None,
            "keys are ignored"
        );
        let key_source = hapax::KeySource::Body("/token".parse().unwrap());
        assert_eq!(
            status(
                Policy {
                    key_source,
                    ..plain()
                },
                method,
                "idempotency-key"
            )
            .await,
            None,
            "the field holds no key here"
        );
    }
    assert_eq!(status(plain(), "POST", "idempotency-key").await, None);
    assert_eq!(
        status(plain(), "POST", "x-key").await,
        None,
        "without a key"
    );
    let also_put = Policy {
        methods: vec!["PUT".into()],
        ..plain()
    };
    assert_eq!(status(also_put, "PUT", "idempotency-key").await, None);
}

#[tokio::test]
async fn a_change_of_policy_does_not_turn_an_old_repeat_into_a_conflict() {
    let (store, _) = faulty();
    let raw = quiet(store);
    let json = Policy {
        fingerprint: Arc::new(FingerprintPolicy::json()),
        ..Policy::default()
    };
    let (before, _) = charges(&raw, json);
    let (after, ledger) = charges(&raw, Policy::default());

    let first = send(&before, post("/charges", "k", "{\"a\":1,\"b\":2}")).await;
    // The record was made in JSON mode: a repeat is compared in JSON mode, though the route now
    // compares bytes.
    let again = send(&after, post("/charges", "k", "{ \"b\": 2, \"a\": 1 }")).await;
    assert_eq!((again.is_replay(), &again.body), (true, &first.body));
    assert_eq!(
        send(&after, post("/charges", "k", "{\"a\":1,\"b\":3}"))
            .await
            .problem(),
        "key-reused"
    );
    assert_eq!(ledger.len(), 0);
}

#[tokio::test]
async fn the_inner_service_sees_the_operation_and_no_imitation_of_it() {
    let (store, _) = faulty();
    let service = common::guard(&quiet(store), Policy::default(), |request| async move {
        let operation = request
            .extensions()
            .get::<hapax::Operation>()
            .unwrap()
            .clone();
        let header = |name: &str| {
            request
                .headers()
                .get_all(name)
                .iter()
                .map(|v| v.to_str().unwrap())
                .collect::<Vec<_>>()
                .join("|")
        };
        assert_eq!(header("hapax-operation"), operation.id().as_str());
        assert_eq!(
            header("hapax-fence"),
            operation.fence().as_u64().to_string()
        );
        assert_eq!(header("idempotency-key"), "k");
        assert_eq!(header("accept-encoding"), "identity");
        assert_eq!(operation.derive("mail"), operation.id().derive("mail"));
        Ok(http::Response::new(hapax::Body::empty()))
    });
    let mut request = post("/charges", "\"k\"", "5");
    for (name, value) in [
        ("hapax-operation", "forged"),
        ("hapax-fence", "1"),
        ("accept-encoding", "gzip"),
    ] {
        request
            .headers_mut()
            .append(name, HeaderValue::from_static(value));
    }
    assert_eq!(send(&service, request).await.status, 200);
}

#[tokio::test]
async fn the_record_is_found_by_scope_and_key() {
    let (store, _) = faulty();
    let hapax = quiet(store).namespace("shop");
    let (service, _) = charges(&hapax, Policy::default());
    send(&service, by(post("/charges?x=1", "k", "5"), "ada")).await;
    let scope = Scope {
        namespace: "shop".into(),
        principal: Principal::named("ada"),
        method: "POST".into(),
        path: "/charges".into(),
    };
    let (record, state) = hapax
        .look(RecordId::of(&scope, &Key::new("k").unwrap()))
        .await
        .unwrap();
    assert_eq!(
        (*record.head.scope == scope, state),
        (true, hapax_core::State::Completed)
    );
}

#[tokio::test]
async fn a_route_chooses_its_key_field_and_its_methods() {
    let (store, _) = faulty();
    let policy = Policy {
        key_field: "X-Request-Id".into(),
        methods: vec!["PUT".into()],
        ..Policy::default()
    };
    let (service, ledger) = charges(&quiet(store), policy);
    let put = |field: &str| {
        let request = http::Request::put("/charges").header(field, "k");
        request.body(Full::<bytes::Bytes>::from("5")).unwrap()
    };
    assert!(!send(&service, put("x-request-id")).await.is_replay());
    assert!(send(&service, put("x-request-id")).await.is_replay());
    // Another field or another method is not guarded here.
    for _ in 0..2 {
        assert!(!send(&service, put("idempotency-key")).await.is_replay());
        assert!(!send(&service, post("/charges", "k", "5")).await.is_replay());
    }
    assert_eq!(ledger.len(), 5);
}

#[tokio::test]
async fn without_memory_for_answers_replays_come_from_the_store() {
    let (store, _) = faulty();
    let limits = hapax::Limits {
        cache_bytes_max: 0,
        ..hapax::Limits::default()
    };
    let hapax = Hapax::builder_shared(store.clone())
        .sweep(None)
        .limits(limits)
        .build();
    let (service, ledger) = charges(&hapax, Policy::default());
    let first = send(&service, post("/charges", "k", "5")).await;
    for replays in 1..=5 {
        let again = send(&service, post("/charges", "k", "5")).await;
        assert_eq!((again.is_replay(), &again.body), (true, &first.body));
        assert_eq!(
            store.calls(Verb::PutIf),
            2 + replays,
            "each replay costs one round trip"
        );
    }
    assert_eq!(ledger.len(), 1);
}

#[tokio::test]
async fn the_trace_of_an_answer_is_kept_and_told_only_to_who_stands_outside() {
    let (store, _) = faulty();
    let traced = |hapax: &Hapax| {
        common::guard(hapax, Policy::default(), |request| async move {
            assert!(
                !request.headers().contains_key("hapax-trace"),
                "the caller cannot speak as us"
            );
            Ok(http::Response::builder()
                .status(201)
                .header("hapax-trace", "00-first-01")
                .body(hapax::Body::from("{}"))
                .unwrap())
        })
    };
    // Replays from memory, and from the store on another node.
    let (here, elsewhere) = (traced(&quiet(store.clone())), traced(&quiet(store)));
    let ask = || {
        let mut request = post("/charges", "k", "5");
        request
            .headers_mut()
            .insert("hapax-trace", HeaderValue::from_static("forged"));
        request
    };
    let first = here.clone().oneshot(ask()).await.unwrap();
    assert!(!first.headers().contains_key("hapax-trace"));
    assert_eq!(first.extensions().get::<Origin>(), None);
    for node in [here, elsewhere] {
        let again = node.oneshot(ask()).await.unwrap();
        assert_eq!(
            again.extensions().get::<Origin>(),
            Some(&Origin(HeaderValue::from_static("00-first-01")))
        );
        let again = Got::read(again).await;
        assert_eq!(
            (again.header("hapax-trace"), again.is_replay()),
            (None, true)
        );
    }
}
