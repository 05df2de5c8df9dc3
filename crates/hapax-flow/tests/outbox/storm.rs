//! Writers with delays, rollbacks and savepoints; three relays of one reader, one killed or paused
//! again and again; a NATS server that is killed twice.
//!
//! What arrived is read from the stream by a client of its own. It is compared with the writers' own
//! log of commits, and its order with the commit timestamps of the database. The stream forgets the
//! ids of messages at once, so that repeats are seen.
//!
//! A plain run is a sample. `HAPAX_CAMPAIGN=full` emits 100,000 messages, which takes some minutes.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use hapax_flow::publish::{Nats, NatsOptions};
use hapax_flow::relay::{Options, Relay};
use hapax_testkit::crash::{Child, announce, hear, role};
use hapax_testkit::random::Random;
use hapax_testkit::servers;
use tokio_util::sync::CancellationToken;

use crate::place;

const TEST: &str = "storm::what_commits_is_published_in_commit_order_and_nothing_else_is";
const WRITERS: usize = 16;
const KEYS: usize = 40;
const RELAYS: usize = 3;
/// Short, so that a stand-by takes over soon.
const LEASE: Duration = Duration::from_secs(1);

fn messages_max() -> usize {
    let is_full = std::env::var("HAPAX_CAMPAIGN").is_ok_and(|size| size == "full");
    if is_full { 100_000 } else { 6_000 }
}

#[test]
fn what_commits_is_published_in_commit_order_and_nothing_else_is() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("a runtime");
    if role().is_some() {
        return runtime.block_on(relay());
    }
    // Writers deadlock often here, and a second each would be most of the run.
    let settings = [
        ("track_commit_timestamp", "on"),
        ("deadlock_timeout", "30ms"),
    ];
    let Some(postgres) = servers::Postgres::in_memory(&settings) else {
        return;
    };
    let Some(nats) = servers::Nats::start("") else {
        return;
    };
    runtime.block_on(storm(&postgres, nats));
}

/// The child: a relay, until its parent ends.
async fn relay() {
    let at = |name: &str| std::env::var(name).expect("the parent says where");
    let nats = Nats::new(NatsOptions::new([at("STORM_NATS")])).expect("a URL");
    let options = Options {
        lease: LEASE,
        ..Options::new("storm")
    };
    let relay = Relay::new(place::outbox(&at("STORM_DATABASE")), nats, options);
    let progress = relay.progress();
    std::thread::spawn(move || {
        // The parent asks who is active.
        while hear().is_some() {
            announce(if progress.is_active() {
                "active"
            } else {
                "standing by"
            });
        }
        std::process::exit(0);
    });
    relay.run(CancellationToken::new()).await;
}

/// What a writer knows of its transactions.
#[derive(Default)]
struct Log {
    committed: Mutex<HashSet<uuid::Uuid>>,
    rolled_back: Mutex<HashSet<uuid::Uuid>>,
    deadlocks: AtomicUsize,
    is_done: AtomicBool,
}

async fn storm(postgres: &servers::Postgres, nats: servers::Nats) {
    let url = tokio::task::block_in_place(|| postgres.database());
    place::migrate(&url).await;
    let session = place::session(&url).await;
    let sql = "CREATE TABLE effects (id uuid PRIMARY KEY, key text NOT NULL, place serial, xid xid DEFAULT pg_current_xact_id()::xid)";
    session.batch_execute(sql).await.expect("a table");
    make_stream(&nats).await;
    let seed = Random::from_env(21).below(1 << 30) as u64;
    let log = Arc::new(Log::default());
    let left = Arc::new(AtomicUsize::new(messages_max()));
    let writers: Vec<_> = (0..WRITERS)
        .map(|number| {
            let (url, log, left) = (url.clone(), log.clone(), left.clone());
            tokio::spawn(async move {
                write(&url, &log, &left, Random::new(seed + number as u64)).await;
            })
        })
        .collect();
    let envs = [("STORM_DATABASE", url.clone()), ("STORM_NATS", nats.url())];
    let disturbing = {
        let log = log.clone();
        tokio::task::spawn_blocking(move || disturb(nats, &envs, &log, Random::new(seed + 99)))
    };
    for writer in writers {
        writer.await.expect("a writer");
    }
    log.is_done.store(true, Ordering::SeqCst);
    let (nats, mut relays, faults) = disturbing.await.expect("no fault fails");
    let committed = log.committed.lock().expect("no writer panics").clone();
    let arrived = read_stream(&nats, &committed).await;
    let expected = commit_order(&session).await;
    judge(&log, &arrived, &expected, &faults);
    for relay in &mut relays {
        relay.kill();
    }
}

/// Emits until nothing is left to emit: one to four messages in a transaction, each beside its
/// effect. Some are rolled back to a savepoint, some transactions as a whole.
async fn write(url: &str, log: &Log, left: &AtomicUsize, mut random: Random) {
    let session = place::session(url).await;
    while left.load(Ordering::SeqCst) > 0 {
        let mut kept: Vec<uuid::Uuid> = Vec::new();
        let mut lost: Vec<uuid::Uuid> = Vec::new();
        session.batch_execute("BEGIN").await.expect("begins");
        let mut failed = false;
        for _ in 0..=random.below(4) {
            let key = random.below(KEYS);
            let goes_back = random.below(5) == 0;
            if goes_back {
                session
                    .batch_execute("SAVEPOINT s")
                    .await
                    .expect("a savepoint");
            }
            let delay = random.below(3) as f64 / 1000.0;
            let sql = "WITH e AS (SELECT hapax.emit('storm', 'k' || $1::int8::text, 'x') AS id), s AS (SELECT pg_sleep($2))
                       INSERT INTO effects (id, key) SELECT id, 'k' || $1::int8::text FROM e, s RETURNING id";
            match session.query_one(sql, &[&(key as i64), &delay]).await {
                Ok(row) if goes_back => lost.push(row.get(0)),
                Ok(row) => kept.push(row.get(0)),
                // Two writers have locked their keys in different orders.
                Err(error) => {
                    assert_eq!(
                        error.code().map(|code| code.code()),
                        Some("40P01"),
                        "{error}"
                    );
                    log.deadlocks.fetch_add(1, Ordering::Relaxed);
                    failed = true;
                    break;
                }
            }
            if goes_back {
                session
                    .batch_execute("ROLLBACK TO s")
                    .await
                    .expect("goes back");
            }
        }
        if failed || random.below(8) == 0 {
            session.batch_execute("ROLLBACK").await.expect("rolls back");
            lost.append(&mut kept);
        } else {
            session.batch_execute("COMMIT").await.expect("commits");
        }
        left.fetch_sub(
            kept.len().min(left.load(Ordering::SeqCst)),
            Ordering::SeqCst,
        );
        log.committed.lock().expect("no writer panics").extend(kept);
        log.rolled_back
            .lock()
            .expect("no writer panics")
            .extend(lost);
    }
}

#[derive(Debug, Default)]
struct Faults {
    kills: usize,
    kills_of_the_active: usize,
    pauses: usize,
    pauses_of_the_active: usize,
    restarts_of_the_broker: usize,
}

/// Kills or pauses a relay about each second, and the broker twice. A paused relay is woken when
/// another one has taken over.
fn disturb(
    mut nats: servers::Nats,
    envs: &[(&str, String)],
    log: &Log,
    mut random: Random,
) -> (servers::Nats, Vec<Child>, Faults) {
    let envs: Vec<(&str, &str)> = envs
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let start = || Child::spawn(TEST, "relay", &envs);
    let mut relays: Vec<Child> = (0..RELAYS).map(|_| start()).collect();
    let mut faults = Faults::default();
    while !log.is_done.load(Ordering::SeqCst) || faults.restarts_of_the_broker < 2 {
        let active = find_active(&mut relays);
        // Two in three strike the one that works.
        let victim = if random.below(3) > 0 {
            active
        } else {
            random.below(RELAYS)
        };
        let is_active = usize::from(victim == active);
        match random.below(5) {
            0 | 1 => {
                relays[victim].kill();
                relays[victim] = start();
                faults.kills += 1;
                faults.kills_of_the_active += is_active;
            }
            2 | 3 => {
                let paused = relays.remove(victim);
                paused.stop();
                // Another one takes over, and then there are two that think they are active.
                find_active(&mut relays);
                paused.cont();
                relays.push(paused);
                faults.pauses += 1;
                faults.pauses_of_the_active += is_active;
            }
            _ => {
                nats.kill();
                nats.restart();
                faults.restarts_of_the_broker += 1;
            }
        }
    }
    (nats, relays, faults)
}

/// The place of a relay that says that it is active.
fn find_active(relays: &mut [Child]) -> usize {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        for (place, relay) in relays.iter_mut().enumerate() {
            if relay.try_say("who")
                && relay.line(Duration::from_secs(10)).as_deref() == Some("active")
            {
                return place;
            }
        }
        assert!(Instant::now() < deadline, "no relay becomes active");
    }
}

pub(crate) async fn make_stream(nats: &servers::Nats) {
    let client = async_nats::connect(nats.url()).await.expect("a connection");
    let config = async_nats::jetstream::stream::Config {
        name: "STORM".into(),
        subjects: vec!["storm".into()],
        duplicate_window: Duration::from_millis(100),
        ..Default::default()
    };
    let context = async_nats::jetstream::new(client);
    context.create_stream(config).await.expect("a stream");
}

/// The id and key of each message in the stream, in its order, once every committed one is there.
pub(crate) async fn read_stream(
    nats: &servers::Nats,
    committed: &HashSet<uuid::Uuid>,
) -> Vec<(uuid::Uuid, String)> {
    let client = async_nats::connect(nats.url()).await.expect("a connection");
    let context = async_nats::jetstream::new(client);
    let stream = context.get_stream("STORM").await.expect("the stream");
    let consumer = stream
        .create_consumer(async_nats::jetstream::consumer::pull::OrderedConfig::default())
        .await
        .expect("a consumer");
    let mut messages = consumer.messages().await.expect("messages");
    let (mut arrived, mut missing) = (Vec::new(), committed.clone());
    loop {
        // After the last one: whatever a relay that woke up late still sends.
        let patience = Duration::from_secs(if missing.is_empty() { 2 } else { 60 });
        let Ok(Some(message)) = tokio::time::timeout(patience, messages.next()).await else {
            assert!(
                missing.is_empty(),
                "{} messages never arrive",
                missing.len()
            );
            return arrived;
        };
        let message = message.expect("a message");
        let headers = message.headers.as_ref().expect("headers");
        let id = headers.get("Nats-Msg-Id").expect("an id").as_str();
        let key = headers.get("Hapax-Key").expect("a key").as_str();
        let id: uuid::Uuid = id.parse().expect("a UUID");
        missing.remove(&id);
        arrived.push((id, key.to_owned()));
    }
}

/// The ids of each key in the order of their commits, by the database's own timestamps.
async fn commit_order(session: &tokio_postgres::Client) -> HashMap<String, Vec<uuid::Uuid>> {
    let sql = "SELECT key, array_agg(id ORDER BY pg_xact_commit_timestamp(xid), place) FROM effects GROUP BY key";
    let rows = session.query(sql, &[]).await.expect("effects");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

fn judge(
    log: &Log,
    arrived: &[(uuid::Uuid, String)],
    expected: &HashMap<String, Vec<uuid::Uuid>>,
    faults: &Faults,
) {
    let committed = log.committed.lock().expect("no writer panics");
    let rolled_back = log.rolled_back.lock().expect("no writer panics");
    let mut seen = HashSet::new();
    let mut firsts: HashMap<&str, Vec<uuid::Uuid>> = HashMap::new();
    for (id, key) in arrived {
        if seen.insert(*id) {
            firsts.entry(key).or_default().push(*id);
        }
    }
    let repeats = arrived.len() - seen.len();
    hapax_testkit::report!(
        "storm: {} committed, {} rolled back, {} deadlocks; {faults:?}; {} arrived, {repeats} of them repeats",
        committed.len(),
        rolled_back.len(),
        log.deadlocks.load(Ordering::Relaxed),
        arrived.len(),
    );
    assert!(
        faults.kills_of_the_active > 0 && faults.pauses_of_the_active > 0,
        "void: {faults:?}"
    );
    assert!(!rolled_back.is_empty(), "void: nothing was rolled back");
    let invented: Vec<_> = seen.difference(&committed).collect();
    assert!(
        invented.is_empty(),
        "{} messages were never committed",
        invented.len()
    );
    assert_eq!(seen.len(), committed.len(), "each arrived");
    for (key, order) in expected {
        assert_eq!(firsts.get(key.as_str()), Some(order), "the order of {key}");
    }
}
