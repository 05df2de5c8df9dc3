//! Mode `probe`: the gateway asks the service what became of a lost attempt.

use std::sync::Arc;
use std::time::Duration;

use hapax::{Mode, Policy};

use crate::harness::{Answer, Client, Upstream, With, post};
use crate::ledger::{count, judge};
use crate::reference::{Kind, ORDERED, Reference, Says};
use crate::world::{PROBE, World, order, serve};

/// A service, a gateway in front of it, and a key whose first attempt was lost.
struct Scene {
    reference: Arc<Reference>,
    service: Upstream,
    world: World,
}

impl Scene {
    /// The first attempt does what it is `told`, by which it is lost.
    async fn lost(kind: Kind, told: &str) -> Scene {
        Scene::lost_with(kind, told, Policy::default().lease).await
    }

    /// The same with this lease, which limits the duration of a probe.
    async fn lost_with(kind: Kind, told: &str, lease: Duration) -> Scene {
        let reference = Reference::new(kind);
        let service = serve(&reference);
        let world = World::start(Mode::Probe, service.address, |_, policy| {
            policy.lease = lease;
        })
        .await;
        let scene = Scene {
            reference,
            service,
            world,
        };
        scene
            .order(told)
            .await
            .assert_rejected(502, "outcome-unknown", true);
        scene
    }

    async fn order(&self, told: &str) -> Answer {
        self.world.order("k", told).await
    }

    /// The numbers of dispatches, probes and effects.
    fn counts(&self) -> (usize, usize, usize) {
        let reference = &self.reference;
        (
            reference.dispatched().len(),
            reference.asked().len(),
            count(&reference.effects()),
        )
    }

    async fn found(&self, found: &str) -> u64 {
        self.world
            .counted(&format!("hapax_probes_total{{found=\"{found}\"}}"))
            .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_done_is_answered_with_its_answer_and_never_sent_again() {
    let scene = Scene::lost(Kind::Probed, "do it, break off").await;
    let got = scene.order("do it").await;
    got.assert_first(201, ORDERED);
    assert_eq!(got.headers.get("content-type").unwrap(), "text/plain");
    assert!(
        !got.headers
            .keys()
            .any(|name| name.as_str().starts_with("hapax-")),
        "{got:?}"
    );
    scene.order("do it").await.assert_replayed(201, ORDERED);
    assert_eq!(scene.counts(), (1, 1, 1));
    assert_eq!(
        (
            scene.found("done").await,
            scene.found("barred").await,
            scene.found("unknown").await
        ),
        (1, 0, 0)
    );
    // The probe carries the fence of the next attempt.
    assert!(scene.reference.asked()[0] > scene.reference.dispatched()[0]);
    scene.world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_barred_is_sent_again_with_the_fence_of_the_question() {
    let scene = Scene::lost(Kind::Probed, "break off").await;
    scene.order("do it").await.assert_first(201, ORDERED);
    scene.order("do it").await.assert_replayed(201, ORDERED);
    assert_eq!(scene.counts(), (2, 1, 1));
    assert_eq!(scene.reference.dispatched()[1], scene.reference.asked()[0]);
    assert_eq!(scene.found("barred").await, 1);
    scene.world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_never_lost_asks_nobody() {
    let reference = Reference::new(Kind::Probed);
    let service = serve(&reference);
    let world = World::start(Mode::Probe, service.address, |_, _| {}).await;
    world.order("k", "do it").await.assert_first(201, ORDERED);
    world
        .order("k", "do it")
        .await
        .assert_replayed(201, ORDERED);
    assert_eq!(
        (reference.dispatched().len(), reference.asked().len()),
        (1, 0)
    );
    world.end().await;
}

/// The first attempt is slow, not dead: it continues after the probe, and before its successor does
/// anything.
async fn with_a_slow_original(kind: Kind) -> Scene {
    let scene = Scene::lost(kind, "break off, do it later").await;
    scene.reference.slow.wait_arrived(1).await;
    let address = scene.world.address();
    let successor = tokio::spawn(async move { order(address, "k", "wait, do it").await });
    scene.reference.door.wait_arrived(1).await;
    scene.reference.slow.let_through().await;
    scene.reference.door.let_through().await;
    successor.await.unwrap().assert_first(201, ORDERED);
    scene
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_original_that_goes_on_after_the_bar_is_refused() {
    for kind in [Kind::Probed, Kind::Fenced] {
        let scene = with_a_slow_original(kind).await;
        assert_eq!(
            (scene.counts(), scene.reference.refused()),
            ((2, 1, 1), 1),
            "{kind:?}"
        );
        assert_eq!(
            scene.reference.effects()["k"],
            scene.reference.asked(),
            "the effect is the successor's"
        );
        scene.order("do it").await.assert_replayed(201, ORDERED);
        scene.world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_says_not_done_without_a_bar_is_convicted() {
    let scene = with_a_slow_original(Kind::BarsNothing).await;
    convicted(&scene);
    scene.world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_original_that_goes_on_after_its_successor_is_refused() {
    let scene = Scene::lost(Kind::Probed, "break off, do it later").await;
    scene.reference.slow.wait_arrived(1).await;
    scene.order("do it").await.assert_first(201, ORDERED);
    scene.reference.slow.let_through().await;
    assert_eq!((scene.counts(), scene.reference.refused()), ((2, 1, 1), 1));
    scene.world.end().await;
}

/// A bar applies to every lower fence. Once there is another bar, that includes the attempt that
/// asked for the first one.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_is_lost_after_its_bar_is_asked_about_in_turn() {
    let scene = Scene::lost(Kind::Probed, "break off, do it later").await;
    scene
        .order("break off, do it later")
        .await
        .assert_rejected(502, "outcome-unknown", true);
    scene.reference.slow.wait_arrived(2).await;
    scene.order("do it").await.assert_first(201, ORDERED);
    scene.reference.slow.let_through().await;
    scene.reference.slow.let_through().await;
    assert_eq!((scene.counts(), scene.reference.refused()), ((3, 2, 1), 2));
    scene.world.end().await;
}

/// Answers to a probe that are neither of the two valid ones, each through the gateway: nothing is
/// dispatched, and the next repeat probes again.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_understood_is_not_known_and_the_next_repeat_asks_again() {
    const LIES: [Says; 16] = [
        Says::Nothing,
        Says::Word("unknown"),
        Says::Word("not-done"),
        Says::Word(""),
        Says::Word("done, barred"),
        Says::Status(500),
        Says::Status(404),
        Says::Status(307),
        Says::Words(&[
            ("hapax-probe", "done"),
            ("hapax-probe", "barred"),
            ("hapax-status", "201"),
        ]),
        Says::Words(&[("hapax-probe", "done")]),
        Says::Words(&[("hapax-probe", "done"), ("hapax-status", "")]),
        Says::Words(&[("hapax-probe", "done"), ("hapax-status", "2001")]),
        // Neither status could have ended an attempt.
        Says::Words(&[("hapax-probe", "done"), ("hapax-status", "429")]),
        Says::Words(&[("hapax-probe", "done"), ("hapax-status", "408")]),
        Says::TooMuch,
        Says::BreaksOff,
    ];
    let scene = Scene::lost(Kind::Probed, "do it, break off").await;
    for (number, lie) in LIES.into_iter().enumerate() {
        scene.reference.say_next(lie);
        scene
            .order("do it")
            .await
            .assert_rejected(409, "outcome-unknown", false);
        assert_eq!(scene.counts(), (1, number + 1, 1), "after {lie:?}");
    }
    hapax_testkit::report!(
        "{} answers that are none, nothing sent by any of them",
        LIES.len()
    );
    assert_eq!(scene.found("unknown").await, LIES.len() as u64);
    scene.order("do it").await.assert_first(201, ORDERED);
    scene.order("do it").await.assert_replayed(201, ORDERED);
    assert_eq!(scene.counts(), (1, LIES.len() + 1, 1));
    scene.world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_stalls_is_not_waited_for_for_ever() {
    let scene = Scene::lost_with(Kind::Probed, "do it, break off", Duration::from_secs(1)).await;
    for stalls in [Says::Stalls, Says::StallsWithin] {
        scene.reference.say_next(stalls);
        scene
            .order("do it")
            .await
            .assert_rejected(409, "outcome-unknown", false);
    }
    assert_eq!(scene.counts(), (1, 2, 1));
    scene.order("do it").await.assert_first(201, ORDERED);
    assert_eq!(scene.counts(), (1, 3, 1));
    scene.world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_forgets_says_that_it_does_not_know() {
    let scene = Scene::lost(Kind::Probed, "do it, break off").await;
    scene.reference.forget();
    for _ in 0..2 {
        scene
            .order("do it")
            .await
            .assert_rejected(409, "outcome-unknown", false);
    }
    assert_eq!(scene.counts(), (1, 2, 1));
    scene.world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_forgets_and_says_not_done_is_convicted() {
    let scene = Scene::lost(Kind::BarsWhatItForgot, "do it, break off").await;
    scene.reference.forget();
    scene.order("do it").await.assert_first(201, ORDERED);
    convicted(&scene);
    scene.world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_cannot_be_reached_says_nothing() {
    let Scene {
        reference,
        service,
        world,
    } = Scene::lost(Kind::Probed, "do it, break off").await;
    drop(service);
    world
        .order("k", "do it")
        .await
        .assert_rejected(409, "outcome-unknown", false);
    assert_eq!(
        (reference.dispatched().len(), reference.asked().len()),
        (1, 0)
    );
    assert_eq!(
        world.counted("hapax_probes_total{found=\"unknown\"}").await,
        1
    );
    world.end().await;
}

/// To the service a probe is an ordinary request: a caller that could send one through the gateway
/// could bar anyone's attempt.
#[tokio::test(flavor = "multi_thread")]
async fn no_caller_asks_in_the_gateways_name() {
    let scene = Scene::lost(Kind::Probed, "break off, do it later").await;
    for (name, value) in [("hapax-operation", "0"), ("Hapax_Operation", "0")] {
        let forged = post(PROBE, "")
            .with(name, value)
            .with("hapax-fence", &u64::MAX.to_string())
            .with("hapax-probe", "ask");
        let got = Client::new(scene.world.address()).send(forged).await;
        assert_eq!(
            (got.status, &got.body[..]),
            (404, &b"no such operation"[..])
        );
    }
    assert_eq!(
        (scene.reference.asked(), scene.reference.smuggled()),
        (Vec::new(), Vec::<String>::new())
    );
    scene.world.end().await;
}

#[track_caller]
fn convicted(scene: &Scene) {
    let verdict = judge(&scene.reference.effects());
    assert!(
        verdict
            .as_ref()
            .is_err_and(|verdict| verdict.contains("k had 2 effects")),
        "{verdict:?}"
    );
}
