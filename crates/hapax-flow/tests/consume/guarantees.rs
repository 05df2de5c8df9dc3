//! Each guarantee does what it says.

use hapax_flow::consume::{Guarantee, Incoming};

use crate::place::{Place, consumer, message, with_payload};
use crate::script::Script;

#[tokio::test]
async fn at_least_once_applies_again_what_is_delivered_again() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    script.deliver([
        message("a"),
        message("a"),
        with_payload(message("b"), "poison"),
    ]);
    let running = place.run(
        consumer().guarantee(Guarantee::AtLeastOnce),
        script.source(),
    );
    script.drained().await;
    assert_eq!(place.effects().await, ["a", "a"]);
    assert_eq!(place.parked().await, ["b"]);
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn at_most_once_loses_what_fails_and_repeats_nothing() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    script.deliver([
        message("a"),
        with_payload(message("b"), "poison"),
        message("c"),
    ]);
    let running = place.run(
        consumer().guarantee(Guarantee::AtMostOnce).batch_max(1),
        script.source(),
    );
    script.acknowledged(3).await;
    while running.progress.counts().applied < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(place.effects().await, ["a", "c"]);
    assert_eq!(running.progress.counts().lost, 1);
    assert_eq!(place.parked().await, [""; 0]);
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn at_most_once_does_not_repeat_what_was_delivered_often() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    let poison = Incoming {
        deliveries: Some(9),
        ..with_payload(message("a"), "poison")
    };
    script.deliver([poison, message("b")]);
    let running = place.run(consumer().guarantee(Guarantee::AtMostOnce), script.source());
    while running.progress.counts().applied == 0 {
        tokio::task::yield_now().await;
    }
    let counts = running.progress.counts();
    assert_eq!((counts.lost, counts.failed, counts.parked), (1, 0, 0));
    assert_eq!(place.effects().await, ["b"]);
    running.stop().await.expect("it ran");
}

#[tokio::test]
async fn at_most_once_handles_nothing_that_it_could_not_acknowledge() {
    let Some(place) = Place::new().await else {
        return;
    };
    let script = Script::default();
    script.refuse_acknowledgements(1);
    script.deliver([message("a")]);
    let running = place.run(consumer().guarantee(Guarantee::AtMostOnce), script.source());
    while running.progress.counts().outages == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(place.effects().await, [""; 0]);
    script.deliver_open_again();
    while running.progress.counts().applied == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(place.effects().await, ["a"]);
    running.stop().await.expect("it ran");
}
