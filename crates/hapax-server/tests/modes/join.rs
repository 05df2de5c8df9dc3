//! Mode `transaction`: what counts, for every way in which a call to the service can end.

use std::sync::Arc;
use std::time::Duration;

use hapax::Mode;
use hapax_server::config::StoreUrl;

use crate::database::{self, effects};
use crate::harness::Upstream;
use crate::joining::{Joining, stored};
use crate::ledger::count;
use crate::world::{World, serve};

struct Scene {
    joining: Arc<Joining>,
    _service: Upstream,
    world: World,
    url: String,
}

impl Scene {
    /// `None` without PostgreSQL.
    async fn start() -> Option<Scene> {
        Scene::patient(Duration::from_secs(60)).await
    }

    /// The same with this answer timeout of the gateway.
    async fn patient(patience: Duration) -> Option<Scene> {
        let url = database::joined()?;
        let joining = Joining::new(&url);
        let service = serve(&joining);
        let world = World::start(Mode::Transaction, service.address, |config, _| {
            config.store = StoreUrl::Postgres(url.parse().unwrap());
            config.timeouts.answer = patience;
        });
        Some(Scene {
            joining,
            _service: service,
            world: world.await,
            url,
        })
    }

    /// The first answer is the one that was stored with the effect.
    async fn joins(&self, key: &str, told: &str) {
        let got = self.world.order(key, told).await;
        got.assert_first(201, &stored(key));
    }

    /// A repeat is answered with the stored answer.
    async fn replays(&self, key: &str) {
        let got = self.world.order(key, "join, then say the same").await;
        got.assert_replayed(201, &stored(key));
    }

    async fn rejects(&self, key: &str, told: &str, status: u16, code: &str, again: bool) {
        let got = self.world.order(key, told).await;
        got.assert_rejected(status, code, again);
    }

    /// The number of dispatches and of orders. Panics if a key has two orders.
    async fn counts(&self) -> (usize, usize) {
        (self.joining.dispatched(), count(&effects(&self.url).await))
    }

    async fn joined(&self, differs: bool) -> u64 {
        self.world
            .counted(&format!("hapax_joined_total{{differs=\"{differs}\"}}"))
            .await
    }

    /// The number of requests with this outcome.
    async fn requests(&self, outcome: &str) -> u64 {
        self.world
            .counted(&format!(
                "hapax_requests_total{{route=\"/**\",outcome=\"{outcome}\"}}"
            ))
            .await
    }

    async fn not_joined(&self) -> u64 {
        self.world.counted("hapax_not_joined_total").await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_joins_is_answered_and_replayed() {
    let Some(scene) = Scene::start().await else {
        return;
    };
    let got = scene.world.order("k", "join, then say the same").await;
    got.assert_first(201, &stored("k"));
    assert_eq!(got.headers.get("content-type").unwrap(), "text/plain");
    assert!(got.headers.contains_key("idempotency-expires"), "{got:?}");
    scene.replays("k").await;
    assert_eq!(scene.counts().await, (1, 1));
    assert_eq!(
        (
            scene.joined(false).await,
            scene.joined(true).await,
            scene.not_joined().await
        ),
        (1, 0, 0)
    );
    scene.world.end().await;
}

/// Once the answer is stored, neither another HTTP answer nor a missing one makes a difference.
#[tokio::test(flavor = "multi_thread")]
async fn the_stored_answer_wins_whatever_is_said() {
    let Some(scene) = Scene::start().await else {
        return;
    };
    let ends = ["say otherwise", "say 422", "say 500", "break off"];
    for (number, then) in (1..).zip(ends) {
        let (key, told) = (then.replace(' ', "-"), format!("join, then {then}"));
        scene.joins(&key, &told).await;
        scene.replays(&key).await;
        assert_eq!(scene.counts().await, (number, number), "{then}");
        assert_eq!(scene.joined(true).await, number as u64, "{then}");
        assert_eq!(
            [
                scene.requests("first").await,
                scene.requests("replayed").await
            ],
            [number as u64; 2],
            "{then}"
        );
    }
    assert_eq!(
        (scene.joined(false).await, scene.not_joined().await),
        (0, 0)
    );
    scene.world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stored_answer_wins_if_no_other_comes_in_time() {
    let Some(scene) = Scene::patient(Duration::from_secs(3)).await else {
        return;
    };
    scene.joins("k", "join, then say nothing").await;
    scene.replays("k").await;
    assert_eq!(
        (scene.counts().await, scene.joined(true).await),
        ((1, 1), 1)
    );
    scene.world.end().await;
}

/// The service reports success without a stored record: the request is never dispatched again.
#[tokio::test(flavor = "multi_thread")]
async fn done_without_joining_is_an_alarm_and_never_sent_again() {
    let Some(scene) = Scene::start().await else {
        return;
    };
    for (number, (key, told)) in (1..).zip([("201", "do it without joining"), ("302", "302")]) {
        scene.rejects(key, told, 502, "not-joined", false).await;
        assert_eq!(scene.not_joined().await, number);
        for _ in 0..2 {
            scene
                .rejects(
                    key,
                    "join, then say the same",
                    409,
                    "outcome-unknown",
                    false,
                )
                .await;
        }
    }
    assert_eq!(scene.counts().await, (2, 1));
    scene.world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_needs_no_transaction() {
    let Some(scene) = Scene::start().await else {
        return;
    };
    scene
        .world
        .order("k", "422")
        .await
        .assert_first(422, "as said");
    scene
        .world
        .order("k", "join, then say the same")
        .await
        .assert_replayed(422, "as said");
    assert_eq!(
        (scene.counts().await, scene.not_joined().await),
        ((1, 0), 0)
    );
    scene.world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_done_runs_again() {
    let Some(scene) = Scene::start().await else {
        return;
    };
    // The service's status says that nothing was done.
    let got = scene.world.order("503", "503").await;
    assert_eq!(
        (got.status, got.headers.contains_key("idempotency-expires")),
        (503, false),
        "{got:?}"
    );
    scene.joins("503", "join, then say the same").await;
    // There is no record, so whatever did not commit was rolled back.
    scene
        .rejects("lost", "break off", 502, "outcome-unknown", true)
        .await;
    scene.joins("lost", "join, then say the same").await;
    scene.replays("lost").await;
    assert_eq!(
        (scene.counts().await, scene.not_joined().await),
        ((4, 2), 0)
    );
    scene.world.end().await;
}

/// The attempt was lost while it was inside its transaction, and its successor was faster.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_attempt_cannot_commit_after_its_successor() {
    let Some(scene) = Scene::start().await else {
        return;
    };
    scene
        .rejects("k", "break off, join later", 502, "outcome-unknown", true)
        .await;
    scene.joining.slow.wait_arrived(1).await;
    scene.joins("k", "join, then say the same").await;
    scene.joining.slow.let_through().await;
    assert_eq!(
        (scene.joining.late(), scene.counts().await),
        (vec!["HX003".to_owned()], (2, 1))
    );
    scene.world.end().await;
}

/// Without a successor the lost attempt may commit late.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_attempt_that_nobody_followed_commits_late_and_counts() {
    let Some(scene) = Scene::start().await else {
        return;
    };
    scene
        .rejects("k", "break off, join later", 502, "outcome-unknown", true)
        .await;
    scene.joining.slow.let_through().await;
    scene.replays("k").await;
    assert_eq!(
        (scene.joining.late(), scene.counts().await),
        (vec!["committed".to_owned()], (1, 1))
    );
    scene.world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_after_the_answer_is_an_alarm_and_counts() {
    let Some(scene) = Scene::start().await else {
        return;
    };
    scene
        .rejects("k", "answer, join later", 502, "not-joined", false)
        .await;
    scene
        .rejects(
            "k",
            "join, then say the same",
            409,
            "outcome-unknown",
            false,
        )
        .await;
    scene.joining.slow.let_through().await;
    assert_eq!(scene.joining.late(), ["committed"]);
    scene.replays("k").await;
    assert_eq!(
        (scene.counts().await, scene.not_joined().await),
        ((1, 1), 1)
    );
    scene.world.end().await;
}

/// A record that has ended cannot be joined any more: the effect is rolled back.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_ended_cannot_be_joined() {
    let Some(scene) = Scene::start().await else {
        return;
    };
    let url: &str = &scene.url;
    scene.world.order("k", "join, then say the same").await;
    let client = database::connect(url).await;
    // The operation and fence of the finished attempt, sent again.
    let last = scene.joining.last();
    let error = crate::joining::complete(&client, &last).await.unwrap_err();
    assert_eq!(database::code(&error), "HX005");
    let mut higher = last.clone();
    higher
        .headers
        .insert("hapax-fence", (last.fence() + 1).into());
    assert_eq!(
        database::code(
            &crate::joining::complete(&client, &higher)
                .await
                .unwrap_err()
        ),
        "HX003"
    );
    assert_eq!(scene.counts().await, (1, 1));
    scene.world.end().await;
}
