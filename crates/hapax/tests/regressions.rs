//! One test for each bug that was found later.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use common::{Broken, charges, faulty, gated, guard, post, quiet, ready_to_wait, send, spawn};
use hapax::store::sqlite::OpenError;
use hapax::{
    Audit, Body, BoxError, Event, Hapax, Limits, Mode, NeverDispatched, Policy, Sqlite, Sweep,
};
use hapax_core::store::{Change, ListQuery};
use hapax_core::{Memory, Secret};
use hapax_testkit::{Fault, Faulty, ManualClock, Verb};
use http::{Request, Response};
use http_body::Body as _;
use tower::{Layer, ServiceExt, service_fn};

/// Two nodes on one store, each with its own faults.
fn two_nodes() -> (Arc<Faulty>, Arc<Faulty>, ManualClock) {
    let clock = ManualClock::new();
    let memory = Arc::new(Memory::new(
        Arc::new(clock.clone()),
        Secret::from_bytes([7; 32]),
    ));
    (
        Arc::new(Faulty::new(memory.clone())),
        Arc::new(Faulty::new(memory)),
        clock,
    )
}

#[tokio::test]
async fn an_answer_over_the_cap_knows_its_length() {
    let service = guard(&quiet(faulty().0), Policy::default(), |_| async {
        Ok(Response::new(Body::from(vec![7; 2 << 20])))
    });
    let response = service.oneshot(post("/", "k", "x")).await.unwrap();
    assert_eq!(response.body().size_hint().exact(), Some(2 << 20));
    assert_eq!(common::Got::read(response).await.body.len(), 2 << 20);
}

#[tokio::test]
async fn the_inner_service_is_ready_when_it_is_called() {
    let handler =
        service_fn(|_: Request<Body>| async { Ok::<_, Broken>(Response::new(Body::from("ok"))) });
    // `ConcurrencyLimit` panics if it is called before `poll_ready`.
    let inner = tower::limit::ConcurrencyLimit::new(handler, 8);
    let open = Policy {
        fail_open: true,
        naturally_idempotent: true,
        ..Policy::default()
    };
    let (store, _) = faulty();
    let service = quiet(store.clone())
        .guard()
        .policy(open)
        .anonymous()
        .build()
        .unwrap()
        .layer(inner);
    assert_eq!(send(&service, post("/", "k", "x")).await.status, 200);
    assert!(send(&service, post("/", "k", "x")).await.is_replay());
    store.down(true);
    assert_eq!(
        send(&service, post("/", "another", "x")).await.status,
        200,
        "failing open, too"
    );
}

#[tokio::test]
async fn only_the_error_itself_says_that_nothing_was_dispatched() {
    let never = service_fn(|_: Request<Body>| async {
        Err::<Response<Body>, _>(NeverDispatched("refused".into()))
    });
    let service = quiet(faulty().0)
        .guard()
        .policy(common::with_dialects(Policy::default()))
        .anonymous()
        .build()
        .unwrap()
        .layer(never);
    let got = send(&service, post("/", "k", "x")).await;
    assert_eq!(
        (
            got.status.as_u16(),
            got.problem().as_str(),
            got.header("x-should-retry")
        ),
        (502, "upstream-unreachable", Some("true"))
    );

    let caused = |_| async {
        Err(Broken(Box::new(NeverDispatched(
            "the second of two steps".into(),
        ))))
    };
    let service = guard(&quiet(faulty().0), Policy::default(), caused);
    assert_eq!(
        send(&service, post("/", "k", "x")).await.problem(),
        "outcome-unknown"
    );
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_from_the_start_is_a_503_inside_the_deadline_for_all() {
    let (store, _) = faulty();
    store.fail_next(Verb::Info, Fault::Hang, usize::MAX);
    let (service, _) = charges(&quiet(store), Policy::default());
    let began = tokio::time::Instant::now();
    let calls: Vec<_> = (0..50)
        .map(|i| spawn(&service, post("/", &format!("k{i}"), "x")))
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap().problem(), "store-unavailable");
    }
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "took {:?}",
        began.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_route_keeps_failing_open_for_as_long_as_the_store_is_away() {
    let (store, _) = faulty();
    let limits = Limits {
        attempts_in_flight_max: 2,
        lost_claims_max: 2,
        ..Limits::default()
    };
    let hapax = Hapax::builder_shared(store.clone())
        .sweep(None)
        .limits(limits)
        .build();
    let (service, _) = charges(
        &hapax,
        Policy {
            fail_open: true,
            naturally_idempotent: true,
            ..Policy::default()
        },
    );
    assert_eq!(send(&service, post("/", "warm", "x")).await.status, 201);
    store.down(true);
    for i in 0..6 {
        assert_eq!(
            send(&service, post("/", &format!("k{i}"), "x"))
                .await
                .status,
            201,
            "request {i}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn drain_ends_soon_after_its_patience_though_the_store_hangs() {
    let (store, _) = faulty();
    let hapax = quiet(store.clone());
    let (service, _, gate) = gated(&hapax, Policy::default(), 201);
    let _calls: Vec<_> = (0..100)
        .map(|i| spawn(&service, post("/", &format!("k{i}"), "x")))
        .collect();
    gate.wait_for(100).await;
    store.fail_when(|_| Some(Fault::Hang));
    let began = tokio::time::Instant::now();
    assert_eq!(hapax.drain(Duration::from_secs(1)).await.left_unknown, 100);
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "took {:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn a_dropped_hapax_gives_its_file_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hapax.db");
    for _ in 0..3 {
        let hapax = quiet(Arc::new(common::open_when_free(&path).await));
        hapax
            .once("work")
            .run("k", "r", async |_| Ok::<_, BoxError>("done".into()))
            .await
            .unwrap();
        hapax.drain(Duration::from_secs(1)).await;
    }
}

#[tokio::test]
async fn a_file_has_one_owner_by_whatever_path_it_is_reached() {
    let directory = tempfile::tempdir().unwrap();
    let (path, link) = (
        directory.path().join("hapax.db"),
        directory.path().join("link.db"),
    );
    let owner = Sqlite::open(&path).await.unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(matches!(
        Sqlite::open(&link).await,
        Err(OpenError::Owned { .. })
    ));

    // If the lock is lost because its file was removed, the first owner writes nothing more once
    // there is a second owner.
    std::fs::remove_file(directory.path().join("hapax.db-owner")).unwrap();
    let first = Hapax::new(owner).once("work");
    first
        .run("before", "r", async |_| Ok::<_, BoxError>("done".into()))
        .await
        .unwrap();
    let _second = Sqlite::open(&path).await.unwrap();
    assert!(
        first
            .run("after", "r", async |_| Ok::<_, BoxError>("done".into()))
            .await
            .is_err()
    );
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_never_dispatched_is_not_held_as_unknown() {
    let (store, clock) = faulty();
    let (service, ledger) = charges(
        &quiet(store.clone()),
        Policy {
            lease: Duration::from_millis(3),
            ..Policy::default()
        },
    );
    assert_eq!(send(&service, post("/", "warm", "x")).await.status, 201);
    let calls = store.calls(Verb::PutIf);
    // The claim lands and its reply is lost; the second try finds it lapsed; its release fails.
    store.fail_next(Verb::PutIf, Fault::ErrorAfter, 1);
    store.let_through(Verb::PutIf, 1);
    store.fail_next(Verb::PutIf, Fault::ErrorBefore, 1);
    let call = spawn(&service, post("/", "k", "x"));
    store.wait_for_calls(Verb::PutIf, calls + 1).await;
    clock.advance(Duration::from_millis(50));
    assert_eq!(call.await.unwrap().problem(), "store-unavailable");
    // Waits until the claim is released in the background.
    while store.calls(Verb::PutIf) < calls + 5 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(
        (
            send(&service, post("/", "k", "x")).await.status.as_u16(),
            ledger.len()
        ),
        (201, 2)
    );
}

/// A separate runtime, which the test drops while work is running.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

#[test]
fn renewals_survive_their_first_runtime() {
    let (store, _) = faulty();
    let hapax = quiet(store.clone());
    let once = hapax
        .once("work")
        .policy(Policy {
            lease: Duration::from_millis(60),
            ..Policy::default()
        })
        .unwrap();
    let first = runtime();
    first.block_on(async {
        let (began, once) = (Arc::new(tokio::sync::Notify::new()), once.clone());
        let begins = began.clone();
        tokio::spawn(async move {
            let stuck = async move |_| {
                begins.notify_one();
                std::future::pending::<Result<_, BoxError>>().await
            };
            once.run("stuck", "r", stuck).await
        });
        began.notified().await;
    });
    drop(first);
    let before = store.calls(Verb::Renew);
    runtime().block_on(async {
        let observed = store.clone();
        let until_renewed = async move |_| {
            observed.wait_for_calls(Verb::Renew, before + 1).await;
            Ok::<_, BoxError>("done".into())
        };
        once.run("next", "r", until_renewed).await.unwrap();
    });
}

#[tokio::test]
async fn a_panicking_observer_breaks_nothing() {
    let (store, _) = faulty();
    let hapax = Hapax::builder_shared(store.clone())
        .sweep(None)
        .observer(|_: &Event<'_>| panic!("as told"))
        .build();
    let (service, ledger, gate) = gated(
        &hapax,
        Policy {
            lease: Duration::from_millis(30),
            ..Policy::default()
        },
        201,
    );
    store.fail_next(Verb::Renew, Fault::ErrorBefore, 1);
    let first = spawn(&service, post("/", "k", "x"));
    gate.wait_for(1).await;
    store.wait_for_calls(Verb::Renew, 3).await;
    gate.open(1);
    assert_eq!(first.await.unwrap().status, 201);
    assert!(send(&service, post("/", "k", "x")).await.is_replay());
    assert_eq!(ledger.len(), 1);
}

#[test]
fn followers_of_another_node_survive_their_runtime() {
    let (one, two, _) = two_nodes();
    let running = runtime();
    let (here, _, gate) = gated(&quiet(one), Policy::default(), 201);
    let (elsewhere, _) = charges(&quiet(two.clone()), Policy::default());
    let first = {
        let _inside = running.enter();
        spawn(&here, post("/", "k", "x"))
    };
    running.block_on(gate.wait_for(1));
    let following = runtime();
    following.block_on(async {
        let _waiter = spawn(&elsewhere, ready_to_wait(post("/", "k", "x"), 20));
        two.wait_for_calls(Verb::Get, 2).await;
    });
    drop(following);
    gate.open(1);
    running.block_on(first).unwrap();
    assert!(
        runtime()
            .block_on(send(&elsewhere, ready_to_wait(post("/", "k", "x"), 20)))
            .is_replay()
    );
}

#[tokio::test]
async fn a_sweep_of_batches_of_nothing_does_not_spin() {
    // The runtime has one thread: a sweep that never yields would block everything else.
    let hapax = Hapax::builder(hapax::store::memory())
        .sweep(Some(Sweep {
            interval: Duration::from_secs(1),
            batch: 0,
        }))
        .build();
    hapax
        .once("work")
        .run("k", "r", async |_| Ok::<_, BoxError>("done".into()))
        .await
        .unwrap();
    tokio::task::yield_now().await;
}

#[tokio::test(start_paused = true)]
async fn those_who_join_a_claim_are_counted_as_waiters() {
    let (store, _) = faulty();
    let limits = Limits {
        waiters_per_key_max: 1,
        waiters_max: 1,
        ..Limits::default()
    };
    let hapax = Hapax::builder_shared(store.clone())
        .sweep(None)
        .limits(limits)
        .build();
    let (service, _) = charges(&hapax, Policy::default());
    assert_eq!(send(&service, post("/", "warm", "x")).await.status, 201);
    store.fail_next(Verb::PutIf, Fault::HangAfter, 1);
    let calls: Vec<_> = (0..50)
        .map(|_| spawn(&service, post("/", "k", "x")))
        .collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let waiting = calls.iter().filter(|call| !call.is_finished()).count();
    assert!(waiting <= 2, "{waiting} wait");
}

#[tokio::test]
async fn a_layer_inside_a_layer_leaves_the_operation_to_the_outer_one() {
    let hapax = quiet(faulty().0);
    let (inner, ledger) = charges(&hapax, Policy::default());
    let outer = hapax.guard().anonymous().build().unwrap().layer(inner);
    assert_eq!(send(&outer, post("/", "k", "x")).await.status, 201);
    assert!(send(&outer, post("/", "k", "x")).await.is_replay());
    assert_eq!(ledger.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_slow_pulse_does_not_bring_back_what_was_forgotten() {
    let (one, two, _) = two_nodes();
    let (here, there) = (quiet(one), quiet(two.clone()));
    let (service, _) = charges(
        &there,
        Policy {
            store_timeout: Duration::from_secs(60),
            ..Policy::default()
        },
    );
    assert_eq!(send(&service, post("/", "k", "x")).await.status, 201);
    tokio::time::sleep(Duration::from_secs(5)).await;
    two.fail_next(Verb::Info, Fault::HangAfter, 1);
    let pulses = two.calls(Verb::Info);
    let slow = spawn(&service, post("/", "k", "x"));
    two.wait_for_calls(Verb::Info, pulses + 1).await;
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
        Audit {
            by: "ada",
            reason: "erasure request",
        },
    )
    .await
    .unwrap();
    two.release();
    assert_eq!(slow.await.unwrap().status, 410);
}

/// A body that is never read, and records when it is dropped.
struct Held(Arc<AtomicBool>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        std::task::Poll::Pending
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_that_nobody_will_get_is_not_held_on_to() {
    let (store, _) = faulty();
    let dropped = Arc::new(AtomicBool::new(false));
    let held = dropped.clone();
    let service = guard(&quiet(store.clone()), Policy::default(), move |_| {
        let body = Body::streamed(Held(held.clone()));
        async {
            Ok(Response::builder()
                .header("hapax-keep", "no")
                .body(body)
                .unwrap())
        }
    });
    store.fail_when(|put| matches!(put.change, Change::Finish(_)).then_some(Fault::ErrorBefore));
    assert_eq!(
        send(&service, post("/", "k", "x")).await.problem(),
        "store-unavailable"
    );
    tokio::task::yield_now().await;
    assert!(dropped.load(Ordering::SeqCst));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_lost_its_lease_asks_the_store_instead_of_its_memory() {
    let (one, two, clock) = two_nodes();
    let policy = Policy {
        mode: Mode::Rerun,
        ..Policy::default()
    };
    let (stuck, _, gate) = gated(&quiet(one.clone()), policy.clone(), 201);
    let (successor, ledger) = charges(&quiet(two), policy);
    one.fail_next(Verb::Renew, Fault::ErrorBefore, 5);
    let _first = spawn(&stuck, post("/", "k", "x"));
    gate.wait_for(1).await;
    clock.advance(Duration::from_secs(11));
    assert_eq!(send(&successor, post("/", "k", "x")).await.status, 201);
    // The next renewal that reaches the store is refused; from then on the stuck node replays the
    // other node's answer.
    one.wait_for_calls(Verb::Renew, 6).await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(send(&stuck, post("/", "k", "x")).await.is_replay());
    assert_eq!(ledger.len(), 1);
}

#[tokio::test]
async fn fences_grow_over_removal_and_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hapax.db");
    let clock = ManualClock::new();
    let open = async || {
        let options = hapax::store::sqlite::Options {
            clock: Some(Arc::new(clock.clone())),
            ..Default::default()
        };
        Hapax::builder(Sqlite::open_with(&path, options).await.unwrap())
            .sweep(None)
            .build()
    };
    let fence = async |hapax: &Hapax| {
        let once = hapax
            .once("work")
            .policy(Policy {
                tombstone: Duration::ZERO,
                ..Policy::default()
            })
            .unwrap();
        once.run("k", "r", async |operation| {
            Ok::<_, BoxError>(operation.fence().to_string().into())
        })
        .await
        .unwrap()
        .value
    };
    let hapax = open().await;
    let first = fence(&hapax).await;
    clock.advance(Duration::from_secs(24 * 60 * 60));
    assert_eq!(hapax.sweep_once().await.unwrap().removed, 1);
    hapax.drain(Duration::from_secs(1)).await;
    drop(hapax);
    let hapax = quiet(Arc::new(common::open_when_free(&path).await));
    // The machine's clock is years behind the manual clock that minted the first fence.
    assert!(fence(&hapax).await > first);
}

#[tokio::test(start_paused = true)]
async fn drain_waits_for_claims_on_their_way() {
    let (store, _) = faulty();
    let hapax = quiet(store.clone());
    let (service, ledger) = charges(&hapax, Policy::default());
    assert_eq!(send(&service, post("/", "warm", "x")).await.status, 201);
    store.fail_next(Verb::PutIf, Fault::HangAfter, 1);
    let writes = store.calls(Verb::PutIf);
    let call = spawn(&service, post("/", "k", "x"));
    store.wait_for_calls(Verb::PutIf, writes + 1).await;
    let drain = tokio::spawn(async move { hapax.drain(Duration::from_secs(30)).await });
    tokio::task::yield_now().await;
    assert!(!drain.is_finished());
    store.release();
    assert_eq!(
        (
            call.await.unwrap().status.as_u16(),
            drain.await.unwrap().left_unknown,
            ledger.len()
        ),
        (201, 0, 2)
    );
}

#[tokio::test(start_paused = true)]
async fn drain_counts_what_had_been_given_up_before() {
    let hapax = quiet(faulty().0);
    let policy = Policy {
        longest_attempt: Duration::from_secs(1),
        ..Policy::default()
    };
    let (service, _, _gate) = gated(&hapax, policy, 201);
    assert_eq!(send(&service, post("/", "k", "x")).await.status, 504);
    assert_eq!(hapax.drain(Duration::from_secs(1)).await.left_unknown, 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_shutting_down_does_not_fail_open() {
    let (store, _) = faulty();
    let hapax = quiet(store.clone());
    let (service, ledger) = charges(
        &hapax,
        Policy {
            fail_open: true,
            naturally_idempotent: true,
            ..Policy::default()
        },
    );
    send(&service, post("/", "warm", "x")).await;
    hapax.drain(Duration::from_secs(1)).await;
    store.down(true);
    assert_eq!(
        (
            send(&service, post("/", "k", "x")).await.problem().as_str(),
            ledger.len()
        ),
        ("draining", 1)
    );
}

#[tokio::test]
async fn what_a_handler_says_reaches_the_layer_that_answers_for_it() {
    let hapax = quiet(faulty().0);
    let keep_no = |_| async {
        Ok(Response::builder()
            .header("hapax-keep", "no")
            .body(Body::from("once"))
            .unwrap())
    };
    let outer =
        hapax
            .guard()
            .anonymous()
            .build()
            .unwrap()
            .layer(guard(&hapax, Policy::default(), keep_no));
    assert_eq!(send(&outer, post("/", "k", "x")).await.status, 200);
    assert_eq!(
        send(&outer, post("/", "k", "x")).await.problem(),
        "answer-not-kept"
    );
}

#[tokio::test]
async fn requests_made_inside_an_operation_are_guarded_by_keys_of_their_own() {
    let hapax = quiet(faulty().0);
    let (items, ledger) = charges(&hapax, Policy::default());
    let batch = service_fn(move |request: Request<Body>| {
        let items = items.clone();
        async move {
            for _ in 0..2 {
                let mut item = post("/items", "item-1", "x");
                *item.extensions_mut() = request.extensions().clone();
                send(&items, item).await;
            }
            Ok::<_, Broken>(Response::new(Body::from("ok")))
        }
    });
    let outer = hapax.guard().anonymous().build().unwrap().layer(batch);
    assert_eq!(send(&outer, post("/batch", "b", "x")).await.status, 200);
    assert_eq!(ledger.len(), 1);
}

#[tokio::test]
async fn an_inner_layer_keeps_its_own_rules() {
    let hapax = quiet(faulty().0);
    let (inner, ledger) = charges(
        &hapax,
        Policy {
            key: hapax::KeyRule::Issued,
            ..Policy::default()
        },
    );
    let outer = hapax.guard().anonymous().build().unwrap().layer(inner);
    assert_eq!(
        (
            send(&outer, post("/", "made-up", "x"))
                .await
                .problem()
                .as_str(),
            ledger.len()
        ),
        ("token-invalid", 0)
    );
}

#[tokio::test]
async fn another_request_that_joined_a_claim_is_told_so_whatever_came_of_it() {
    let once = quiet(faulty().0).once("work");
    once.run("warm", "r", async |_| Ok::<_, BoxError>("done".into()))
        .await
        .unwrap();
    let mut first = Box::pin(once.run("k", "a", async |operation| {
        Err(hapax::NotDone::new(&operation, "no"))
    }));
    let mut other = Box::pin(once.run("k", "b", async |_| Ok::<_, BoxError>("done".into())));
    // Both calls are waiting before the claim is answered, and the second sees only the end of the
    // attempt.
    std::future::poll_fn(|cx| {
        assert!(first.as_mut().poll(cx).is_pending() && other.as_mut().poll(cx).is_pending());
        std::task::Poll::Ready(())
    })
    .await;
    assert!(matches!(first.await, Err(hapax::RunError::NotDone(_))));
    assert!(matches!(
        other.await,
        Err(hapax::RunError::Rejected(hapax::Rejection::KeyReused))
    ));
}

#[tokio::test]
async fn a_dangling_link_has_one_owner_too_and_nobody_else_may_read() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let directory = tempfile::tempdir().unwrap();
    let (real, link) = (
        directory.path().join("real.db"),
        directory.path().join("link.db"),
    );
    symlink(&real, &link).unwrap();
    let _owner = Sqlite::open(&link).await.unwrap();
    assert!(matches!(
        Sqlite::open(&link).await,
        Err(OpenError::Owned { .. })
    ));
    assert!(matches!(
        Sqlite::open(&real).await,
        Err(OpenError::Owned { .. })
    ));
    for name in ["real.db", "real.db-owner", "real.db-wal"] {
        let mode = std::fs::metadata(directory.path().join(name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[tokio::test]
async fn what_is_no_path_is_refused_and_leaves_nothing_behind() {
    for path in ["", ":memory:"] {
        assert!(matches!(Sqlite::open(path).await, Err(OpenError::NotAPath)));
    }
    let directory = tempfile::tempdir().unwrap();
    let junk = directory.path().join("junk.db");
    std::fs::write(&junk, "not a database").unwrap();
    let Err(error) = Sqlite::open(&junk).await else {
        panic!("opened")
    };
    // This is what a `main` that returns the error prints.
    assert!(
        format!("{error:?}")
            .ends_with("is not a Hapax store: choose another path, or move that file away"),
        "{error:?}"
    );
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn sweeping_survives_its_first_runtime() {
    let (store, _) = faulty();
    let sweep = Sweep {
        interval: Duration::from_millis(1),
        batch: 8,
    };
    let hapax = Hapax::builder_shared(store.clone())
        .sweep(Some(sweep))
        .build();
    for round in 0..3 {
        let before = store.calls(Verb::Sweep);
        runtime().block_on(async {
            hapax
                .once("work")
                .run(round.to_string(), "r", async |_| {
                    Ok::<_, BoxError>("done".into())
                })
                .await
                .unwrap();
            store.wait_for_calls(Verb::Sweep, before + 1).await;
        });
    }
}
