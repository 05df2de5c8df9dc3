//! The broker is away while a writer goes on: no message is lost, and no emit waits.
//!
//! A plain run is three seconds of it. `HAPAX_CAMPAIGN=full` is ten minutes.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use hapax_flow::publish::{Nats, NatsOptions};
use hapax_flow::relay::{Options, Relay};
use hapax_testkit::servers;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use crate::{place, storm};

const KEYS: u64 = 20;
/// Between two messages of the writer.
const PAUSE: Duration = Duration::from_millis(5);

fn away() -> Duration {
    let is_full = std::env::var("HAPAX_CAMPAIGN").is_ok_and(|size| size == "full");
    Duration::from_secs(if is_full { 600 } else { 3 })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_emitted_while_the_broker_is_away_is_published_when_it_is_back() {
    let (Some(database), Some(mut nats)) = (place::Database::new().await, servers::Nats::start(""))
    else {
        return;
    };
    let session = database.session().await;
    storm::make_stream(&nats).await;
    let publisher = Nats::new(NatsOptions::new([nats.url()])).expect("a URL");
    let relay = Relay::new(
        place::outbox(&database.url),
        publisher,
        Options::new("outage"),
    );
    let (progress, stop) = (relay.progress(), CancellationToken::new());
    let running = tokio::spawn({
        let stop = stop.clone();
        async move { relay.run(stop).await }
    });
    let mut emitted = vec![emit(&session, 0).await];
    while progress.counts().published == 0 {
        tokio::time::sleep(PAUSE).await;
    }
    tokio::task::block_in_place(|| nats.kill());
    let (began, mut slowest) = (Instant::now(), Duration::ZERO);
    while began.elapsed() < away() {
        let emitting = Instant::now();
        emitted.push(emit(&session, emitted.len() as u64).await);
        slowest = slowest.max(emitting.elapsed());
        tokio::time::sleep(PAUSE).await;
    }
    let outages = progress.counts().outages;
    tokio::task::block_in_place(|| nats.restart());
    let back = Instant::now();
    let all: HashSet<uuid::Uuid> = emitted.iter().map(|(id, _)| *id).collect();
    while progress.counts().published < emitted.len() as u64 {
        assert!(
            back.elapsed() < Duration::from_secs(60),
            "{:?}",
            progress.counts()
        );
        tokio::time::sleep(PAUSE).await;
    }
    let caught_up = back.elapsed();
    let arrived = storm::read_stream(&nats, &all).await;
    stop.cancel();
    running.await.expect("a relay does not panic");
    hapax_testkit::report!(
        "outage: {:?} with {outages} tries, {} messages meanwhile, the slowest emit {slowest:?}; all there {caught_up:?} after the return",
        away(),
        emitted.len() - 1
    );
    assert!(outages > 0, "void: the relay noticed nothing");
    assert!(
        slowest < Duration::from_secs(1),
        "an emit waited {slowest:?} for the broker"
    );
    assert_eq!(by_key(&arrived), by_key(&emitted));
}

/// Emits one message. Returns its id and key.
async fn emit(session: &Client, number: u64) -> (uuid::Uuid, String) {
    let key = format!("k{}", number * 7 % KEYS);
    let sql = "SELECT hapax.emit('storm', $1, 'x')";
    let row = session.query_one(sql, &[&key]).await;
    (row.expect("an id").get(0), key)
}

fn by_key(messages: &[(uuid::Uuid, String)]) -> HashMap<&str, Vec<uuid::Uuid>> {
    let mut keys: HashMap<&str, Vec<uuid::Uuid>> = HashMap::new();
    for (id, key) in messages {
        keys.entry(key).or_default().push(*id);
    }
    keys
}
