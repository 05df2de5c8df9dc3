//! Requests of operators, after known traffic.

use std::time::Duration;

use hapax_server::config::Config;

use crate::client::{WAYS, post, without_key};
use crate::disk::{self, Disk, Place};
use crate::harness::{Answer, Client, With, get};
use crate::world::World;

const KEY: &str = "order-17-of-ada";
const CREDENTIAL: &str = "credential-of-ada";

fn with_admin(config: &mut Config) {
    config.admin = Some("127.0.0.1:0".parse().unwrap());
}

/// A client of the admin listener, which always speaks plain HTTP/1.1.
fn operator(world: &World) -> Client {
    Client::new(world.gateway().admin().unwrap())
}

async fn ask(operator: &Client, target: &str) -> Answer {
    operator.send(get(target)).await
}

#[tokio::test]
async fn metrics_count_what_was_sent_and_name_nobody() {
    let world = World::start(WAYS[3], with_admin).await;
    let by_ada = |body| post(KEY, body).bearer(CREDENTIAL);
    world.send(by_ada("charge")).await;
    world.send(by_ada("charge")).await;
    world.send(by_ada("charge")).await;
    world.send(by_ada("another")).await;
    world
        .send(post(KEY, "charge").bearer("credential-of-bob"))
        .await;
    world.send(post("lost", "break off")).await;
    world.send(post("lost", "break off")).await;
    world.send(post("released", "503")).await;
    world.send(post("a b", "charge")).await;
    world.send(without_key("/do", "charge")).await;
    world.send(without_key("/do", "break off")).await;

    let got = ask(&operator(&world), "/metrics").await;
    assert_eq!(got.status, 200);
    for line in [
        "hapax_requests_total{route=\"default\",outcome=\"first\"} 3",
        "hapax_requests_total{route=\"default\",outcome=\"replayed\"} 2",
        "hapax_requests_total{route=\"default\",outcome=\"key-reused\"} 1",
        "hapax_requests_total{route=\"default\",outcome=\"outcome-unknown\"} 2",
        "hapax_requests_total{route=\"default\",outcome=\"key-malformed\"} 1",
        "hapax_requests_total{route=\"default\",outcome=\"unguarded\"} 1",
        "hapax_requests_total{route=\"default\",outcome=\"upstream_failed\"} 1",
        "hapax_attempts_total{state=\"completed\"} 2",
        "hapax_attempts_total{state=\"unknown\"} 1",
        "hapax_attempts_total{state=\"retryable\"} 1",
        "hapax_attempts_in_flight 0",
        "hapax_duplicates_prevented_total 3",
        "hapax_suspected_principals_total 1",
        "hapax_unknown 1",
        "hapax_draining 0",
    ] {
        assert!(
            got.text().lines().any(|have| have == line),
            "{line} in\n{}",
            got.text()
        );
    }
    for word in [KEY, CREDENTIAL, "ada", "bob", "lost"] {
        assert!(!names(got.text(), word), "{word} in\n{}", got.text());
    }
    world.end().await;
}

/// Whether a label's value or a metric's name contains the word. Comment lines are skipped.
fn names(text: &str, word: &str) -> bool {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .any(|line| line.contains(word))
}

#[tokio::test]
async fn readiness_goes_before_anything_else_does() {
    let mut world = World::start(WAYS[0], |config| {
        with_admin(config);
        config.drain.deadline = Duration::from_secs(60);
    })
    .await;
    let operator = operator(&world);
    assert_eq!(ask(&operator, "/healthz").await.text(), "ok\n");
    assert_eq!(ask(&operator, "/readyz").await.status, 200);

    world.begin(post("k", "wait")).await;
    let draining = tokio::spawn(world.take_gateway().drain());
    let ready = loop {
        let ready = ask(&operator, "/readyz").await;
        if ready.status != 200 {
            break ready;
        }
    };
    assert_eq!((ready.status, ready.text()), (503, "not ready: draining\n"));
    assert_eq!(
        ask(&operator, "/healthz").await.status,
        200,
        "it is alive all the same"
    );
    assert_eq!(
        world.go_on().await.status,
        201,
        "who was there before gets its answer"
    );
    assert_eq!(draining.await.unwrap().left_unknown, 0);
    assert_eq!(world.upstream.effects_of("k"), 1);
}

#[tokio::test]
async fn a_store_that_cannot_write_is_not_ready() {
    match disk::place("operators::a_store_that_cannot_write_is_not_ready").await {
        Place::Here => {}
        Place::Elsewhere => return,
        Place::Nowhere(why) => {
            return hapax_testkit::skipped(why);
        }
    }
    let mut world = World::start_on(Disk::mount().unwrap(), WAYS[0], with_admin).await;
    let operator = operator(&world);
    assert_eq!(ask(&operator, "/readyz").await.status, 200);
    world.fill_disk().await;
    assert_eq!(world.send(post("k", "charge")).await.status, 503);
    let ready = ask(&operator, "/readyz").await;
    assert!(
        ready.status == 503 && ready.text().starts_with("not ready: the store fails: "),
        "{ready:?}"
    );
    world.free_disk();
    assert_eq!(world.send(post("another", "charge")).await.status, 201);
    assert_eq!(ask(&operator, "/readyz").await.status, 200);
    world.end().await;
}

/// If it were not ready, a load balancer would send it no requests, and nothing would be let
/// through.
#[tokio::test]
async fn a_store_that_cannot_write_leaves_a_gateway_that_fails_open_ready() {
    match disk::place("operators::a_store_that_cannot_write_leaves_a_gateway_that_fails_open_ready")
        .await
    {
        Place::Here => {}
        Place::Elsewhere => return,
        Place::Nowhere(why) => {
            return hapax_testkit::skipped(why);
        }
    }
    let failing_open = |config: &mut Config| {
        with_admin(config);
        (
            config.defaults.naturally_idempotent,
            config.defaults.fail_open,
        ) = (true, true);
    };
    let mut world = World::start_on(Disk::mount().unwrap(), WAYS[0], failing_open).await;
    let operator = operator(&world);
    assert_eq!(ask(&operator, "/readyz").await.text(), "ready\n");
    world.fill_disk().await;
    assert_eq!(
        world.send(post("k", "charge")).await.status,
        201,
        "let through"
    );
    let ready = ask(&operator, "/readyz").await;
    assert!(
        ready.status == 200 && ready.text().starts_with("ready, but the store fails: "),
        "{ready:?}"
    );
    assert!(
        ready
            .text()
            .ends_with("; only routes that fail open work\n"),
        "{ready:?}"
    );
    world.end().await;
}
