//! Messages that come out of order.

use hapax_flow::consume::{Incoming, Versions};

use crate::place::{Place, consumer, keyed};
use crate::script::Script;

fn version(version: i64) -> Incoming {
    Incoming {
        version: Some(version),
        ..keyed(format!("v{version}"), "order-1")
    }
}

#[tokio::test]
async fn a_stale_version_is_skipped_and_counted() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    script.deliver([1, 3, 2, 5].map(version));
    let running = place.run(consumer().versions(Versions::SkipStale), script.source());
    script.drained().await;
    assert_eq!(place.effects().await, ["v1", "v3", "v5"]);
    assert_eq!(running.progress.counts().stale, 1);
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn a_gap_is_parked_until_it_is_filled() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    let running = place.run(consumer().versions(Versions::ParkGaps), script.source());
    script.deliver([1, 3].map(version));
    script.drained().await;
    assert_eq!(place.effects().await, ["v1"]);
    assert_eq!(place.parked().await, ["v3"]);
    script.deliver([version(2)]);
    script.drained().await;
    while running.progress.counts().retried == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(place.effects().await, ["v1", "v2", "v3"]);
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn versions_count_only_if_they_are_asked_for() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    script.deliver([2, 1].map(version));
    let running = place.run(consumer(), script.source());
    script.drained().await;
    assert_eq!(place.effects().await, ["v2", "v1"]);
    running.stop().await.expect("it ran");
}
