//! A storm of requests and repeats at two nodes on Redis over Postgres, while Redis is flushed,
//! paused, killed, slowed down, set back and filled with forgeries.

mod chaos;
mod waits;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hapax::store::postgres::{ConnectOptions, schema};
use hapax::store::tiered::{Options, Stats, Tiered};
use hapax::{
    Audit, BoxError, Hapax, Key, Limits, Once, Operation, OperatorError, Postgres, Principal,
    RecordId, Rejection, RunError, Scope, Store,
};
use hapax_testkit::random::Random;
use hapax_testkit::servers;
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::chaos::disturb_until_over;
use super::campaign::{STUCK, alone, size};

/// How long the storm lasts, in seconds.
const SECONDS_SAMPLE: usize = 6;
const SECONDS_FULL: usize = 60;
const CLIENTS: usize = 10;
/// Clients of a node on Postgres alone. What they wait for is Postgres' own time, and the
/// machine's.
const CONTROLS: usize = 3;
const OPERATORS: usize = 2;
/// Repeats are of one of the latest keys.
const LATEST: usize = 1_000;
/// How long a request may wait for Redis.
const CACHE_TIMEOUT: Duration = Duration::from_millis(50);
/// How much the longest of some thousand requests may differ between nodes for other reasons.
const MARGIN: Duration = Duration::from_millis(200);
/// A client's pause before it sends a key again.
const PAUSE: Duration = Duration::from_millis(5);

const WORK: &str = "charge";

/// A key that has its answer.
struct Entry {
    key: String,
    answer: Bytes,
    phase: AtomicU8,
}

/// The phases of an [`Entry`].
const KEPT: u8 = 0;
const BEING_FORGOTTEN: u8 = 1;
const FORGOTTEN: u8 = 2;

impl Entry {
    fn phase(&self) -> u8 {
        self.phase.load(Ordering::SeqCst)
    }
}

/// What clients, operators and work have seen.
#[derive(Default)]
struct Books {
    /// How often each key had its effect, as counted by the work.
    effects: Mutex<HashMap<String, usize>>,
    entries: Mutex<Vec<Arc<Entry>>>,
    /// Those that were forgotten.
    forgotten: Mutex<Vec<Arc<Entry>>>,
    answers: watch::Sender<usize>,
    repeats: AtomicUsize,
    in_flight: AtomicUsize,
    reused: AtomicUsize,
    /// Repeats of a forgotten key.
    gone: AtomicUsize,
    longest_us: AtomicU64,
    longest_of_control_us: AtomicU64,
    is_over: AtomicBool,
}

impl Books {
    /// One of the latest keys, or one that was forgotten.
    fn entry(&self, random: &mut Random) -> Option<Arc<Entry>> {
        let forgotten = self.forgotten.lock().unwrap();
        if !forgotten.is_empty() && random.below(10) == 0 {
            return Some(forgotten[random.below(forgotten.len())].clone());
        }
        let entries = self.entries.lock().unwrap();
        let latest = &entries[entries.len().saturating_sub(LATEST)..];
        (!latest.is_empty()).then(|| latest[random.below(latest.len())].clone())
    }

    async fn more(&self, count: usize) {
        let mut answers = self.answers.subscribe();
        let wanted = *answers.borrow() + count;
        let waited = tokio::time::timeout(STUCK, answers.wait_for(|count| *count >= wanted));
        assert!(waited.await.is_ok(), "no {count} answers in {STUCK:?}");
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }
}

/// The request of a key. Nobody else sends it.
fn request(key: &str) -> String {
    format!("the request of {key}")
}

/// A node, and how its requests are counted.
#[derive(Clone)]
struct Node {
    hapax: Hapax,
    once: Once,
    books: Arc<Books>,
    is_control: bool,
}

impl Node {
    fn new(store: Arc<dyn Store>, books: &Arc<Books>, is_control: bool) -> Node {
        // Repeats are not answered from this node's memory.
        let limits = Limits {
            cache_bytes_max: 0,
            ..Limits::default()
        };
        let hapax = Hapax::builder_shared(store).limits(limits).build();
        Node {
            once: hapax.once(WORK),
            hapax,
            books: books.clone(),
            is_control,
        }
    }

    /// Sends a request once. Returns the answer, and whether it is a replay.
    async fn send(&self, key: &str, request: &str) -> Result<(Bytes, bool), Rejection> {
        let (books, name, asked) = (self.books.clone(), key.to_owned(), request.to_owned());
        let work = async move |operation: Operation| {
            *books
                .effects
                .lock()
                .unwrap()
                .entry(name.clone())
                .or_default() += 1;
            let answer = format!("{name} / {asked} / {}", operation.fence());
            Ok::<_, BoxError>(Bytes::from(answer))
        };
        let begun = Instant::now();
        let ran = self.once.run(key, request.to_owned(), work).await;
        let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        let longest = if self.is_control {
            &self.books.longest_of_control_us
        } else {
            self.books.answers.send_modify(|count| *count += 1);
            &self.books.longest_us
        };
        longest.fetch_max(took, Ordering::Relaxed);
        match ran {
            Ok(done) => Ok((done.value, done.replayed)),
            Err(RunError::Rejected(rejection)) => Err(rejection),
            Err(error) => panic!("{key}: {error}"),
        }
    }

    /// Sends a new key until there is an answer.
    async fn charge(&self, key: &str) -> Bytes {
        let (begun, request) = (Instant::now(), request(key));
        loop {
            match self.send(key, &request).await {
                Ok((answer, _)) => {
                    let own = format!("{key} / {request} / ");
                    assert!(answer.starts_with(own.as_bytes()), "{key} got {answer:?}");
                    return answer;
                }
                Err(Rejection::InFlight { .. }) => {
                    self.books.in_flight.fetch_add(1, Ordering::Relaxed);
                }
                Err(rejection) => panic!("{key} got {rejection:?}"),
            }
            assert!(begun.elapsed() < STUCK, "{key} has no answer");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Sends a key again that has its answer.
    async fn repeat(&self, entry: &Entry) {
        let Entry { key, answer, .. } = entry;
        let before = entry.phase();
        let repeated = self.send(key, &request(key)).await;
        self.judge(entry, before, &repeated);
        if let Ok((repeated, is_replay)) = repeated {
            assert!(is_replay, "{key} ran again");
            assert_eq!(repeated, answer, "{key} got another answer");
            self.books.repeats.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends another request with a key that has its answer.
    async fn reuse(&self, entry: &Entry) {
        let before = entry.phase();
        let reused = self.send(&entry.key, "another request").await;
        if reused == Err(Rejection::KeyReused) {
            self.books.reused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        assert!(
            reused.is_err(),
            "{} with another request got {reused:?}",
            entry.key
        );
        self.judge(entry, before, &reused);
    }

    fn judge(&self, entry: &Entry, before: u8, got: &Result<(Bytes, bool), Rejection>) {
        let key = &entry.key;
        match got {
            Ok(_) => assert_ne!(before, FORGOTTEN, "{key} was forgotten, and replayed"),
            Err(Rejection::KeyExpired { .. }) => {
                assert_ne!(entry.phase(), KEPT, "{key} was not forgotten");
                let is_forgotten = usize::from(before == FORGOTTEN);
                self.books.gone.fetch_add(is_forgotten, Ordering::Relaxed);
            }
            // The operator's transaction holds the record.
            Err(Rejection::InFlight { .. }) => {
                assert_ne!(entry.phase(), KEPT, "{key} has its answer");
                self.books.in_flight.fetch_add(1, Ordering::Relaxed);
            }
            Err(rejection) => panic!("{key} got {rejection:?}"),
        }
    }
}

async fn client(nodes: [Node; 2], name: String, seed: u64) {
    let mut random = Random::new(seed);
    let books = nodes[0].books.clone();
    for number in 0.. {
        if books.is_over() {
            return;
        }
        let node = &nodes[random.below(2)];
        let entry = books.entry(&mut random);
        match (random.below(100), entry) {
            (30..95, Some(entry)) => node.repeat(&entry).await,
            (95..100, Some(entry)) => node.reuse(&entry).await,
            (kind, _) => {
                let key = format!("{name}-{number}");
                let answer = if kind < 5 {
                    // At both nodes at once.
                    let [one, other] = &nodes;
                    let (one, other) = tokio::join!(one.charge(&key), other.charge(&key));
                    assert_eq!(one, other, "{key} has two answers");
                    one
                } else {
                    node.charge(&key).await
                };
                let entry = Entry {
                    key,
                    answer,
                    phase: AtomicU8::new(KEPT),
                };
                books.entries.lock().unwrap().push(Arc::new(entry));
            }
        }
    }
}

/// The same on Postgres alone: how long its requests take is what Postgres and the machine need.
async fn control(node: Node, name: String) {
    for number in 0.. {
        if node.books.is_over() {
            return;
        }
        let key = format!("{name}-{number}");
        let answer = node.charge(&key).await;
        let repeated = node.send(&key, &request(&key)).await;
        assert_eq!(repeated, Ok((answer, true)));
    }
}

/// Forgets keys.
async fn operator(nodes: [Node; 2], seed: u64) {
    let mut random = Random::new(seed);
    let books = nodes[0].books.clone();
    while !books.is_over() {
        books.more(20).await;
        let Some(entry) = books.entry(&mut random) else {
            continue;
        };
        let kept =
            entry
                .phase
                .compare_exchange(KEPT, BEING_FORGOTTEN, Ordering::SeqCst, Ordering::SeqCst);
        if kept.is_err() {
            continue;
        }
        let audit = Audit {
            by: "the test",
            reason: "it says so",
        };
        let hapax = &nodes[random.below(2)].hapax;
        let begun = Instant::now();
        loop {
            match hapax.forget(record(&entry.key), audit).await {
                Ok(()) => break,
                // Another transaction holds the record for a moment.
                Err(OperatorError::Changed(_) | OperatorError::Store(_)) => {}
                Err(error) => panic!("{} cannot be forgotten: {error}", entry.key),
            }
            assert!(begun.elapsed() < STUCK, "{} is not forgotten", entry.key);
        }
        entry.phase.store(FORGOTTEN, Ordering::SeqCst);
        books.forgotten.lock().unwrap().push(entry);
    }
}

fn record(key: &str) -> RecordId {
    let scope = Scope {
        namespace: "default".into(),
        principal: Principal::Anonymous,
        method: "RUN".into(),
        path: WORK.into(),
    };
    RecordId::of(&scope, &Key::new(key).expect("a key"))
}

async fn database() -> Option<String> {
    let url = servers::Postgres::shared()?.database();
    let options = ConnectOptions::parse(&url).expect("a URL");
    schema::migrate(&options, &schema::migrations(), |_| {})
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    Some(url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_to_the_cache_no_effect_is_repeated_and_no_answer_is_wrong() {
    let _alone = alone().await;
    let Some(url) = database().await else { return };
    let Some(mut redis) = servers::Redis::start(&[]) else {
        return;
    };
    let open = async || Postgres::open(&url).await.expect("a database");
    let tier = async || {
        let tier = Tiered::new(open().await, &Options::new(redis.url()));
        Arc::new(tier.expect("an address"))
    };
    let tiers = [tier().await, tier().await];
    let books = Arc::new(Books::default());
    let nodes = tiers.clone().map(|tier| Node::new(tier, &books, false));
    // Their connections are made before the storm: a Redis that is slow to be connected to would be
    // left alone.
    for (node, tier) in nodes.iter().zip(&tiers) {
        warm(node, tier).await;
    }
    let alone = Node::new(Arc::new(open().await), &Arc::default(), true);
    let mut tasks = JoinSet::new();
    for number in 0..CLIENTS {
        tasks.spawn(client(nodes.clone(), format!("{number}"), number as u64));
    }
    for number in 0..OPERATORS {
        tasks.spawn(operator(nodes.clone(), 1_000 + number as u64));
    }
    let mut controls = JoinSet::new();
    for number in 0..CONTROLS {
        controls.spawn(control(alone.clone(), format!("control-{number}")));
    }
    let lasts = Duration::from_secs(size(SECONDS_SAMPLE, SECONDS_FULL) as u64);
    let counts =
        tokio::task::block_in_place(|| disturb_until_over(&mut redis, &tiers, &books, lasts));
    tasks.join_all().await;
    alone.books.is_over.store(true, Ordering::SeqCst);
    controls.join_all().await;
    judge(&nodes, &tiers, &alone.books, &counts).await;
}

/// Sends repeats until one of them is answered from Redis.
async fn warm(node: &Node, tier: &Tiered) {
    let begun = Instant::now();
    for number in 0.. {
        if tier.stats().hits > 0 {
            return;
        }
        assert!(begun.elapsed() < STUCK, "no repeat is answered from Redis");
        let key = format!("warm-{tier:p}-{number}");
        let answer = node.charge(&key).await;
        let repeated = node.send(&key, &request(&key)).await;
        assert_eq!(repeated, Ok((answer, true)));
    }
}

async fn judge(
    nodes: &[Node; 2],
    tiers: &[Arc<Tiered>; 2],
    control: &Books,
    chaos: &BTreeMap<&'static str, usize>,
) {
    let books = &nodes[0].books;
    let stats = tiers.clone().map(|tier| tier.stats());
    let sum = |of: fn(&Stats) -> u64| stats.iter().map(of).sum::<u64>();
    let micros = |longest: &AtomicU64| Duration::from_micros(longest.load(Ordering::Relaxed));
    let longest = micros(&books.longest_us);
    let longest_of_control = micros(&control.longest_of_control_us);
    let counted = |count: &AtomicUsize| count.load(Ordering::Relaxed);
    let effects = books.effects.lock().unwrap().clone();
    let twice: Vec<_> = effects.iter().filter(|(_, count)| **count > 1).collect();
    hapax_testkit::report!(
        "tier: {} events of chaos {chaos:?}; {} keys, {} repeats replayed, {} reused keys refused, {} keys forgotten and {} of their repeats refused; {} keys had two effects; no answer was wrong; \
         {} told that their key is in flight; hits {}, misses {}, unreadable {}, set_aside {}, left_alone {}, failures {}, kept {}; the longest request took {longest:?}, on Postgres alone {longest_of_control:?}",
        chaos.values().sum::<usize>(),
        effects.len(),
        counted(&books.repeats),
        counted(&books.reused),
        books.forgotten.lock().unwrap().len(),
        counted(&books.gone),
        twice.len(),
        counted(&books.in_flight),
        sum(|stats| stats.hits),
        sum(|stats| stats.misses),
        sum(|stats| stats.unreadable),
        sum(|stats| stats.set_aside),
        sum(|stats| stats.left_alone),
        sum(|stats| stats.failures),
        sum(|stats| stats.kept),
    );
    assert!(twice.is_empty(), "{twice:?}");
    let counts: [fn(&Stats) -> u64; 5] = [
        |stats| stats.hits,
        |stats| stats.unreadable,
        |stats| stats.set_aside,
        |stats| stats.left_alone,
        |stats| stats.failures,
    ];
    assert!(
        counts.into_iter().all(|of| sum(of) > 0),
        "void: the chaos was not noticed"
    );
    assert!(
        counted(&books.gone) > 0,
        "void: nothing forgotten was asked for"
    );
    // Every key once more, with a Redis that is up and may have anything in it.
    let entries = books.entries.lock().unwrap().clone();
    let mut repeats = JoinSet::new();
    for (number, entry) in entries.into_iter().enumerate() {
        if repeats.len() == CLIENTS {
            repeats.join_next().await.expect("there are some").unwrap();
        }
        let node = nodes[number % 2].clone();
        repeats.spawn(async move { node.repeat(&entry).await });
    }
    repeats.join_all().await;
    assert_eq!(*books.effects.lock().unwrap(), effects, "keys ran again");
    assert!(
        longest < longest_of_control + CACHE_TIMEOUT + MARGIN,
        "a request took {longest:?}, and {longest_of_control:?} on Postgres alone"
    );
}
