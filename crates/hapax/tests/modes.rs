//! What follows a lost attempt in the modes where the service takes part: `fenced` and `probe`.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Broken, Got, Guarded, Ledger, faulty, guard, post, quiet, send};
use hapax::{Answer, Body, Hapax, Mode, Operation, Policy, Probed};
use hapax_core::State;
use hapax_core::policy::PolicyError;
use hapax_core::store::{Change, Condition, ListQuery};
use hapax_testkit::Fault;
use http::{Request, Response};
use tower::util::BoxCloneSyncService;
use tower::{Layer, service_fn};

/// A service whose first run fails after its effect, and whose probe answers as the test says.
struct Scene {
    hapax: Hapax,
    service: Guarded,
    /// The fences of its runs.
    runs: Ledger,
    /// The fences with which it was probed.
    asked: Ledger,
}

impl Scene {
    fn new(says: impl Fn(usize) -> Probed + Send + Sync + 'static) -> Scene {
        Scene::on(quiet(faulty().0), says)
    }

    fn on(hapax: Hapax, says: impl Fn(usize) -> Probed + Send + Sync + 'static) -> Scene {
        let (runs, asked) = (Ledger::default(), Ledger::default());
        let probe = {
            let asked = asked.clone();
            move |operation: Operation| {
                std::future::ready(says(asked.add(operation.fence().to_string())))
            }
        };
        let policy = Policy {
            mode: Mode::Probe,
            ..Policy::default()
        };
        let layer = hapax
            .guard()
            .policy(common::with_dialects(policy))
            .probe(probe)
            .anonymous()
            .build()
            .unwrap();
        let handler = {
            let runs = runs.clone();
            move |request: Request<Body>| {
                let runs = runs.clone();
                async move {
                    let fence = request.headers()["hapax-fence"]
                        .to_str()
                        .unwrap()
                        .to_owned();
                    match runs.add(fence) {
                        1 => Err(Broken("reset".into())),
                        run => Ok(said(200, &format!("run {run}"))),
                    }
                }
            }
        };
        let service = layer.layer(BoxCloneSyncService::new(service_fn(handler)));
        Scene {
            hapax,
            service,
            runs,
            asked,
        }
    }

    async fn send(&self) -> Got {
        send(&self.service, post("/", "k", "x")).await
    }

    async fn state(&self) -> State {
        self.hapax
            .list(ListQuery {
                state: None,
                after: None,
                limit: 2,
            })
            .await
            .unwrap()[0]
            .state
    }
}

fn said(status: u16, body: &str) -> Response<Body> {
    Response::builder()
        .status(status)
        .body(Body::from(body.to_owned()))
        .unwrap()
}

fn number(line: &str) -> u64 {
    line.parse().unwrap()
}

#[tokio::test]
async fn what_a_probe_finds_done_is_answered_and_not_run_again() {
    let answer = Answer {
        headers: vec![("x-from".into(), "ledger".into())],
        ..Answer::new(201, "charge 1")
    };
    let scene = Scene::new(move |_| Probed::Done(answer.clone()));
    let first = scene.send().await;
    assert_eq!(
        (first.problem().as_str(), first.header("x-should-retry")),
        ("outcome-unknown", Some("true"))
    );
    assert_eq!(
        scene.asked.len(),
        0,
        "a first attempt has nothing to ask about"
    );

    let second = scene.send().await;
    assert_eq!(
        (
            second.status.as_u16(),
            &second.body[..],
            second.header("x-from")
        ),
        (201, &b"charge 1"[..], Some("ledger"))
    );
    assert_eq!(
        (scene.runs.len(), scene.asked.len(), scene.state().await),
        (1, 1, State::Completed)
    );
    let third = scene.send().await;
    assert_eq!(
        (third.is_replay(), third.body, scene.asked.len()),
        (true, second.body, 1)
    );
}

#[tokio::test]
async fn what_a_probe_has_barred_runs_again_under_the_fence_it_was_barred_with() {
    let scene = Scene::new(|_| Probed::Barred);
    scene.send().await;
    let second = scene.send().await;
    assert_eq!(
        (second.status.as_u16(), &second.body[..]),
        (200, &b"run 2"[..])
    );
    let (runs, asked) = (scene.runs.lines(), scene.asked.lines());
    assert_eq!((runs.len(), asked.len()), (2, 1));
    assert!(
        number(&asked[0]) > number(&runs[0]),
        "the bar is above the lost attempt"
    );
    assert_eq!(asked[0], runs[1], "and not above the one that follows");
}

#[tokio::test]
async fn what_a_probe_cannot_tell_is_held_and_asked_again() {
    let scene = Scene::new(|asked| {
        if asked < 3 {
            Probed::Unknown
        } else {
            Probed::Barred
        }
    });
    scene.send().await;
    for asked in 1..3 {
        let held = scene.send().await;
        assert_eq!(
            (held.status.as_u16(), held.problem().as_str()),
            (409, "outcome-unknown")
        );
        assert_eq!(
            (scene.runs.len(), scene.asked.len(), scene.state().await),
            (1, asked, State::Unknown)
        );
        let head = scene
            .hapax
            .list(ListQuery {
                state: None,
                after: None,
                limit: 1,
            })
            .await
            .unwrap()
            .remove(0);
        assert_eq!(head.loss(head.state), Some(hapax_core::Loss::ProbeUnknown));
    }
    assert_eq!(scene.send().await.status.as_u16(), 200);
    assert_eq!((scene.runs.len(), scene.asked.len()), (2, 3));
}

#[tokio::test]
async fn a_takeover_that_nobody_used_leaves_a_lost_attempt_lost() {
    let (store, _) = faulty();
    let hapax = quiet(store.clone());
    let scene = Scene::on(hapax, |_| Probed::Barred);
    scene.send().await;
    let head = scene
        .hapax
        .list(ListQuery {
            state: None,
            after: None,
            limit: 1,
        })
        .await
        .unwrap()
        .remove(0);
    let lost = head.loss(head.state);
    assert!(lost.is_some_and(|loss| loss.code().is_some()), "{lost:?}");
    // The next claim is written, but its caller has gone before the reply.
    let is_takeover = |put: &hapax_core::store::Put| {
        matches!(
            (&put.change, put.condition),
            (Change::Claim(_), Condition::Lapsed { .. })
        )
    };
    store.fail_when(move |put| is_takeover(put).then_some(Fault::ErrorAfter));
    assert_eq!(scene.send().await.problem(), "store-unavailable");
    store.heal();
    loop {
        let head = &scene
            .hapax
            .list(ListQuery {
                state: None,
                after: None,
                limit: 1,
            })
            .await
            .unwrap()[0];
        if head.state != State::Running && head.attempts > 1 {
            assert_eq!(
                head.state,
                State::Unknown,
                "what was lost is not known any better"
            );
            assert_eq!(head.loss(head.state), lost, "nor lost for another reason");
            break;
        }
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(scene.send().await.status.as_u16(), 200);
    assert_eq!(
        (scene.runs.len(), scene.asked.len()),
        (2, 1),
        "asked before it was run again"
    );
}

#[tokio::test]
async fn an_attempt_that_was_refused_for_its_fence_is_asked_about() {
    let (store, _) = faulty();
    let (hapax, runs, asked) = (quiet(store), Ledger::default(), Ledger::default());
    let probe = {
        let asked = asked.clone();
        move |_| {
            std::future::ready(if asked.add("asked") == 1 {
                Probed::Done(Answer::new(201, "by another"))
            } else {
                Probed::Barred
            })
        }
    };
    let layer = hapax
        .guard()
        .policy(Policy {
            mode: Mode::Probe,
            ..Policy::default()
        })
        .probe(probe)
        .anonymous()
        .build()
        .unwrap();
    let service = layer.layer(service_fn({
        let runs = runs.clone();
        move |_: Request<Body>| {
            runs.add("run");
            let refused = Response::builder()
                .status(409)
                .header("hapax-refused", "fence")
                .body(Body::empty());
            async move { Ok::<_, Broken>(refused.unwrap()) }
        }
    }));
    assert_eq!(
        send(&service, post("/", "k", "x")).await.problem(),
        "outcome-unknown"
    );
    assert_eq!(
        send(&service, post("/", "k", "x")).await.status.as_u16(),
        201
    );
    assert_eq!((runs.len(), asked.len()), (1, 1));
}

#[tokio::test]
async fn nobody_is_asked_about_an_attempt_that_is_known_not_to_count() {
    let (store, _) = faulty();
    let (hapax, runs) = (quiet(store), Ledger::default());
    let probe = async |_| panic!("nobody was lost");
    let layer = hapax
        .guard()
        .policy(Policy {
            mode: Mode::Probe,
            ..Policy::default()
        })
        .probe(probe)
        .anonymous()
        .build()
        .unwrap();
    let service = layer.layer(service_fn({
        let runs = runs.clone();
        move |_: Request<Body>| {
            let status = if runs.add("run") == 1 { 503 } else { 200 };
            async move { Ok::<_, Broken>(said(status, "")) }
        }
    }));
    assert_eq!(
        send(&service, post("/", "k", "x")).await.status.as_u16(),
        503
    );
    assert_eq!(
        send(&service, post("/", "k", "x")).await.status.as_u16(),
        200
    );
}

/// An upstream for fenced mode. For its one operation it stores the highest fence, whether it was
/// applied, and the answer.
#[derive(Clone, Default)]
struct Fenced(Arc<Mutex<(u64, Option<usize>)>>);

impl Fenced {
    fn take(&self, fence: u64, effects: &Ledger) -> Response<Body> {
        let mut kept = self.0.lock().unwrap();
        if fence < kept.0 {
            return Response::builder()
                .status(409)
                .header("hapax-refused", "fence")
                .body(Body::empty())
                .unwrap();
        }
        kept.0 = fence;
        let effect = *kept.1.get_or_insert_with(|| effects.add("effect"));
        said(201, &format!("effect {effect}"))
    }
}

#[tokio::test]
async fn a_fenced_service_runs_a_lost_attempt_once_and_answers_what_it_has() {
    let (store, _) = faulty();
    let (hapax, upstream, effects, runs) = (
        quiet(store),
        Fenced::default(),
        Ledger::default(),
        Ledger::default(),
    );
    let policy = Policy {
        mode: Mode::Fenced,
        ..Policy::default()
    };
    let service = guard(&hapax, policy, {
        let (upstream, effects, runs) = (upstream.clone(), effects.clone(), runs.clone());
        move |request| {
            let fence = number(request.headers()["hapax-fence"].to_str().unwrap());
            let answer = upstream.take(fence, &effects);
            let is_lost = runs.add("run") == 1;
            async move {
                if is_lost {
                    Err(Broken("reset".into()))
                } else {
                    Ok(answer)
                }
            }
        }
    });
    assert_eq!(
        send(&service, post("/", "k", "x")).await.problem(),
        "outcome-unknown"
    );
    let second = send(&service, post("/", "k", "x")).await;
    assert_eq!(
        (second.status.as_u16(), &second.body[..]),
        (201, &b"effect 1"[..])
    );
    assert_eq!((runs.len(), effects.len()), (2, 1));
}

#[tokio::test]
async fn a_refusal_for_a_fence_is_no_answer_and_a_higher_fence_follows() {
    for (mode, runs_in_all) in [(Mode::Fenced, 2), (Mode::Hold, 1)] {
        let (store, _) = faulty();
        let (hapax, effects, fences) = (quiet(store), Ledger::default(), Ledger::default());
        let upstream = Fenced::default();
        let service = guard(
            &hapax,
            Policy {
                mode,
                ..Policy::default()
            },
            {
                let (upstream, effects, fences) =
                    (upstream.clone(), effects.clone(), fences.clone());
                move |request| {
                    let fence = number(request.headers()["hapax-fence"].to_str().unwrap());
                    if fences.add(fence.to_string()) == 1 {
                        // Simulates an earlier attempt under a fence that the store has lost.
                        upstream.0.lock().unwrap().0 = fence + 1;
                    }
                    let answer = upstream.take(fence, &effects);
                    async move { Ok(answer) }
                }
            },
        );
        let first = send(&service, post("/", "k", "x")).await;
        assert_eq!(
            (first.status.as_u16(), first.header("hapax-refused")),
            (409, None),
            "what it says to us is for us"
        );
        // Twice, because the next fence may be only one higher than the first.
        send(&service, post("/", "k", "x")).await;
        let last = send(&service, post("/", "k", "x")).await;
        let is_done = mode == Mode::Fenced;
        assert_eq!(
            (last.status.as_u16(), effects.len()),
            if is_done { (201, 1) } else { (409, 0) },
            "{mode:?}"
        );
        assert!(fences.len() >= runs_in_all, "{mode:?}");
    }
}

#[tokio::test]
async fn a_promise_that_nothing_keeps_is_refused() {
    let (store, _) = faulty();
    let hapax = quiet(store);
    let policy = |mode| Policy {
        mode,
        ..Policy::default()
    };
    let mistakes = |mode| {
        let built = hapax.guard().policy(policy(mode)).anonymous().build();
        built.unwrap_err().mistakes().to_vec()
    };
    assert_eq!(mistakes(Mode::Transaction), [PolicyError::NoTransactions]);
    assert_eq!(mistakes(Mode::Probe), [PolicyError::NoProbe]);
    assert_eq!(
        hapax.once("job").policy(policy(Mode::Transaction)).err(),
        Some(PolicyError::NoTransactions)
    );
    assert_eq!(
        hapax.once("job").policy(policy(Mode::Probe)).err(),
        Some(PolicyError::NoProbe)
    );
}

#[tokio::test]
async fn a_record_that_somebodys_transaction_has_is_in_flight() {
    let (store, _) = faulty();
    let (hapax, runs) = (quiet(store.clone()), Ledger::default());
    let service = guard(
        &hapax,
        Policy {
            mode: Mode::Rerun,
            ..Policy::default()
        },
        move |_| {
            let is_lost = runs.add("run") == 1;
            async move {
                if is_lost {
                    Err(Broken("reset".into()))
                } else {
                    Ok(said(200, "done"))
                }
            }
        },
    );
    store.fail_when(|put| matches!(put.change, Change::Claim(_)).then_some(Fault::Locked));
    let told = send(&service, post("/", "k", "x")).await;
    assert_eq!(
        told.problem(),
        "store-unavailable",
        "of a new key there is no record"
    );
    store.heal();
    assert_eq!(
        send(&service, post("/", "k", "x")).await.problem(),
        "outcome-unknown"
    );
    // Reading the record does not wait for the lock; taking it over does.
    store.fail_when(|put| {
        matches!(put.condition, Condition::Lapsed { .. }).then_some(Fault::Locked)
    });
    let told = send(&service, post("/", "k", "x")).await;
    assert_eq!(
        (
            told.status.as_u16(),
            told.problem().as_str(),
            told.header("x-should-retry")
        ),
        (409, "in-flight", Some("true"))
    );
    store.heal();
    assert_eq!(
        send(&service, post("/", "k", "x")).await.status.as_u16(),
        200
    );
}
