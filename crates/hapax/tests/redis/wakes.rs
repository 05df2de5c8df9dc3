//! Nodes are told of changes by Redis itself.

use std::sync::Arc;
use std::time::Duration;

use hapax::Hapax;
use hapax::core::store::Wakes;
use hapax_core::{RecordId, Store};
use hapax_testkit::servers;

use crate::place;

/// The next record that a node is told of.
async fn told(wakes: &dyn Wakes) -> RecordId {
    tokio::time::timeout(Duration::from_secs(60), wakes.changed())
        .await
        .expect("told within a minute")
}

/// One node runs a job, and another waits for it, by the library's own calls.
async fn a_waiter_gets_the_answer_of_another_node(url: &str) {
    let first = Hapax::new(place::open(url).await).namespace("wakes");
    let second = Hapax::new(place::open(url).await).namespace("wakes");
    let (begun, is_begun) = tokio::sync::oneshot::channel();
    let (go, may_go) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(async move {
        let once = first.once("job");
        let run = once.run("key", "request", async move |_| {
            begun.send(()).expect("somebody listens");
            may_go.await.expect("somebody tells");
            Ok::<_, std::io::Error>("done".into())
        });
        run.await.expect("the job runs")
    });
    is_begun.await.expect("the job begins");
    let waiting = tokio::spawn(async move {
        let waits = second.once("job").wait(Duration::from_secs(60));
        let run = waits.run("key", "request", async |_| {
            Err::<bytes::Bytes, _>(std::io::Error::other("ran twice"))
        });
        run.await.expect("the job has run")
    });
    go.send(()).expect("the job waits");
    assert_eq!(running.await.expect("no panic").value, "done");
    assert_eq!(waiting.await.expect("no panic").value, "done");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_on_one_node_wakes_another_on_one_server() {
    let Some(server) = servers::Redis::shared() else {
        return;
    };
    wakes_another(&server.url()).await;
    a_waiter_gets_the_answer_of_another_node(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_on_one_node_wakes_another_in_a_cluster() {
    let Some(cluster) = servers::RedisCluster::start(false, &[]) else {
        return;
    };
    wakes_another(&cluster.url()).await;
}

async fn wakes_another(url: &str) {
    let (first, second) = (place::open(url).await, Arc::new(place::open(url).await));
    let wakes = second.wakes().expect("it wakes");
    // Records of several partitions, on several servers of a cluster.
    for number in 0..16 {
        let head = place::claimed(&first, &format!("wake-{number}")).await;
        wakes.watch(head.id);
        assert_eq!(
            told(wakes).await,
            head.id,
            "told at once: it may have changed before"
        );
        place::complete(&first, &head, "done").await;
        assert_eq!(told(wakes).await, head.id, "told of the end");
        wakes.unwatch(head.id);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_survives_a_restart_of_redis() {
    let Some(mut server) =
        servers::Redis::start(&[("appendonly", "yes"), ("appendfsync", "always")])
    else {
        return;
    };
    let (first, second) = (
        place::open(&server.url()).await,
        place::open(&server.url()).await,
    );
    let head = place::claimed(&first, "restart").await;
    let wakes = second.wakes().expect("it wakes");
    wakes.watch(head.id);
    assert_eq!(told(wakes).await, head.id);
    server.kill();
    server.restart();
    assert_eq!(
        told(wakes).await,
        head.id,
        "told at once after subscribing anew"
    );
    place::complete(&first, &head, "done").await;
    assert_eq!(told(wakes).await, head.id);
}
