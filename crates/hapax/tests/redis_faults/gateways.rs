//! Services on one Redis are killed at random while clients retry.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hapax_testkit::crash::{self, Child, Ledger};
use hapax_testkit::random::Random;
use hapax_testkit::servers;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::campaign::{STUCK, alone, size};
use super::client::{self, Answer};
use super::service;

const TEST: &str = "gateways::no_key_is_dispatched_twice_however_often_services_are_killed";

const SERVICES: usize = 3;
const CLIENTS: usize = 12;
/// At most so many answers between two kills.
const BETWEEN_MAX: usize = 24;
/// A client's pause before it sends a key again.
const PAUSE: Duration = Duration::from_millis(50);
/// The number of keys that are checked concurrently at the end.
const AT_A_TIME: usize = 32;

#[test]
fn no_key_is_dispatched_twice_however_often_services_are_killed() {
    if crash::role().is_some() {
        service::serve();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(campaign());
}

/// One process, from its start to its kill.
struct Service {
    address: SocketAddr,
    in_flight: watch::Sender<usize>,
    is_killed: AtomicBool,
    /// Requests that were sent before the kill and got no complete answer.
    cut_off: AtomicUsize,
}

impl Service {
    fn start(directory: &std::path::Path, redis: &str) -> (Child, Arc<Service>) {
        let (child, address) = service::start(TEST, directory, redis);
        let service = Service {
            address,
            in_flight: watch::Sender::new(0),
            is_killed: AtomicBool::new(false),
            cut_off: AtomicUsize::new(0),
        };
        (child, Arc::new(service))
    }

    async fn send(&self, key: &str) -> Option<Answer> {
        let is_late = self.is_killed.load(Ordering::SeqCst);
        self.in_flight.send_modify(|count| *count += 1);
        let answer = client::send(self.address, "/charges", key, false).await;
        if answer.is_none() && !is_late {
            self.cut_off.fetch_add(1, Ordering::SeqCst);
        }
        self.in_flight.send_modify(|count| *count -= 1);
        answer
    }
}

/// What the clients know.
struct Clients {
    services: Vec<Mutex<Arc<Service>>>,
    /// The first complete answer of each key.
    acknowledged: Mutex<HashMap<String, Answer>>,
    answers: watch::Sender<usize>,
    /// Keys that are held as unknown.
    held: Mutex<Vec<String>>,
    repeats: AtomicUsize,
    /// Retries that had to run the key.
    ran_on_retry: AtomicUsize,
    replayed_on_retry: AtomicUsize,
    is_over: AtomicBool,
}

impl Clients {
    fn service(&self, number: usize) -> Arc<Service> {
        self.services[number].lock().unwrap().clone()
    }

    async fn send(&self, number: usize, key: &str) -> Option<Answer> {
        let answer = self.service(number).send(key).await;
        self.answers.send_modify(|count| *count += 1);
        answer
    }

    fn acknowledge(&self, key: &str, answer: Answer) {
        let mut acknowledged = self.acknowledged.lock().unwrap();
        let before = acknowledged.insert(key.to_owned(), answer);
        assert_eq!(before, None, "{key} is asked for by one client");
    }

    /// A client that sends new keys. A key without an answer is left to a task that retries it.
    async fn run(self: Arc<Self>, client: usize) {
        let mut random = Random::new(client as u64);
        let mut retries = JoinSet::new();
        for number in 0.. {
            if self.is_over.load(Ordering::SeqCst) {
                break;
            }
            let key = format!("{client}-{number}");
            match self.send(random.below(SERVICES), &key).await {
                Some(answer) if answer.status == 201 => {
                    self.acknowledge(&key, answer.clone());
                    if random.below(4) == 0 {
                        let again = self.send(random.below(SERVICES), &key).await;
                        self.compare(&key, &answer, again);
                    }
                }
                _ => {
                    let seed = (client * 1_000_000 + number) as u64;
                    retries.spawn(self.clone().retry(key, seed));
                }
            }
        }
        retries.join_all().await;
    }

    fn compare(&self, key: &str, first: &Answer, again: Option<Answer>) {
        let Some(again) = again else { return };
        // The service that was asked may itself have been cut off from an answer.
        if again.status != 503 {
            assert_eq!(replay_of(first), again, "{key} was acknowledged");
            self.repeats.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Sends a key to any service until there is a definite answer.
    async fn retry(self: Arc<Self>, key: String, seed: u64) {
        let mut random = Random::new(seed);
        let begun = Instant::now();
        loop {
            tokio::time::sleep(PAUSE).await;
            match self.send(random.below(SERVICES), &key).await {
                Some(answer) if answer.status == 201 => {
                    let how = if answer.is_replay {
                        &self.replayed_on_retry
                    } else {
                        &self.ran_on_retry
                    };
                    how.fetch_add(1, Ordering::SeqCst);
                    return self.acknowledge(&key, answer);
                }
                Some(answer) if answer.is_unknown() => {
                    return self.held.lock().unwrap().push(key);
                }
                Some(answer) => assert!(
                    matches!(answer.status, 409 | 503),
                    "{key} was answered with {answer:?}"
                ),
                None => {}
            }
            assert!(begun.elapsed() < STUCK, "{key} has no definite answer");
        }
    }

    /// Waits for `count` more answers.
    async fn more(&self, count: usize) {
        let mut answers = self.answers.subscribe();
        let wanted = *answers.borrow() + count;
        let waited = tokio::time::timeout(STUCK, answers.wait_for(|count| *count >= wanted));
        assert!(waited.await.is_ok(), "no {count} answers in {STUCK:?}");
    }
}

/// The answer as a repeat gets it.
fn replay_of(answer: &Answer) -> Answer {
    Answer {
        is_replay: true,
        ..answer.clone()
    }
}

async fn campaign() {
    let _alone = alone().await;
    let settings = [("appendonly", "yes"), ("appendfsync", "always")];
    let Some(redis) = servers::Redis::start(&settings) else {
        return;
    };
    let mut random = Random::from_env(1);
    let directory = tempfile::tempdir().expect("a directory");
    let start = || tokio::task::block_in_place(|| Service::start(directory.path(), &redis.url()));
    let (mut children, services): (Vec<_>, Vec<_>) = (0..SERVICES).map(|_| start()).unzip();
    let clients = Arc::new(Clients {
        services: services.into_iter().map(Mutex::new).collect(),
        acknowledged: Mutex::default(),
        answers: watch::Sender::new(0),
        held: Mutex::default(),
        repeats: AtomicUsize::new(0),
        ran_on_retry: AtomicUsize::new(0),
        replayed_on_retry: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
    });
    let mut running = JoinSet::new();
    for client in 0..CLIENTS {
        running.spawn(clients.clone().run(client));
    }

    let wanted = size(15, 1000);
    let (mut kills, mut landed, mut cut_off) = (0, 0, 0);
    while landed < wanted {
        clients.more(1 + random.below(BETWEEN_MAX)).await;
        let number = random.below(SERVICES);
        let service = clients.service(number);
        service.is_killed.store(true, Ordering::SeqCst);
        children[number].kill();
        kills += 1;
        let (child, next) = start();
        children[number] = child;
        *clients.services[number].lock().unwrap() = next;
        // The requests that the kill has cut off end by themselves.
        let mut in_flight = service.in_flight.subscribe();
        let waited = tokio::time::timeout(STUCK, in_flight.wait_for(|count| *count == 0));
        assert!(waited.await.is_ok(), "requests to a killed service go on");
        let cut = service.cut_off.load(Ordering::SeqCst);
        landed += usize::from(cut > 0);
        cut_off += cut;
        assert!(kills <= 10 * wanted, "void: only {landed} kills landed");
    }
    clients.is_over.store(true, Ordering::SeqCst);
    running.join_all().await;
    judge(&clients, directory.path(), kills, landed, cut_off).await;
}

async fn judge(
    clients: &Arc<Clients>,
    directory: &std::path::Path,
    kills: usize,
    landed: usize,
    cut_off: usize,
) {
    let acknowledged = clients.acknowledged.lock().unwrap().clone();
    let held = clients.held.lock().unwrap().clone();
    let mut replays = JoinSet::new();
    let mut replayed = 0;
    for (number, (key, answer)) in acknowledged.clone().into_iter().enumerate() {
        if replays.len() == AT_A_TIME {
            replays.join_next().await.expect("there are some").unwrap();
        }
        let service = clients.service(number % SERVICES);
        replays.spawn(async move {
            let again = service.send(&key).await.expect("nobody kills it now");
            assert_eq!(replay_of(&answer), again, "{key} was acknowledged");
        });
        replayed += 1;
    }
    replays.join_all().await;
    let effects = Ledger::open(directory.join("ledger")).counts();
    let twice: Vec<_> = effects.iter().filter(|(_, count)| **count > 1).collect();
    let held_done = held.iter().filter(|key| effects.contains_key(*key)).count();
    hapax_testkit::report!(
        "gateways: {kills} kills, of which {landed} landed and cut off {cut_off} requests; {} keys acknowledged, all {replayed} replayed byte for byte, and {} on another service meanwhile; \
         after a cut: {} replayed, {} run, {} held as unknown, of which {held_done} had their effect; {} effects, {} keys dispatched twice",
        acknowledged.len(),
        clients.repeats.load(Ordering::SeqCst),
        clients.replayed_on_retry.load(Ordering::SeqCst),
        clients.ran_on_retry.load(Ordering::SeqCst),
        held.len(),
        effects.len(),
        twice.len(),
    );
    assert!(twice.is_empty(), "dispatched twice: {twice:?}");
    for key in acknowledged.keys() {
        assert_eq!(effects.get(key), Some(&1), "{key} was acknowledged");
    }
    assert!(
        held_done > 0,
        "void: no kill came between an effect and its record"
    );
}
