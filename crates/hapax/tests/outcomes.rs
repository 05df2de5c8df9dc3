//! How the end of an attempt is classified, through the layer: statuses, errors, panics, broken and
//! oversized answers, large requests.

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{Broken, Gate, Got, Ledger, charges, faulty, guard, post, quiet, send, spawn};
use hapax::{Body, Class, Hapax, Mode, OperatorError, Policy, Settlement, Store};
use hapax_core::audit::{LogQuery, Signed};
use hapax_core::store::{Change, Condition, Lifetime, ListQuery, Put};
use hapax_core::{State, StateFilter};
use hapax_testkit::{Fault, Verb};
use http::{HeaderMap, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};

/// Sends one request twice to a handler that counts its runs, and returns both answers, the count
/// and the record's state.
async fn twice<F, Fut>(policy: Policy, handler: F) -> (Got, Got, usize, State)
where
    F: Fn(usize) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<Response<Body>, Broken>> + Send + 'static,
{
    let (store, _) = faulty();
    let (hapax, ledger) = (quiet(store), Ledger::default());
    let service = guard(&hapax, policy, {
        let ledger = ledger.clone();
        move |_| handler(ledger.add("run"))
    });
    let first = send(&service, post("/", "k", "x")).await;
    let state = only_state(&hapax).await;
    let second = send(&service, post("/", "k", "x")).await;
    (first, second, ledger.len(), state)
}

async fn only_state(hapax: &Hapax) -> State {
    hapax
        .list(ListQuery {
            state: None,
            after: None,
            limit: 2,
        })
        .await
        .unwrap()[0]
        .state
}

fn status(status: u16) -> Response<Body> {
    Response::builder()
        .status(status)
        .body(Body::from("said"))
        .unwrap()
}

#[tokio::test]
async fn every_class_of_status_is_kept_released_or_held() {
    use Mode::{Fenced, Hold, Rerun};
    for (code, mode, runs, state) in [
        (200, Hold, 1, State::Completed),
        (302, Hold, 1, State::Completed),
        (404, Hold, 1, State::Failed),
        (422, Hold, 1, State::Failed),
        (401, Hold, 2, State::Retryable),
        (429, Hold, 2, State::Retryable),
        (503, Hold, 2, State::Retryable),
        (408, Hold, 1, State::Unknown),
        (500, Hold, 1, State::Unknown),
        (501, Hold, 1, State::Unknown),
        (502, Hold, 1, State::Unknown),
        (504, Hold, 1, State::Unknown),
        (500, Fenced, 2, State::Unknown),
        (500, Rerun, 2, State::Retryable),
        (502, Rerun, 2, State::Retryable),
        (503, Rerun, 2, State::Retryable),
    ] {
        let policy = Policy {
            mode,
            ..Policy::default()
        };
        let (first, second, ran, was) =
            twice(policy, move |_| async move { Ok(status(code)) }).await;
        assert_eq!((ran, was), (runs, state), "{code}, {}", mode.word());
        assert_eq!(
            (first.status.as_u16(), &first.body[..], first.is_replay()),
            (code, &b"said"[..], false),
            "what was said, unchanged"
        );
        if state == State::Unknown {
            let again = Some(if mode == Hold { "false" } else { "true" });
            assert_eq!(
                [
                    first.header("stripe-should-retry"),
                    first.header("x-should-retry")
                ],
                [again; 2]
            );
            assert_eq!(
                first.header("retry-after").is_some(),
                mode != Hold,
                "{code}"
            );
        }
        if runs == 1 && state == State::Unknown {
            assert_eq!(
                (second.status.as_u16(), second.problem().as_str()),
                (409, "outcome-unknown")
            );
        } else {
            assert_eq!(
                (second.status.as_u16(), &second.body[..], second.is_replay()),
                (code, &b"said"[..], runs == 1)
            );
        }
    }
}

/// A service can state the outcome of an attempt in a field, which only Hapax sees.
#[tokio::test]
async fn a_service_says_in_a_field_what_its_answer_means() {
    for (said, code, runs, state) in [
        ("none", 500, 2, State::Retryable),
        ("none", 502, 2, State::Retryable),
        ("none", 404, 2, State::Retryable),
        ("done", 500, 1, State::Completed),
        ("done", 503, 1, State::Completed),
        // Contradictory and unknown values: the status decides.
        ("none", 201, 1, State::Completed),
        ("none", 302, 1, State::Completed),
        ("done", 429, 2, State::Retryable),
        ("maybe", 500, 1, State::Unknown),
    ] {
        let says = move |_| async move {
            let mut response = status(code);
            response
                .headers_mut()
                .insert("hapax-outcome", said.parse().unwrap());
            Ok(response)
        };
        let (first, second, ran, was) = twice(Policy::default(), says).await;
        assert_eq!((ran, was), (runs, state), "{said} with {code}");
        assert_eq!(
            (
                first.status.as_u16(),
                &first.body[..],
                first.header("hapax-outcome")
            ),
            (code, &b"said"[..], None)
        );
        assert_eq!(second.header("hapax-outcome"), None);
        assert_eq!(second.is_replay(), runs == 1 && state != State::Unknown);
    }
    let twice_said = |_| async move {
        let mut response = status(500);
        response
            .headers_mut()
            .append("hapax-outcome", "none".parse().unwrap());
        response
            .headers_mut()
            .append("hapax-outcome", "done".parse().unwrap());
        Ok(response)
    };
    assert_eq!(
        twice(Policy::default(), twice_said).await.3,
        State::Unknown,
        "of two words none counts"
    );
}

/// The statement of an attempt that was fenced out changes nothing.
#[tokio::test(start_paused = true)]
async fn only_the_attempt_that_holds_the_fence_says_what_its_answer_means() {
    let (store, clock) = faulty();
    let ([hapax, other_node], ledger) = (
        [quiet(store.clone()), quiet(store.clone())],
        Ledger::default(),
    );
    let gate = Gate::new();
    let handler = {
        let (ledger, gate) = (ledger.clone(), gate.clone());
        move |_| {
            let (run, gate) = (ledger.add("run"), gate.clone());
            async move {
                if run > 1 {
                    return Ok(status(201));
                }
                gate.pass().await;
                let mut late = status(500);
                late.headers_mut()
                    .insert("hapax-outcome", "none".parse().unwrap());
                Ok(late)
            }
        }
    };
    let [service, elsewhere] = [&hapax, &other_node].map(|hapax| {
        guard(
            hapax,
            Policy {
                mode: Mode::Fenced,
                ..Policy::default()
            },
            handler.clone(),
        )
    });
    store.fail_next(Verb::Renew, Fault::ErrorBefore, 1_000);
    let slow = spawn(&service, post("/", "k", "x"));
    gate.wait_for(1).await;
    clock.advance(Policy::default().lease + Duration::from_secs(1));
    assert_eq!(
        send(&elsewhere, post("/", "k", "x")).await.status,
        201,
        "the attempt that took its place"
    );
    gate.open(1);
    let got = slow.await.unwrap();
    assert_eq!(
        (got.status.as_u16(), got.is_replay()),
        (201, true),
        "what counts is what the other one did"
    );
    assert_eq!(
        (only_state(&hapax).await, ledger.len()),
        (State::Completed, 2)
    );
}

#[tokio::test]
async fn in_rerun_mode_a_lost_attempt_is_followed_by_another() {
    let policy = Policy {
        mode: Mode::Rerun,
        ..Policy::default()
    };
    let (first, second, runs, _) = twice(policy, |run| async move {
        Ok(status(if run == 1 { 408 } else { 200 }))
    })
    .await;
    assert_eq!(
        (first.status.as_u16(), first.header("x-should-retry")),
        (408, Some("true"))
    );
    assert_eq!(
        (second.status.as_u16(), second.is_replay(), runs),
        (200, false, 2)
    );
}

/// Callers without credentials can make such records, so they are removed after ten minutes; but an
/// earlier lost attempt must not be forgotten with them.
#[tokio::test]
async fn a_refused_caller_leaves_a_record_for_ten_minutes_unless_an_attempt_was_lost() {
    for (codes, is_forgotten) in [
        (&[401][..], true),
        (&[403], true),
        (&[401, 403, 401], true),
        (&[429], false),
        (&[408, 401], false),
        (&[408, 429, 403], false),
    ] {
        let (store, clock) = faulty();
        let (hapax, ledger) = (quiet(store.clone()), Ledger::default());
        let service = guard(
            &hapax,
            Policy {
                mode: Mode::Rerun,
                ..Policy::default()
            },
            {
                let ledger = ledger.clone();
                move |_| {
                    let code = codes[(ledger.add("run") - 1) % codes.len()];
                    async move { Ok(status(code)) }
                }
            },
        );
        for code in codes {
            let got = send(&service, post("/", "k", "x")).await;
            assert_eq!(
                (
                    got.status.as_u16(),
                    only_state(&hapax).await == State::Unknown
                ),
                (*code, *code == 408)
            );
        }
        clock.advance(hapax_core::outcome::REFUSED_FOR);
        store.sweep(10).await.unwrap();
        let left = hapax
            .list(ListQuery {
                state: None,
                after: None,
                limit: 2,
            })
            .await
            .unwrap();
        assert_eq!(left.is_empty(), is_forgotten, "{codes:?}");
    }
}

#[tokio::test]
async fn an_error_and_a_panic_are_held_as_unknown() {
    let (first, second, runs, state) =
        twice(Policy::default(), |_| async { Err(Broken("reset".into())) }).await;
    assert_eq!(
        (first.status.as_u16(), second.status.as_u16(), runs, state),
        (502, 409, 1, State::Unknown)
    );

    let panics = |run: usize| async move {
        if run > 0 {
            panic!("planned")
        } else {
            Ok(status(200))
        }
    };
    let (first, second, runs, state) = twice(Policy::default(), panics).await;
    assert_eq!(
        (
            first.problem().as_str(),
            second.problem().as_str(),
            runs,
            state
        ),
        ("outcome-unknown", "outcome-unknown", 1, State::Unknown)
    );
}

#[tokio::test]
async fn a_handler_may_say_what_its_status_means() {
    let says = |class: Class, code| {
        move |_| async move {
            let mut response = status(code);
            response.extensions_mut().insert(class);
            Ok(response)
        }
    };
    let (_, _, runs, state) = twice(Policy::default(), says(Class::Keep, 500)).await;
    assert_eq!((runs, state), (1, State::Completed));
    let (_, _, runs, state) = twice(Policy::default(), says(Class::Release, 500)).await;
    assert_eq!((runs, state), (2, State::Retryable));
    let (_, _, runs, state) = twice(Policy::default(), says(Class::Release, 200)).await;
    assert_eq!((runs, state), (2, State::Retryable));
    let (_, _, runs, state) = twice(Policy::default(), says(Class::Unknown, 200)).await;
    assert_eq!((runs, state), (1, State::Unknown));
}

#[tokio::test]
async fn an_answer_that_is_not_kept_is_sent_once_and_noted() {
    let keep_no = |_| async {
        let mut response = status(201);
        response
            .headers_mut()
            .insert("hapax-keep", "no".parse().unwrap());
        Ok(response)
    };
    let large = |_| async {
        Ok(Response::builder()
            .status(201)
            .body(Body::from(vec![b'x'; 3_000]))
            .unwrap())
    };
    let no_answers = Policy {
        keep_answers: false,
        ..Policy::default()
    };
    let small_cap = Policy {
        answer_bytes_max: 2_999,
        ..Policy::default()
    };
    for (first, second, runs, state) in [
        twice(Policy::default(), keep_no).await,
        twice(no_answers, |_| async { Ok(status(201)) }).await,
        twice(small_cap, large).await,
    ] {
        assert_eq!(
            (first.status.as_u16(), runs, state),
            (201, 1, State::Completed)
        );
        assert_eq!(
            (
                first.header("hapax-keep"),
                first.header("idempotency-expires")
            ),
            (None, None)
        );
        assert!(
            first.body.len() == 4 || first.body.len() == 3_000,
            "the first caller gets all of it"
        );
        assert_eq!(
            (second.status.as_u16(), second.problem().as_str()),
            (409, "answer-not-kept")
        );
        assert!(
            std::str::from_utf8(&second.body)
                .unwrap()
                .contains("\"original_status\":201")
        );
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_unknown() {
    let broken = |_| async {
        let frames = [
            Ok(Frame::data(Bytes::from_static(b"half"))),
            Err(std::io::Error::other("reset")),
        ];
        Ok(Response::new(Body::streamed(StreamBody::new(
            tokio_stream(frames),
        ))))
    };
    let (first, second, runs, state) = twice(Policy::default(), broken).await;
    assert_eq!(
        (
            first.status.as_u16(),
            second.problem().as_str(),
            runs,
            state
        ),
        (502, "outcome-unknown", 1, State::Unknown)
    );
}

/// A stream of items that are ready at once.
fn tokio_stream<T, const N: usize>(items: [T; N]) -> impl futures_core::Stream<Item = T> {
    struct Ready<T>(std::vec::IntoIter<T>);
    impl<T> Unpin for Ready<T> {}
    impl<T> futures_core::Stream for Ready<T> {
        type Item = T;
        fn poll_next(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<T>> {
            std::task::Poll::Ready(self.0.next())
        }
    }
    Ready(Vec::from(items).into_iter())
}

#[tokio::test]
async fn trailers_are_replayed() {
    let with_trailers = |_| async {
        let trailers =
            HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]);
        let frames = [
            Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(b"message"))),
            Ok(Frame::trailers(trailers)),
        ];
        Ok(Response::new(Body::streamed(StreamBody::new(
            tokio_stream(frames),
        ))))
    };
    let (first, second, runs, _) = twice(Policy::default(), with_trailers).await;
    assert_eq!(
        (&first.body, &first.trailers, runs),
        (&second.body, &second.trailers, 1)
    );
    assert_eq!(second.trailers.unwrap()["grpc-status"], "0");
}

#[tokio::test]
async fn a_large_body_is_spilled_and_arrives_whole() {
    let (store, _) = faulty();
    let policy = Policy {
        body_memory_bytes_max: 1_000,
        body_bytes_max: 1 << 20,
        ..Policy::default()
    };
    let ledger = Ledger::default();
    let service = guard(&quiet(store), policy, {
        let ledger = ledger.clone();
        move |request| {
            let ledger = ledger.clone();
            async move {
                let body = request
                    .into_body()
                    .collect()
                    .await
                    .map_err(Broken)?
                    .to_bytes();
                ledger.add(body.len().to_string());
                Ok(Response::new(Body::from(body)))
            }
        }
    });
    for size in [0, 999, 1_000, 1_001, 65_536, 300_000, 1 << 20] {
        let content: Bytes = (0..size).map(|i: u32| (i % 251) as u8).collect();
        let got = send(&service, post("/", &format!("k{size}"), content.clone())).await;
        assert_eq!(
            (got.status.as_u16(), &got.body),
            (200, &content),
            "{size} bytes"
        );
        assert!(
            send(&service, post("/", &format!("k{size}"), content))
                .await
                .is_replay()
        );
    }
    assert_eq!(
        send(&service, post("/", "over", vec![0; (1 << 20) + 1]))
            .await
            .problem(),
        "body-too-large"
    );
    assert_eq!(ledger.len(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_route_that_fails_open_serves_without_its_store_and_a_closed_one_does_not() {
    let (store, _) = faulty();
    let open = Policy {
        fail_open: true,
        naturally_idempotent: true,
        ..Policy::default()
    };
    let hapax = quiet(store.clone());
    let (service, ledger) = charges(&hapax, open);
    let (closed, closed_ledger) = charges(&hapax, Policy::default());
    store.down(true);
    assert_eq!(send(&service, post("/", "k", "x")).await.status, 201);
    assert_eq!(
        send(&closed, post("/", "k", "x")).await.problem(),
        "store-unavailable"
    );
    assert_eq!((ledger.len(), closed_ledger.len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_lost_after_dispatch_is_completed_in_the_background() {
    let (store, _) = faulty();
    let (service, ledger, gate) = common::gated(&quiet(store.clone()), Policy::default(), 201);
    let first = common::spawn(&service, post("/", "k", "x"));
    gate.wait_for(1).await;
    store.down(true);
    gate.open(1);
    let got = first.await.unwrap();
    assert_eq!(
        (got.status.as_u16(), got.problem().as_str()),
        (503, "store-unavailable")
    );
    let faults = store.faults_landed();
    assert!(faults > 0);
    store.down(false);
    let again = send(&service, common::ready_to_wait(post("/", "k", "x"), 30)).await;
    assert_eq!(
        (again.status.as_u16(), again.is_replay(), ledger.len()),
        (201, true, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_store_is_a_503_inside_the_deadline() {
    let (store, _) = faulty();
    let (service, ledger) = charges(&quiet(store.clone()), Policy::default());
    send(&service, post("/", "warm", "x")).await;
    store.fail_next(Verb::PutIf, hapax_testkit::Fault::Hang, usize::MAX);
    let started = tokio::time::Instant::now();
    let got = send(&service, post("/", "k", "x")).await;
    assert_eq!(
        (
            got.status.as_u16(),
            got.problem().as_str(),
            got.header("retry-after")
        ),
        (503, "store-unavailable", Some("1"))
    );
    assert!(
        started.elapsed() <= Duration::from_millis(2_600),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(ledger.len(), 1);
}

#[tokio::test]
async fn what_an_operator_settled_is_what_a_repeat_gets() {
    let (store, _) = faulty();
    let hapax = quiet(store);
    let ledger = Ledger::default();
    let service = guard(&hapax, Policy::default(), {
        let ledger = ledger.clone();
        move |_| {
            ledger.add("run");
            async { Ok(status(502)) }
        }
    });
    let audit = hapax::Audit {
        by: "ada",
        reason: "it is in the bank's ledger",
    };
    for key in ["done", "noted", "not-done"] {
        send(&service, post("/", key, "x")).await;
    }
    for head in hapax
        .list(ListQuery {
            state: Some(StateFilter::Unknown),
            after: None,
            limit: 10,
        })
        .await
        .unwrap()
    {
        let settlement = match head.key.as_str() {
            "done" => Settlement::Done(hapax::Answer::new(201, "settled")),
            "noted" => Settlement::DoneWithoutAnswer,
            _ => Settlement::NotDone,
        };
        assert!(
            hapax
                .settle(
                    head.id,
                    settlement.clone(),
                    hapax::Audit {
                        by: "",
                        reason: "x"
                    }
                )
                .await
                .is_err()
        );
        let settled = hapax.settle(head.id, settlement, audit).await.unwrap();
        assert!(settled.fence > head.fence);
        assert!(
            hapax
                .settle(head.id, Settlement::NotDone, audit)
                .await
                .is_err(),
            "what is settled is settled"
        );
    }
    let done = send(&service, post("/", "done", "x")).await;
    assert_eq!(
        (done.status.as_u16(), &done.body[..], done.is_replay()),
        (201, &b"settled"[..], true)
    );
    assert_eq!(
        send(&service, post("/", "noted", "x")).await.problem(),
        "answer-not-kept"
    );
    assert_eq!(ledger.len(), 3);
    assert_eq!(send(&service, post("/", "not-done", "x")).await.status, 502);
    assert_eq!(ledger.len(), 4, "settled as not done, it may run again");
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_answer_is_served_by_no_node() {
    let (store, _) = faulty();
    let (here, elsewhere) = (quiet(store.clone()), quiet(store));
    let (service, ledger) = charges(&here, Policy::default());
    let (other, _) = charges(&elsewhere, Policy::default());
    send(&service, post("/", "k", "x")).await;
    // Now both nodes have the answer in memory.
    assert!(send(&service, post("/", "k", "x")).await.is_replay());
    assert!(send(&other, post("/", "k", "x")).await.is_replay());
    assert!(send(&other, post("/", "k", "x")).await.is_replay());

    let id = here
        .list(ListQuery {
            state: None,
            after: None,
            limit: 1,
        })
        .await
        .unwrap()[0]
        .id;
    here.forget(
        id,
        hapax::Audit {
            by: "ada",
            reason: "erasure request",
        },
    )
    .await
    .unwrap();
    for node in [&service, &other] {
        let got = send(node, post("/", "k", "x")).await;
        assert_eq!(
            (got.status.as_u16(), got.problem().as_str()),
            (410, "key-expired")
        );
        // A different request gets the same: a tombstone left by `forget` has no fingerprint to
        // compare.
        assert_eq!(
            send(node, post("/", "k", "y")).await.problem(),
            "key-expired"
        );
    }
    assert_eq!(ledger.len(), 1);
}

/// On a route without tombstones, forgetting an answer must not make its key new before the
/// retention is over.
#[tokio::test(start_paused = true)]
async fn what_was_forgotten_does_not_run_again_before_its_retention_is_over() {
    let (store, clock) = faulty();
    let hapax = quiet(store);
    let policy = Policy {
        retention: Duration::from_secs(60),
        tombstone: Duration::ZERO,
        ..Policy::default()
    };
    let (service, ledger) = charges(&hapax, policy.clone());
    let audit = hapax::Audit {
        by: "ada",
        reason: "erasure request",
    };
    for (key, lifetime) in [("route", Some(Lifetime::from(&policy))), ("none", None)] {
        assert_eq!(send(&service, post("/charges", key, "5")).await.status, 201);
        let heads = hapax
            .list(ListQuery {
                state: None,
                after: None,
                limit: 10,
            })
            .await
            .unwrap();
        let id = heads
            .iter()
            .find(|head| head.key.as_str() == key)
            .unwrap()
            .id;
        match lifetime {
            Some(lifetime) => hapax.forget_for(id, audit, lifetime).await.unwrap(),
            None => hapax.forget(id, audit).await.unwrap(),
        }
        assert_eq!(
            send(&service, post("/charges", key, "5")).await.problem(),
            "key-expired"
        );
    }
    assert_eq!(ledger.len(), 2);
    clock.advance(Duration::from_secs(61));
    assert_eq!(
        send(&service, post("/charges", "route", "5")).await.status,
        201,
        "as without the forgetting"
    );
}

#[tokio::test(start_paused = true)]
async fn a_change_by_hand_lives_as_long_as_it_is_told_and_is_in_the_log() {
    let (store, _) = faulty();
    let hapax = quiet(store);
    let service = guard(&hapax, Policy::default(), |_| async { Ok(status(502)) });
    send(&service, post("/", "k", "x")).await;
    let id = hapax
        .list(ListQuery {
            state: None,
            after: None,
            limit: 1,
        })
        .await
        .unwrap()[0]
        .id;
    let audit = hapax::Audit {
        by: "ada",
        reason: "it is in the bank's ledger",
    };
    let policy = Policy {
        retention: Duration::from_secs(60),
        tombstone: Duration::from_secs(90),
        ..Policy::default()
    };
    let lifetime = Lifetime::from(&policy);

    let done = Settlement::Done(hapax::Answer::new(201, "settled"));
    let settled = hapax.settle_for(id, done, audit, lifetime).await.unwrap();
    assert_eq!(
        settled.expires_at.since(settled.finished_at),
        policy.retention
    );
    assert_eq!(
        settled.tombstone_until.since(settled.expires_at),
        policy.tombstone
    );
    hapax.forget_for(id, audit, lifetime).await.unwrap();
    let (forgotten, _) = hapax.look(id).await.unwrap();
    assert_eq!(
        forgotten.head.tombstone_until, settled.tombstone_until,
        "never shorter than without the forgetting"
    );
    hapax
        .note(
            "reload",
            hapax::Audit {
                by: "SIGHUP",
                reason: "routes changed",
            },
        )
        .await
        .unwrap();

    let log = hapax.log(LogQuery::after(0, 10)).await.unwrap();
    let told: Vec<_> = log
        .iter()
        .map(|entry| (entry.sequence, entry.action.word(), entry.signed.by()))
        .collect();
    assert_eq!(
        told,
        [
            (1, "settle", "ada"),
            (2, "forget", "ada"),
            (3, "reload", "SIGHUP")
        ]
    );
    assert_eq!(
        hapax.log(LogQuery::latest(10).of(id)).await.unwrap().len(),
        2
    );

    let long = "x".repeat(2_001);
    let error = hapax
        .forget(
            id,
            hapax::Audit {
                by: "ada",
                reason: &long,
            },
        )
        .await
        .unwrap_err();
    assert!(
        matches!(error, OperatorError::Unsigned(_)) && error.to_string().contains("2001 bytes"),
        "{error}"
    );
    assert_eq!(
        hapax.log(LogQuery::latest(10)).await.unwrap().len(),
        3,
        "what was refused leaves no entry"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_unknown_is_settled_before_it_is_forgotten() {
    let (store, clock) = faulty();
    let hapax = quiet(store.clone());
    let service = guard(&hapax, Policy::default(), |_| async { Ok(status(502)) });
    send(&service, post("/", "k", "x")).await;
    let id = hapax
        .list(ListQuery {
            state: None,
            after: None,
            limit: 1,
        })
        .await
        .unwrap()[0]
        .id;
    let audit = hapax::Audit {
        by: "ada",
        reason: "erasure request",
    };
    for past in [Duration::ZERO, Duration::from_secs(25 * 60 * 60)] {
        clock.advance(past);
        let error = hapax.forget(id, audit).await.unwrap_err();
        assert!(matches!(error, OperatorError::NotNow { .. }), "{error}");
        assert!(
            error.to_string().contains("is unknown")
                && error.to_string().contains("settle it first"),
            "{error}"
        );
    }
    hapax.settle(id, Settlement::NotDone, audit).await.unwrap();
    hapax.forget(id, audit).await.unwrap();

    // An older version could forget an unknown record. Settling it fails, because it is forgotten,
    // and it can be forgotten again.
    send(&service, post("/", "old", "x")).await;
    let (head, condition) = {
        let head = hapax
            .list(ListQuery {
                state: Some(StateFilter::Unknown),
                after: None,
                limit: 1,
            })
            .await
            .unwrap()
            .remove(0);
        (
            head.clone(),
            Condition::Version {
                version: head.version,
            },
        )
    };
    let change = Change::Forget(
        Lifetime::default(),
        Signed::new("ada", "as it was").unwrap(),
    );
    store
        .put_if(Put {
            id: head.id,
            condition,
            change,
        })
        .await
        .unwrap();
    let error = hapax
        .settle(head.id, Settlement::NotDone, audit)
        .await
        .unwrap_err();
    assert!(matches!(error, OperatorError::Forgotten(_)), "{error}");
    hapax.forget(head.id, audit).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn only_what_was_looked_at_is_forgotten() {
    let (store, _) = faulty();
    let hapax = quiet(store);
    let (service, _) = charges(&hapax, Policy::default());
    send(&service, post("/", "k", "x")).await;
    let head = hapax
        .list(ListQuery {
            state: None,
            after: None,
            limit: 1,
        })
        .await
        .unwrap()
        .remove(0);
    let audit = hapax::Audit {
        by: "ada",
        reason: "erasure request",
    };
    let forget = async |version| {
        hapax
            .forget_version(head.id, version, audit, Lifetime::default())
            .await
    };
    assert!(matches!(
        forget(head.version - 1).await,
        Err(OperatorError::Changed(_))
    ));
    assert_eq!(hapax.look(head.id).await.unwrap().1, State::Completed);
    forget(head.version).await.unwrap();
}

#[tokio::test]
async fn an_answer_that_ends_only_with_its_connection_is_not_kept() {
    for (keep_close_delimited, expected) in [(false, (409, "answer-not-kept")), (true, (200, ""))] {
        let policy = Policy {
            keep_close_delimited,
            ..Policy::default()
        };
        let (first, second, runs, state) = twice(policy, |_| async {
            let mut response = status(200);
            response
                .extensions_mut()
                .insert(hapax::middleware::CloseDelimited);
            Ok(response)
        })
        .await;
        assert_eq!(
            (first.status.as_u16(), &first.body[..], runs, state),
            (200, &b"said"[..], 1, State::Completed)
        );
        let problem = if second.status.is_success() {
            String::new()
        } else {
            second.problem()
        };
        assert_eq!((second.status.as_u16(), problem.as_str()), expected);
    }
}

/// Trailers identify no principal and are not part of the fingerprint, so they must not distinguish
/// two requests behind Hapax either.
#[tokio::test]
async fn trailers_of_a_guarded_request_stay_behind() {
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let service = guard(&quiet(faulty().0), Policy::default(), {
        let seen = seen.clone();
        move |request| {
            let seen = seen.clone();
            async move {
                let whole = request.into_body().collect().await.map_err(Broken)?;
                seen.lock().unwrap().push(whole.trailers().cloned());
                Ok(status(200))
            }
        }
    });
    let trailers = HeaderMap::from_iter([("x-user".parse().unwrap(), "ada".parse().unwrap())]);
    let frames = [
        Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(b"x"))),
        Ok(Frame::trailers(trailers)),
    ];
    let request =
        post("/", "k", "x").map(|_| Body::streamed(StreamBody::new(tokio_stream(frames))));
    assert_eq!(send(&service, request).await.status.as_u16(), 200);
    assert_eq!(*seen.lock().unwrap(), [None]);
}

#[tokio::test]
async fn a_body_that_is_not_as_long_as_was_declared_runs_nothing() {
    let ledger = Ledger::default();
    let service = guard(&quiet(faulty().0), Policy::default(), {
        let ledger = ledger.clone();
        move |_| {
            ledger.add("run");
            async { Ok(status(200)) }
        }
    });
    for (length, expected) in [("100", 400), ("3", 400), ("4", 200)] {
        let mut request = post("/", "k", "paid");
        request
            .headers_mut()
            .insert(http::header::CONTENT_LENGTH, length.parse().unwrap());
        assert_eq!(
            send(&service, request).await.status.as_u16(),
            expected,
            "{length}"
        );
    }
    assert_eq!(ledger.len(), 1);
}
