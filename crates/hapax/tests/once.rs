//! Attempts under lost replies, lapsed leases, zombies and shutdown. The tests advance the clocks
//! by hand and never sleep.

mod common;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Ledger, faulty, gated, post, quiet, ready_to_wait, send, spawn};
use hapax::{Audit, Body, Event, Hapax, Limits, Mode, Policy, Settlement, Sweep};
use hapax_core::record::Head;
use hapax_core::store::{Change, ListQuery};
use hapax_core::{Loss, State, StateFilter};
use hapax_testkit::{Fault, ManualClock, Verb};
use http_body_util::BodyExt;

const AUDIT: Audit<'static> = Audit {
    by: "ada",
    reason: "looked it up",
};

/// Advances the store's clock and the runtime's together, one second at a time, so that renewals
/// and sweeps run in between.
async fn pass(clock: &ManualClock, duration: Duration) {
    for _ in 0..duration.as_secs() {
        clock.advance(Duration::from_secs(1));
        tokio::time::advance(Duration::from_secs(1)).await;
        // Lets the woken tasks run.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
}

async fn only_head(hapax: &Hapax) -> Head {
    hapax
        .list(ListQuery {
            state: None,
            after: None,
            limit: 2,
        })
        .await
        .unwrap()
        .remove(0)
}

fn rerun() -> Policy {
    Policy {
        mode: Mode::Rerun,
        ..Policy::default()
    }
}

fn is_claim(put: &hapax_core::Put) -> bool {
    matches!(put.change, Change::Claim(_))
}

/// The names of the observed events.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn observer(&self) -> impl Fn(&Event<'_>) + Send + Sync + 'static {
        let log = self.0.clone();
        move |event| {
            log.lock().unwrap().push(
                format!("{event:?}")
                    .split([' ', '('])
                    .next()
                    .unwrap()
                    .to_owned(),
            );
        }
    }

    fn count(&self, name: &str) -> usize {
        self.0
            .lock()
            .unwrap()
            .iter()
            .filter(|event| *event == name)
            .count()
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_reply_was_lost_is_adopted() {
    let (store, _) = faulty();
    let (service, ledger) = common::charges(&quiet(store.clone()), Policy::default());
    store.fail_next(Verb::PutIf, Fault::ErrorAfter, 1);
    assert_eq!(send(&service, post("/", "k", "x")).await.status, 201);
    assert_eq!((ledger.len(), store.faults_landed()), (1, 1));
    assert!(send(&service, post("/", "k", "x")).await.is_replay());
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_lands_after_its_caller_gave_up_does_not_hold_the_key() {
    for fault in [Fault::Late, Fault::HangAfter] {
        let (store, clock) = faulty();
        let hapax = quiet(store.clone());
        let (service, ledger) = common::charges(&hapax, Policy::default());
        store.fail_when(move |put| is_claim(put).then_some(fault));
        assert_eq!(
            send(&service, post("/", "k", "x")).await.problem(),
            "store-unavailable"
        );
        store.heal();
        store.release();
        // The claim is in the store without a running attempt. It is released long before its lease
        // is over, and the key is free.
        pass(&clock, Duration::from_secs(3)).await;
        let got = send(&service, post("/", "k", "x")).await;
        assert_eq!(
            (got.status.as_u16(), got.is_replay(), ledger.len()),
            (201, false, 1),
            "{fault:?}"
        );
        // If the delayed original lands only now, it changes nothing.
        pass(&clock, Duration::from_secs(60)).await;
        assert!(send(&service, post("/", "k", "x")).await.is_replay());
        assert!(store.faults_landed() > 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_completion_whose_reply_was_lost_is_found_done() {
    let (store, _) = faulty();
    let (service, ledger) = common::charges(&quiet(store.clone()), Policy::default());
    let failed = AtomicUsize::new(0);
    store.fail_when(move |put| {
        (!is_claim(put) && failed.fetch_add(1, Ordering::SeqCst) < 3).then_some(Fault::ErrorAfter)
    });
    let first = send(&service, post("/", "k", "x")).await;
    assert_eq!(
        (first.status.as_u16(), ledger.len(), store.faults_landed()),
        (201, 1, 3)
    );
    assert!(send(&service, post("/", "k", "x")).await.is_replay());
}

#[tokio::test(start_paused = true)]
async fn no_answer_leaves_before_its_record_is_durable() {
    let (store, _) = faulty();
    let (service, ledger) = common::charges(&quiet(store.clone()), Policy::default());
    // The completion never reaches the store, so the caller must not get the answer.
    store.fail_when(|put| (!is_claim(put)).then_some(Fault::ErrorBefore));
    let got = send(&service, post("/", "k", "x")).await;
    assert_eq!(
        (got.status.as_u16(), got.problem().as_str(), ledger.len()),
        (503, "store-unavailable", 1)
    );
    assert!(store.faults_landed() > 0);
}

#[tokio::test(start_paused = true)]
async fn in_hold_mode_a_lapsed_attempt_is_unknown_and_its_late_completion_resolves_it() {
    let (store, clock) = faulty();
    let hapax = quiet(store.clone());
    let (service, ledger, gate) = gated(&hapax, Policy::default(), 201);
    let (elsewhere, other_ledger) = common::charges(&quiet(store.clone()), Policy::default());
    let first = spawn(&service, post("/", "k", "x"));
    gate.wait_for(1).await;
    // Simulates a stopped process: the store's clock advances and nothing is renewed.
    clock.advance(Duration::from_secs(11));
    assert_eq!(
        send(&elsewhere, post("/", "k", "x")).await.problem(),
        "outcome-unknown"
    );
    assert_eq!(only_head(&hapax).await.state, State::Unknown);

    gate.open(1);
    assert_eq!(first.await.unwrap().status, 201);
    let resolved = send(&elsewhere, post("/", "k", "x")).await;
    assert_eq!(
        (resolved.status.as_u16(), resolved.is_replay()),
        (201, true)
    );
    assert_eq!((ledger.len(), other_ledger.len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn after_a_takeover_the_zombies_completion_changes_nothing() {
    for zombies_status in [201, 503] {
        let (store, clock) = faulty();
        let log = Log::default();
        let hapax = Hapax::builder_shared(store.clone())
            .sweep(None)
            .observer(log.observer())
            .build();
        let (zombie, _, gate) = gated(&hapax, rerun(), zombies_status);
        let (successor, ledger) = common::charges(&quiet(store.clone()), rerun());
        let first = spawn(&zombie, post("/", "k", "x"));
        gate.wait_for(1).await;
        clock.advance(Duration::from_secs(11));
        let taken_over = send(&successor, post("/", "k", "x")).await;
        assert_eq!((taken_over.status.as_u16(), ledger.len()), (201, 1));
        let before = only_head(&hapax).await;

        gate.open(1);
        let told = first.await.unwrap();
        // The zombie's result is discarded and the record read again: its caller gets the
        // successor's answer.
        assert_eq!((told.is_replay(), &told.body), (true, &taken_over.body));
        assert_eq!(
            (only_head(&hapax).await, log.count("FencedOut")),
            (before, 1)
        );
        assert_eq!(
            send(&successor, post("/", "k", "x")).await.body,
            taken_over.body
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_zombie_does_not_disturb_a_successor_that_is_still_running() {
    let (store, clock) = faulty();
    let hapax = quiet(store.clone());
    let (zombie, _, zombies_gate) = gated(&hapax, rerun(), 503);
    let (successor, ledger, gate) = gated(&quiet(store.clone()), rerun(), 201);
    let first = spawn(&zombie, post("/", "k", "x"));
    zombies_gate.wait_for(1).await;
    clock.advance(Duration::from_secs(11));
    let second = spawn(&successor, post("/", "k", "x"));
    gate.wait_for(1).await;

    zombies_gate.open(1);
    assert_eq!(first.await.unwrap().problem(), "in-flight");
    assert_eq!(only_head(&hapax).await.state, State::Running);
    let (third, third_ledger) = common::charges(&quiet(store), rerun());
    assert_eq!(
        send(&third, post("/", "k", "x")).await.problem(),
        "in-flight"
    );
    gate.open(1);
    assert_eq!(second.await.unwrap().status, 201);
    assert_eq!((ledger.len(), third_ledger.len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn after_a_settlement_the_late_completion_changes_nothing_and_is_an_alarm() {
    let (store, clock) = faulty();
    let log = Log::default();
    let hapax = Hapax::builder_shared(store.clone())
        .sweep(None)
        .observer(log.observer())
        .build();
    let (service, _, gate) = gated(&hapax, Policy::default(), 201);
    let first = spawn(&service, post("/", "k", "x"));
    gate.wait_for(1).await;
    clock.advance(Duration::from_secs(11));
    let id = only_head(&hapax).await.id;
    hapax
        .settle(
            id,
            Settlement::Done(hapax::Answer::new(200, "settled")),
            AUDIT,
        )
        .await
        .unwrap();

    gate.open(1);
    let told = first.await.unwrap();
    assert_eq!(
        (&told.body[..], told.is_replay(), log.count("FencedOut")),
        (&b"settled"[..], true, 1)
    );
    assert_eq!(
        &send(&service, post("/", "k", "x")).await.body[..],
        b"settled"
    );
}

#[tokio::test(start_paused = true)]
async fn a_live_attempt_keeps_its_lease_and_completes() {
    let (store, clock) = faulty();
    let hapax = quiet(store.clone());
    let (service, ledger, gate) = gated(&hapax, rerun(), 201);
    let (elsewhere, other_ledger) = common::charges(&quiet(store.clone()), rerun());
    let callers: Vec<_> = (0..50)
        .map(|i| spawn(&service, post("/", &format!("k{i}"), "x")))
        .collect();
    gate.wait_for(50).await;
    for _ in 0..12 {
        pass(&clock, Duration::from_secs(10)).await;
        assert_eq!(
            send(&elsewhere, post("/", "k7", "x")).await.problem(),
            "in-flight"
        );
    }
    // Over two minutes, one renewal every third of a ten-second lease, all fifty leases in one
    // statement.
    let renewals = store.calls(Verb::Renew);
    assert!((30..=60).contains(&renewals), "{renewals} renewals");
    gate.open(50);
    for caller in callers {
        assert_eq!(
            caller.await.unwrap().status,
            201,
            "its own renewals do not stand in the way of a completion"
        );
    }
    assert_eq!((ledger.len(), other_ledger.len()), (50, 0));
}

#[tokio::test(start_paused = true)]
async fn a_short_attempt_is_never_renewed() {
    let (store, clock) = faulty();
    let (service, _) = common::charges(&quiet(store.clone()), Policy::default());
    for i in 0..100 {
        send(&service, post("/", &format!("k{i}"), "x")).await;
    }
    pass(&clock, Duration::from_secs(30)).await;
    assert_eq!(store.calls(Verb::Renew), 0);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_runs_too_long_is_unknown_until_it_ends_after_all() {
    let (store, clock) = faulty();
    let hapax = quiet(store.clone());
    let (service, ledger, gate) = gated(&hapax, Policy::default(), 201);
    let first = spawn(&service, post("/", "k", "x"));
    let waiter = spawn(&service, ready_to_wait(post("/", "other", "x"), 30));
    gate.wait_for(2).await;
    pass(&clock, Duration::from_secs(5 * 60 + 1)).await;
    let told = first.await.unwrap();
    assert_eq!(
        (
            told.status.as_u16(),
            told.problem().as_str(),
            told.header("x-should-retry")
        ),
        (504, "outcome-unknown", Some("false"))
    );
    assert_eq!(
        send(&service, post("/", "k", "x")).await.problem(),
        "outcome-unknown"
    );
    waiter.await.unwrap();
    let heads = hapax
        .list(ListQuery {
            state: Some(StateFilter::Unknown),
            after: None,
            limit: 9,
        })
        .await
        .unwrap();
    assert_eq!(
        heads
            .iter()
            .map(|head| head.loss(head.state))
            .collect::<Vec<_>>(),
        [Some(Loss::RanTooLong); 2]
    );

    gate.open(2);
    pass(&clock, Duration::from_secs(1)).await;
    let late = send(&service, post("/", "k", "x")).await;
    assert_eq!(
        (late.status.as_u16(), late.is_replay(), ledger.len()),
        (201, true, 2)
    );
}

#[tokio::test(start_paused = true)]
async fn a_key_is_tried_only_so_often() {
    let (store, _) = faulty();
    let policy = Policy {
        attempts_max: 3,
        ..Policy::default()
    };
    let (service, ledger, gate) = gated(&quiet(store), policy, 503);
    gate.open(10);
    for _ in 0..3 {
        assert_eq!(send(&service, post("/", "k", "x")).await.status, 503);
    }
    assert_eq!(
        send(&service, post("/", "k", "x")).await.problem(),
        "attempts-exhausted"
    );
    assert_eq!(ledger.len(), 3);
}

#[tokio::test]
async fn a_lease_of_a_millisecond_costs_liveness_and_never_safety() {
    let hapax = Hapax::builder(hapax::store::memory())
        .sweep(Some(Sweep {
            interval: Duration::from_millis(1),
            batch: 10,
        }))
        .build();
    let policy = Policy {
        lease: Duration::from_millis(1),
        ..Policy::default()
    };
    let (service, ledger, gate) = gated(&hapax, policy, 201);
    let nodes: Vec<_> = (0..200)
        .map(|i| {
            spawn(
                &service,
                ready_to_wait(post("/", &format!("k{}", i % 20), "x"), 1),
            )
        })
        .collect();
    gate.wait_for(20).await;
    // The handlers are held until every lease has lapsed and a sweep has recorded that.
    while hapax
        .list(ListQuery {
            state: Some(StateFilter::Unknown),
            after: None,
            limit: 20,
        })
        .await
        .unwrap()
        .len()
        < 20
    {
        let got = send(&service, post("/", "k3", "x")).await;
        assert!(["in-flight", "outcome-unknown"].contains(&got.problem().as_str()));
    }
    gate.open(200);
    for node in nodes {
        let got = node.await.unwrap();
        assert!(
            got.status == 201 || ["in-flight", "outcome-unknown"].contains(&got.problem().as_str()),
            "{got:?}"
        );
    }
    assert_eq!(ledger.len(), 20, "one effect for each key");
    for i in 0..20 {
        assert!(
            send(
                &service,
                ready_to_wait(post("/", &format!("k{i}"), "x"), 30)
            )
            .await
            .is_replay(),
            "late completions resolve"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_sweep_writes_down_within_a_second_what_time_has_brought() {
    let (store, clock) = faulty();
    let hapax = Hapax::builder_shared(store.clone()).build();
    let policy = Policy {
        retention: Duration::from_secs(100),
        tombstone: Duration::from_secs(100),
        ..Policy::default()
    };
    let (service, _) = common::charges(&hapax, policy.clone());
    let (_stopped, _, gate) = {
        // A node that cannot renew, because its store fails every renewal.
        let (node, ledger, gate) = gated(&quiet(store.clone()), policy, 201);
        store.fail_next(Verb::Renew, Fault::ErrorBefore, usize::MAX);
        let _first = spawn(&node, post("/lost", "k", "x"));
        gate.wait_for(1).await;
        (node, ledger, gate)
    };
    send(&service, post("/", "k", "x")).await;
    let states = async || {
        let mut words: Vec<_> = hapax
            .list(ListQuery {
                state: None,
                after: None,
                limit: 9,
            })
            .await
            .unwrap()
            .iter()
            .map(|head| head.state.word())
            .collect();
        words.sort_unstable();
        words
    };
    assert_eq!(states().await, ["completed", "running"]);
    pass(&clock, Duration::from_secs(12)).await;
    assert_eq!(states().await, ["completed", "unknown"]);
    pass(&clock, Duration::from_secs(90)).await;
    assert_eq!(states().await, ["expired", "unknown"]);
    assert_eq!(
        send(&service, post("/", "k", "x")).await.problem(),
        "key-expired"
    );
    pass(&clock, Duration::from_secs(100)).await;
    // The tombstone of the completed record is gone; the unknown record stays until it is settled.
    assert_eq!(states().await, ["unknown"]);
    gate.open(1);
}

/// A service for mode `fenced`: it applies each operation once, and repeats its answer afterwards.
fn fenced(hapax: &Hapax, policy: Policy) -> (common::Guarded, Ledger, Ledger) {
    let (ledger, derived) = (Ledger::default(), Ledger::default());
    let applied = Arc::new(Mutex::new(HashMap::<String, String>::new()));
    let service = common::guard(hapax, policy, {
        let (ledger, derived) = (ledger.clone(), derived.clone());
        move |request: http::Request<Body>| {
            let (ledger, derived, applied) = (ledger.clone(), derived.clone(), applied.clone());
            async move {
                let operation = request
                    .extensions()
                    .get::<hapax::Operation>()
                    .expect("the layer hands it on")
                    .clone();
                let body = request
                    .into_body()
                    .collect()
                    .await
                    .map_err(common::Broken)?
                    .to_bytes();
                let body = String::from_utf8_lossy(&body).into_owned();
                derived.add(operation.id().derive("charge").as_str());
                let mut applied = applied.lock().unwrap();
                let (operation, answer) = (operation.id().to_string(), format!("applied {body}"));
                if let Some(answer) = applied.get(&operation) {
                    return Ok(http::Response::new(Body::from(answer.clone())));
                }
                ledger.add(body.clone());
                applied.insert(operation, answer.clone());
                // The answer to "a" is lost on its way back.
                let status = if body == "a" { 500 } else { 200 };
                Ok(http::Response::builder()
                    .status(status)
                    .body(Body::from(answer))
                    .unwrap())
            }
        }
    });
    (service, ledger, derived)
}

#[tokio::test(start_paused = true)]
async fn a_key_used_again_after_its_tombstone_is_another_operation() {
    let (store, clock) = faulty();
    let hapax = quiet(store);
    let policy = Policy {
        mode: Mode::Fenced,
        retention: Duration::from_secs(100),
        tombstone: Duration::from_secs(100),
        ..Policy::default()
    };
    let (service, ledger, derived) = fenced(&hapax, policy.clone());
    // In one life of the key: a lost attempt and its successor are the same operation, and the
    // service applies it once.
    assert_eq!(send(&service, post("/", "k", "a")).await.status, 500);
    let got = send(&service, post("/", "k", "a")).await;
    assert_eq!(
        (got.status.as_u16(), &got.body[..]),
        (200, &b"applied a"[..])
    );
    // In the next life: retention and tombstone end by the clock alone.
    pass(&clock, policy.retention + policy.tombstone).await;
    let got = send(&service, post("/", "k", "b")).await;
    assert_eq!(
        (got.status.as_u16(), &got.body[..]),
        (200, &b"applied b"[..]),
        "the answer of another operation"
    );
    assert_eq!(ledger.lines(), ["a", "b"]);
    let derived = derived.lines();
    assert!(
        derived.len() == 3 && derived[0] == derived[1] && derived[1] != derived[2],
        "a key for each life: {derived:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn drain_lets_attempts_end_and_marks_those_that_do_not() {
    let (store, _) = faulty();
    let hapax = quiet(store.clone());
    let (service, _, gate) = gated(&hapax, Policy::default(), 201);
    let quick = spawn(&service, post("/", "quick", "x"));
    gate.wait_for(1).await;
    let drained = tokio::spawn({
        let hapax = hapax.clone();
        async move { hapax.drain(Duration::from_secs(30)).await }
    });
    tokio::task::yield_now().await;
    assert_eq!(
        send(&service, post("/", "new", "x")).await.problem(),
        "draining"
    );
    gate.open(1);
    assert_eq!(
        (
            drained.await.unwrap().left_unknown,
            quick.await.unwrap().status.as_u16()
        ),
        (0, 201)
    );
    assert!(
        send(&service, post("/", "quick", "x")).await.is_replay(),
        "what is done can still be replayed"
    );

    let hapax = quiet(store.clone());
    let (service, ledger, gate) = gated(&hapax, Policy::default(), 201);
    let stuck = spawn(&service, post("/", "stuck", "x"));
    gate.wait_for(1).await;
    assert_eq!(hapax.drain(Duration::from_secs(5)).await.left_unknown, 1);
    let heads = hapax
        .list(ListQuery {
            state: Some(StateFilter::Unknown),
            after: None,
            limit: 9,
        })
        .await
        .unwrap();
    assert_eq!(
        heads
            .iter()
            .map(|head| head.loss(head.state))
            .collect::<Vec<_>>(),
        [Some(Loss::Stopped)]
    );
    let (elsewhere, _) = common::charges(&quiet(store.clone()), Policy::default());
    // The key is unknown at once, and not only when its lease is over.
    assert_eq!(
        send(&elsewhere, post("/", "stuck", "x")).await.problem(),
        "outcome-unknown"
    );
    // The caller gets an answer before the process ends.
    assert_eq!(stuck.await.unwrap().problem(), "outcome-unknown");
    let writes = store.calls(Verb::PutIf);
    gate.open(1);
    store.wait_for_calls(Verb::PutIf, writes + 1).await;
    assert!(send(&elsewhere, post("/", "stuck", "x")).await.is_replay());
    assert_eq!(ledger.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_done_is_replayed_where_nothing_more_can_be_begun() {
    let (store, _) = faulty();
    let (elsewhere, _) = common::charges(&quiet(store.clone()), Policy::default());
    send(&elsewhere, post("/", "done", "x")).await;
    let limits = Limits {
        attempts_in_flight_max: 1,
        ..Limits::default()
    };
    let hapax = Hapax::builder_shared(store)
        .sweep(None)
        .limits(limits)
        .build();
    let (service, _, gate) = gated(&hapax, Policy::default(), 201);
    let _busy = spawn(&service, post("/", "busy", "x"));
    gate.wait_for(1).await;
    assert_eq!(
        send(&service, post("/", "new", "x")).await.problem(),
        "too-many-keys"
    );
    assert!(send(&service, post("/", "done", "x")).await.is_replay());
    hapax.drain(Duration::ZERO).await;
    assert_eq!(
        send(&service, post("/", "new", "x")).await.problem(),
        "draining"
    );
    assert!(send(&service, post("/", "done", "x")).await.is_replay());
}

#[tokio::test(start_paused = true)]
async fn waiters_are_bounded_and_those_over_the_limit_are_told_to_come_back() {
    let (store, _) = faulty();
    let limits = Limits {
        waiters_per_key_max: 10,
        ..Limits::default()
    };
    let hapax = Hapax::builder_shared(store)
        .sweep(None)
        .limits(limits)
        .build();
    let (service, _, gate) = gated(&hapax, Policy::default(), 201);
    let first = spawn(&service, post("/", "k", "x"));
    gate.wait_for(1).await;
    let waiters: Vec<_> = (0..30)
        .map(|_| spawn(&service, ready_to_wait(post("/", "k", "x"), 30)))
        .collect();
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    gate.open(1);
    first.await.unwrap();
    let mut replays = 0;
    for waiter in waiters {
        replays += usize::from(waiter.await.unwrap().is_replay());
    }
    assert_eq!(replays, 10);
}

#[tokio::test(start_paused = true)]
async fn answers_that_cannot_be_written_are_bounded_and_the_mark_remains() {
    let (store, _) = faulty();
    let limits = Limits {
        unwritten_bytes_max: 10,
        ..Limits::default()
    };
    let hapax = Hapax::builder_shared(store.clone())
        .sweep(None)
        .limits(limits)
        .build();
    let (service, ledger, gate) = gated(&hapax, Policy::default(), 201);
    let first = spawn(&service, post("/", "k", "x"));
    gate.wait_for(1).await;
    store.down(true);
    gate.open(1);
    assert_eq!(first.await.unwrap().problem(), "store-unavailable");
    store.down(false);
    let again = send(&service, ready_to_wait(post("/", "k", "x"), 30)).await;
    assert_eq!(
        (again.problem().as_str(), ledger.len()),
        ("answer-not-kept", 1)
    );
}

#[tokio::test]
async fn an_attempts_events_come_in_order() {
    let (store, _) = faulty();
    let log = Log::default();
    let hapax = Hapax::builder_shared(store)
        .sweep(None)
        .observer(log.observer())
        .build();
    let (service, _) = common::charges(&hapax, Policy::default());
    send(&service, post("/", "k", "x")).await;
    send(&service, post("/", "k", "x")).await;
    send(&service, post("/", "k", "y")).await;
    let events = log.0.lock().unwrap().clone();
    assert_eq!(
        events,
        [
            "Claiming",
            "Claimed",
            "Dispatching",
            "Finishing",
            "Finished",
            "Answering",
            "Replayed",
            "Rejected"
        ]
    );

    // When Hapax answers in place of a lost attempt, that is a rejection, also for the first
    // caller.
    log.0.lock().unwrap().clear();
    let lossy = common::guard(&hapax, Policy::default(), |_| async {
        Err(common::Broken("reset".into()))
    });
    assert_eq!(
        send(&lossy, post("/", "lost", "x")).await.problem(),
        "outcome-unknown"
    );
    let events = log.0.lock().unwrap().clone();
    assert_eq!(
        events,
        [
            "Claiming",
            "Claimed",
            "Dispatching",
            "Finishing",
            "Finished",
            "Answering",
            "Rejected"
        ]
    );
}
