//! Services and gateways are killed at random while callers retry: there is one order for each key,
//! and one message about it, which a relay publishes meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::client::{Order, place, try_place};
use super::harness::{Answer, in_time};
use super::install::{self, Language};
use super::relay::Relaying;
use super::world::{NODES, World};
use hapax_flow::publish::Envelope;
use hapax_testkit::random::Random;

const CALLERS: usize = 6;
/// Kills that must land while requests are running. Every other one hits a gateway.
const KILLS: usize = 16;
/// The largest number of answers between two kills.
const ANSWERS_MAX: usize = 12;
/// Short, because the attempts of a killed gateway are taken over when their lease is over.
const LEASE: &[(&str, &str)] = &[("HAPAX__ROUTES__0__LEASE", "1s")];
/// The pause between a failure and the next try.
const PAUSE: Duration = Duration::from_millis(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_service_has_one_order_for_each_key_however_often_something_is_killed() {
    one_order_for_each_key(Language::Python, 7).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_service_has_one_order_for_each_key_however_often_something_is_killed() {
    one_order_for_each_key(Language::Node, 8).await;
}

/// State shared by the callers and the task that kills.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    under_way: AtomicUsize,
    /// The number of requests that were sent again because no definite answer came.
    sent_again: AtomicUsize,
    answered: watch::Sender<usize>,
}

async fn one_order_for_each_key(language: Language, seed: u64) {
    let Some(installed) = install::installed(language) else {
        return;
    };
    let Some(mut world) = World::start(&installed, LEASE) else {
        return;
    };
    let relaying = Relaying::start(&world.database);
    let (shared, mut random) = (Arc::new(Shared::default()), Random::from_env(seed));
    let gateways: Vec<_> = (0..NODES).map(|node| world.gateway(node)).collect();
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| tokio::spawn(go_on(caller, gateways.clone(), shared.clone())))
        .collect();

    let mut landed = 0;
    for kill in 0..10 * KILLS {
        wait_answers(&shared, 1 + random.below(ANSWERS_MAX)).await;
        landed += usize::from(shared.under_way.load(Ordering::SeqCst) > 0);
        let node = random.below(NODES);
        // Meanwhile the callers continue with the other node.
        tokio::task::block_in_place(|| match kill % 2 {
            0 => world.services[node].kill_and_start_again(),
            _ => world.gateways[node].kill_and_start_again(),
        });
        if landed >= KILLS {
            break;
        }
    }
    shared.stop.store(true, Ordering::SeqCst);
    let mut told: BTreeMap<String, Answer> = BTreeMap::new();
    for caller in callers {
        told.extend(
            in_time("every caller is answered in the end", caller)
                .await
                .unwrap(),
        );
    }

    let sent_again = shared.sent_again.load(Ordering::SeqCst);
    let orders = world
        .database
        .psql("SELECT item, id FROM orders ORDER BY item");
    let orders: Vec<(&str, &str)> = orders
        .lines()
        .map(|line| line.split_once('|').unwrap())
        .collect();
    hapax_testkit::report!(
        "{}: {landed} kills landed, {sent_again} requests sent again; {} keys answered, {} orders",
        install::name(language),
        told.len(),
        orders.len()
    );
    assert!(landed >= KILLS && sent_again > 0, "the run shows nothing");
    let acknowledged: Vec<_> = told
        .iter()
        .map(|(key, answer)| {
            (
                key.clone(),
                answer.json()["id"].as_str().unwrap().to_owned(),
            )
        })
        .collect();
    let acknowledged: Vec<_> = acknowledged
        .iter()
        .map(|(key, id)| (key.as_str(), id.as_str()))
        .collect();
    assert_eq!(
        orders, acknowledged,
        "one order for each key, and the one that its caller was told of"
    );
    world.database.assert_each_order_has_its_message();
    assert_published(&told, &relaying.end().await);
    let states = world
        .database
        .psql("SELECT state, count(*) FROM hapax.heads GROUP BY state");
    assert_eq!(
        states,
        format!("2|{}", told.len()),
        "every record is completed"
    );
    for (number, (key, answer)) in told.iter().enumerate() {
        place(gateways[number % NODES], &Order::new(key))
            .await
            .assert_replays(answer);
    }
}

/// One message was published for each order that a caller was told of.
fn assert_published(told: &BTreeMap<String, Answer>, messages: &[Envelope]) {
    let mut published: Vec<_> = messages
        .iter()
        .map(|message| {
            let order: serde_json::Value = serde_json::from_slice(&message.payload).unwrap();
            assert_eq!(message.header("ce-type"), Some("order.placed"));
            assert_eq!(message.key.as_deref(), order["id"].as_str());
            (order["item"].to_string(), order["id"].to_string())
        })
        .collect();
    published.sort();
    let expected: Vec<_> = told
        .values()
        .map(|answer| {
            let order = answer.json();
            (order["item"].to_string(), order["id"].to_string())
        })
        .collect();
    assert_eq!(published, expected);
    let ids: BTreeSet<_> = messages.iter().map(|message| message.id).collect();
    assert_eq!(ids.len(), messages.len(), "each has an id of its own");
}

/// Waits for `count` more answers.
async fn wait_answers(shared: &Shared, count: usize) {
    let mut answered = shared.answered.subscribe();
    let wanted = *answered.borrow() + count;
    let more = answered.wait_for(|answered| *answered >= wanted);
    in_time("callers are answered", more).await.unwrap();
}

/// Sends one key after the other, each until it is answered.
async fn go_on(
    caller: usize,
    gateways: Vec<std::net::SocketAddr>,
    shared: Arc<Shared>,
) -> Vec<(String, Answer)> {
    let mut told = Vec::new();
    while !shared.stop.load(Ordering::SeqCst) {
        let order = Order::new(format!("key-{caller}-{:04}", told.len()));
        let mut node = caller + told.len();
        let answer = loop {
            shared.under_way.fetch_add(1, Ordering::SeqCst);
            let answer = try_place(gateways[node % NODES], &order).await;
            shared.under_way.fetch_sub(1, Ordering::SeqCst);
            match answer.filter(|answer| is_definite(&order.key, answer)) {
                Some(answer) => break answer,
                None => tokio::time::sleep(PAUSE).await,
            }
            shared.sent_again.fetch_add(1, Ordering::SeqCst);
            node += 1;
        };
        told.push((order.key, answer));
        shared.answered.send_modify(|answered| *answered += 1);
    }
    told
}

/// Whether the caller can stop with this answer. Panics at answers that no caller should get, such
/// as 409 `outcome-unknown` or `not-joined`.
fn is_definite(key: &str, answer: &Answer) -> bool {
    // 500 comes from the service: it lost its database connection, or its fence.
    let is_passing = matches!(answer.status, 500 | 503)
        || answer.is_problem("in-flight")
        || answer.is_problem("upstream-unreachable")
        || (answer.status == 502 && answer.is_problem("outcome-unknown"));
    assert!(answer.status == 201 || is_passing, "{key} got {answer:?}");
    answer.status == 201
}
