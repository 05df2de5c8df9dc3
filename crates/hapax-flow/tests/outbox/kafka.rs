//! From a commit in the database to a consumer of Kafka, once: three relays of one reader, of which
//! the active one is killed or paused again and again, and a broker that is killed. What came is read
//! by the console consumer of Kafka, which is written in Java, under `read_committed`.
//!
//! A plain run is a sample: 5 kills of relays and 2 of the broker. `HAPAX_CAMPAIGN=full` has 200 and
//! 50, and takes ten minutes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hapax_flow::publish::{Kafka, KafkaOptions, KafkaServers};
use hapax_flow::relay::{Options, Relay};
use hapax_testkit::crash::{Child, announce, hear, role};
use hapax_testkit::random::Random;
use hapax_testkit::servers;
use tokio_util::sync::CancellationToken;

use crate::place;

const TEST: &str = "kafka::a_consumer_under_read_committed_gets_each_message_once";
const RELAYS: usize = 3;
/// Short, so that a stand-by takes over soon.
const LEASE: Duration = Duration::from_secs(1);
const KEYS: usize = 40;
/// Messages of a transaction.
const EMITTED: usize = 20;

#[derive(Debug, Default)]
struct Faults {
    kills: usize,
    pauses: usize,
    kills_of_the_broker: usize,
}

impl Faults {
    /// How many there are to be.
    fn wanted() -> Faults {
        let is_full = is_full();
        Faults {
            kills: if is_full { 200 } else { 5 },
            pauses: if is_full { 20 } else { 1 },
            kills_of_the_broker: if is_full { 50 } else { 2 },
        }
    }
}

fn is_full() -> bool {
    std::env::var("HAPAX_CAMPAIGN").is_ok_and(|size| size == "full")
}

#[test]
fn a_consumer_under_read_committed_gets_each_message_once() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    if role().is_some() {
        return runtime.block_on(relay());
    }
    let Some(postgres) = servers::Postgres::in_memory(&[]) else {
        return;
    };
    let Some(kafka) = servers::Kafka::start("") else {
        return;
    };
    runtime.block_on(storm(&postgres, kafka));
}

/// The child: a relay, until its parent ends.
async fn relay() {
    let at = |name: &str| std::env::var(name).expect("the parent says where");
    let servers = KafkaServers::new([at("STORM_KAFKA")]);
    let mut options = KafkaOptions::new(servers, "storm-relay");
    options.timeout = Duration::from_secs(2);
    let kafka = Kafka::new(options).expect("right options");
    let options = Options {
        lease: LEASE,
        ..Options::new("storm")
    };
    let relay = Relay::new(place::outbox(&at("STORM_DATABASE")), kafka, options);
    let progress = relay.progress();
    std::thread::spawn(move || {
        while hear().is_some() {
            let counts = progress.counts();
            let is_active = if progress.is_active() { "active" } else { "-" };
            announce(format!(
                "{is_active} {} {}",
                counts.published, counts.duplicates
            ));
        }
        std::process::exit(0);
    });
    relay.run(CancellationToken::new()).await;
}

async fn storm(postgres: &servers::Postgres, kafka: servers::Kafka) {
    let url = tokio::task::block_in_place(|| postgres.database());
    place::migrate(&url).await;
    let session = place::session(&url).await;
    let sql = "CREATE TABLE effects (id uuid PRIMARY KEY, key text, place serial)";
    session.batch_execute(sql).await.expect("a table");
    // The first message makes the topic.
    tokio::task::block_in_place(|| kafka.write_by_java("orders", &["first"]));
    let is_done = Arc::new(AtomicBool::new(false));
    let writing = tokio::spawn(write(url.clone(), is_done.clone()));
    let envs = [("STORM_DATABASE", url), ("STORM_KAFKA", kafka.bootstrap())];
    let disturbing = tokio::task::spawn_blocking(move || disturb(kafka, &envs));
    let (kafka, mut relays, faults, absorbed) = disturbing.await.expect("no fault fails");
    is_done.store(true, Ordering::SeqCst);
    writing.await.expect("the writer ends");
    let committed = committed(&session).await;
    let expected: usize = committed.values().map(Vec::len).sum();
    let read = tokio::task::block_in_place(|| read_at_last(&kafka, expected));
    for relay in &mut relays {
        relay.kill();
    }
    let came: usize = read.values().map(Vec::len).sum();
    hapax_testkit::report!(
        "storm: {expected} messages committed, {came} read under read_committed; {faults:?}; \
         at least {absorbed} repeats were absorbed"
    );
    for (key, committed) in &committed {
        let came = &read[key];
        let different: HashSet<&String> = came.iter().collect();
        assert!(
            came == committed,
            "key {key}: {} committed, {} came, {} of them different",
            committed.len(),
            came.len(),
            different.len()
        );
    }
    assert_eq!(came, expected);
    let Faults {
        kills,
        pauses,
        kills_of_the_broker,
    } = Faults::wanted();
    assert!(
        faults.kills >= kills
            && faults.pauses >= pauses
            && faults.kills_of_the_broker >= kills_of_the_broker,
        "void: {faults:?}"
    );
}

/// Emits, each message beside its effect, until it is told to end.
async fn write(url: String, is_done: Arc<AtomicBool>) {
    let session = place::session(&url).await;
    let sql = "INSERT INTO effects (id, key) \
               SELECT hapax.emit('orders', 'k-' || n % $1::int4, n::text), 'k-' || n % $1 \
               FROM generate_series($2::int4, $3::int4) AS n";
    // A full campaign takes so long that it would have too many otherwise.
    let pause = Duration::from_millis(if is_full() { 50 } else { 10 });
    let (keys, mut first) = (i32::try_from(KEYS).expect("few"), 0);
    while !is_done.load(Ordering::SeqCst) {
        let last = first + i32::try_from(EMITTED).expect("few") - 1;
        let emitted = session.execute(sql, &[&keys, &first, &last]).await;
        emitted.expect("it emits");
        first = last + 1;
        tokio::time::sleep(pause).await;
    }
}

/// The ids of each key in the order of their commits, as the writer knows it.
async fn committed(session: &tokio_postgres::Client) -> HashMap<String, Vec<String>> {
    let sql = "SELECT key, id::text FROM effects ORDER BY place";
    let mut committed: HashMap<String, Vec<String>> = HashMap::new();
    for row in session.query(sql, &[]).await.expect("rows") {
        committed.entry(row.get(0)).or_default().push(row.get(1));
    }
    committed
}

/// The ids of each key as Java reads them, when all that is expected has come or nothing more does.
fn read_at_last(kafka: &servers::Kafka, expected: usize) -> HashMap<String, Vec<String>> {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let lines = kafka.read_by_java("orders", expected + 1);
        if lines.len() > expected || Instant::now() > deadline {
            let mut read: HashMap<String, Vec<String>> = HashMap::new();
            for line in lines.iter().filter(|line| !line.starts_with("NO_HEADERS")) {
                let of_key = read.entry(header(line, "ce_partitionkey")).or_default();
                of_key.push(header(line, "ce_id"));
            }
            return read;
        }
    }
}

fn header(line: &str, name: &str) -> String {
    let headers = line.split(['\t', ',']);
    let mut found = headers.filter_map(|header| header.strip_prefix(name)?.strip_prefix(':'));
    found.next().expect("a header").to_owned()
}

/// Strikes the active relay and the broker. A paused relay is woken when another one is active.
fn disturb(
    mut kafka: servers::Kafka,
    envs: &[(&str, String)],
) -> (servers::Kafka, Vec<Child>, Faults, u64) {
    let envs: Vec<(&str, &str)> = envs
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let start = || Child::spawn(TEST, "relay", &envs);
    let mut relays: Vec<Child> = (0..RELAYS).map(|_| start()).collect();
    let mut random = Random::from_env(23);
    let wanted = Faults::wanted();
    let mut faults = Faults::default();
    let mut absorbed = 0;
    loop {
        let left = [
            wanted.kills.saturating_sub(faults.kills),
            wanted.pauses.saturating_sub(faults.pauses),
            wanted
                .kills_of_the_broker
                .saturating_sub(faults.kills_of_the_broker),
        ];
        if left.iter().sum::<usize>() == 0 {
            return (kafka, relays, faults, absorbed);
        }
        let (active, repeats) = find_active(&mut relays);
        // Somewhere in its work.
        std::thread::sleep(Duration::from_millis(random.below(300) as u64));
        let strike = random.below(left.iter().sum());
        if strike < left[0] {
            relays[active].kill();
            relays[active] = start();
            faults.kills += 1;
            absorbed += repeats;
        } else if strike < left[0] + left[1] {
            let paused = relays.remove(active);
            paused.stop();
            find_active(&mut relays);
            paused.cont();
            relays.push(paused);
            faults.pauses += 1;
        } else {
            kafka.kill();
            kafka.restart();
            faults.kills_of_the_broker += 1;
        }
    }
}

/// The place of a relay that is active and has published something, and how many repeats it did not
/// write.
fn find_active(relays: &mut [Child]) -> (usize, u64) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        for (place, relay) in relays.iter_mut().enumerate() {
            if !relay.try_say("who") {
                continue;
            }
            let Some(said) = relay.line(Duration::from_secs(10)) else {
                continue;
            };
            let words: Vec<&str> = said.split(' ').collect();
            if let ["active", published, duplicates] = words[..]
                && published != "0"
            {
                return (place, duplicates.parse().expect("a number"));
            }
        }
        assert!(Instant::now() < deadline, "no relay is active");
        std::thread::sleep(Duration::from_millis(20));
    }
}
