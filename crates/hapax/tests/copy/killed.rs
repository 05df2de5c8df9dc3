//! Copies that are killed at every point and started again.

use hapax::core::transfer::Standing;
use hapax::store::copy::Step;
use hapax_testkit::crash::{self, Child};

use super::ends::{Kind, Place, World, copy, copy_told};
use super::filled::{Content, fill, fill_pages};

const TEST: &str = "killed::a_copy_that_is_killed_at_any_point_goes_on_and_nothing_is_lost";
const FROM: &str = "HAPAX_TEST_FROM";
const TO: &str = "HAPAX_TEST_TO";
const POINT: &str = "HAPAX_TEST_POINT";

/// The points at which a copy is killed.
const POINTS: [&str; 7] = [
    "left",
    "arrived",
    "records 1",
    "records 3",
    "log",
    "moved",
    "settled",
];
/// Enough for three pages.
const RECORDS: usize = 2_100;

#[test]
fn a_copy_that_is_killed_at_any_point_goes_on_and_nothing_is_lost() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    if crash::role().is_some() {
        return runtime.block_on(copy_until_killed());
    }
    runtime.block_on(async {
        let world = World::new();
        let here = world.place(Kind::Sqlite, "here.db").await.unwrap();
        let Some(there) = world.place(Kind::Postgres, "").await else {
            return;
        };
        let store = here.open().await.unwrap();
        fill(&*store).await;
        fill_pages(&store, RECORDS).await;
        drop(store);
        let before = Content::of(&here).await;
        // In both directions, so that each store is the source and the target of a copy that is
        // killed at each point.
        for point in POINTS {
            kill_at(point, &here, &there, &before).await;
            kill_at(point, &there, &here, &before).await;
        }
    });
}

async fn kill_at(point: &str, from: &Place, to: &Place, before: &Content) {
    let mut child = Child::spawn(
        TEST,
        "copier",
        &[(FROM, &from.url()), (TO, &to.url()), (POINT, point)],
    );
    child.wait_for(&format!("at {point}"));
    child.kill();

    assert!(
        from.open().await.is_err(),
        "killed at {point}: the source serves"
    );
    let is_complete = point == "settled";
    // A target killed before its first write does not know of the copy: it still is an ordinary
    // empty store.
    let is_untouched = matches!(
        to.open_to_copy().await.survey().await.unwrap().standing,
        Standing::Live
    ) && !is_complete;
    assert!(!is_untouched || point == "left", "killed at {point}");
    assert_eq!(
        to.open().await.is_ok(),
        is_complete || is_untouched,
        "killed at {point}: the target serves"
    );
    let again = copy(from, to).await;
    assert_eq!(again.is_ok(), !is_complete, "killed at {point}: {again:?}");
    if let Ok(copied) = again {
        assert_eq!(copied.is_resumed, point != "left", "killed at {point}");
    }
    before.assert_same(&Content::of(to).await);
    assert!(to.open().await.is_ok() && from.open().await.is_err());
    let kind = |place: &Place| place.url().split_once(':').unwrap().0.to_owned();
    hapax_testkit::report!(
        "{} to {}, killed at {point}: {} records, all there",
        kind(from),
        kind(to),
        before.stored.len()
    );
}

/// The child process: copies, and stops at its point until it is killed.
async fn copy_until_killed() {
    let env = |name| std::env::var(name).unwrap();
    let (point, mut pages) = (env(POINT), 0);
    let told = |step: Step| {
        let here = match step {
            Step::Left => "left".to_owned(),
            Step::Arrived { .. } => "arrived".to_owned(),
            Step::Records { .. } => {
                pages += 1;
                format!("records {pages}")
            }
            Step::Log { .. } => "log".to_owned(),
            Step::Moved => "moved".to_owned(),
            _ => "settled".to_owned(),
        };
        if here == point {
            crash::announce(format!("at {point}"));
            crash::pause_forever();
        }
    };
    copy_told(&Place::at(&env(FROM)), &Place::at(&env(TO)), told)
        .await
        .unwrap();
}
