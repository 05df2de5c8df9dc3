//! Answers are dropped in bulk under load, while transactions stay open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hapax::store::postgres::Options;
use hapax::{Answer, Postgres, RecordId, Store};
use hapax_core::record::{Record, State};
use hapax_core::store::{Lifetime, Reading, Written};

use tokio::task::{JoinHandle, JoinSet};

use super::subject::{LONG, Subject, answer};
use super::world::{Server, open, prepared, session};

const WRITERS: usize = 64;
/// How long a table of answers is written to, and so how often one falls due.
const WIDTH_US: u64 = 100_000;
/// How often each node sweeps.
const SWEEP_EVERY: Duration = Duration::from_millis(25);
/// Just within thirteen widths: the farthest ahead that the ring is written, into the table that
/// was emptied last.
const RETENTION: Duration = Duration::from_millis(1250);
/// How often an answer is read while it replays.
const READ_EVERY: Duration = Duration::from_millis(200);
/// How often each writer writes an answer.
const WRITE_EVERY: Duration = Duration::from_millis(200);
/// Fewer turns than this prove nothing.
const TURNS_MIN: u64 = 20;
const TURNS: u64 = 60;
/// After this time the test ends with fewer turns.
const LONGEST: Duration = Duration::from_secs(20);
/// The longest a write may take, on a loaded machine: a turn waits 50 ms for its table, a write 100
/// ms for its record.
const STALL_MAX: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Tally {
    is_over: AtomicBool,
    written: AtomicU64,
    contested: AtomicU64,
    replayed: AtomicU64,
    expired: AtomicU64,
    longest_us: AtomicU64,
}

impl Tally {
    async fn timed<T>(&self, asked: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        let answered = asked.await;
        self.longest_us.fetch_max(
            u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
        answered
    }
}

/// Charges repeatedly: claims the key at two nodes concurrently, ends the attempt that won, and has
/// the answer read until it expires.
async fn write(nodes: [Arc<Postgres>; 2], reader: Arc<Reader>, writer: usize, tally: Arc<Tally>) {
    let mut replays = JoinSet::new();
    // The writers start at different times, so that every table has answers.
    tokio::time::sleep(
        WRITE_EVERY * u32::try_from(writer).unwrap() / u32::try_from(WRITERS).unwrap(),
    )
    .await;
    for number in 0.. {
        if tally.is_over.load(Ordering::Relaxed) {
            break;
        }
        let name = format!("{writer}-{number}");
        let rivals = [Subject::new(&name), Subject::new(&name)];
        let [first, second] = [0, 1].map(|i| tally.timed(nodes[i].put_if(rivals[i].claim(LONG))));
        let (first, second) = tokio::join!(first, second);
        let (winner, head) = match (first.unwrap(), second.unwrap()) {
            (Written::Won(won), Written::Lost(_)) => (0, won.head),
            (Written::Lost(_), Written::Won(won)) => (1, won.head),
            both => panic!("{name} was claimed by both or by neither: {both:?}"),
        };
        tally.contested.fetch_add(1, Ordering::Relaxed);
        let answer = answer(&format!("the answer of {name}"));
        let end = rivals[winner].complete(
            head.fence,
            &answer,
            Lifetime {
                retention: RETENTION,
                tombstone: LONG,
            },
        );
        let begun = Instant::now();
        let written = tally.timed(nodes[winner].put_if(end)).await.unwrap();
        assert!(matches!(written, Written::Won(_)), "{written:?}");
        tally.written.fetch_add(1, Ordering::Relaxed);
        replays.spawn(replay(
            reader.clone(),
            head.id,
            answer,
            begun + RETENTION,
            tally.clone(),
        ));
        tokio::time::sleep(WRITE_EVERY).await;
    }
    replays.join_all().await;
}

/// Reads an answer until it has expired, which must not be before `alive`.
async fn replay(
    reader: Arc<Reader>,
    id: RecordId,
    answer: Arc<Answer>,
    alive: Instant,
    tally: Arc<Tally>,
) {
    while let Some(record) = reader.read(id, alive).await {
        assert_eq!(
            record.answer,
            Some(answer.clone()),
            "{}, which is over at {:?}",
            record.head.key,
            record.head.expires_at
        );
        tally.replayed.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(READ_EVERY).await;
    }
    tally.expired.fetch_add(1, Ordering::Relaxed);
}

/// Sweeps and empties tables as every node does, only more often.
async fn sweep(node: Arc<Postgres>, tally: Arc<Tally>) {
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    while !tally.is_over.load(Ordering::Relaxed) {
        ticks.tick().await;
        node.sweep(256).await.unwrap();
    }
}

/// A node that reads the answers of others, and does not retry when an answer is missing.
struct Reader(Postgres);

impl Reader {
    async fn open(url: &str) -> Reader {
        let options = Options {
            lock_timeout: Duration::ZERO,
            ..Options::new(url).unwrap()
        };
        Reader(Postgres::open_with(options).await.unwrap())
    }

    /// The record, or `None` once it has expired. It cannot expire before `alive`; after that it
    /// may be dropped while it is read.
    async fn read(&self, id: RecordId, alive: Instant) -> Option<Record> {
        let reading = self.0.get(vec![id]).await;
        let is_alive = Instant::now() < alive;
        match reading {
            Ok(Reading { records, now }) => {
                let record = records
                    .into_iter()
                    .next()
                    .flatten()
                    .expect("its tombstone stands for an hour");
                let is_over = record.head.expires_at <= now;
                assert!(
                    !(is_over && is_alive),
                    "over before its time: {record:?} at {now:?}"
                );
                assert_eq!(
                    is_over,
                    matches!(record.head.state, State::Expired(_)),
                    "{record:?}"
                );
                (!is_over).then_some(record)
            }
            Err(error) => {
                assert!(!is_alive, "dropped before its time: {error}");
                None
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_of_answers_turn_under_load_beside_idle_transactions_and_hold_up_nobody() {
    // In memory, because emptying a table so often would mostly wait for a disk that other tests
    // use too.
    let Some(server) = Server::in_memory(&[]) else {
        return;
    };
    let url = prepared(&server).await;
    let user = session(&url).await;
    user.batch_execute(&format!("UPDATE hapax.pace SET hours_width = {WIDTH_US}"))
        .await
        .unwrap();
    let nodes = [Arc::new(open(&url).await), Arc::new(open(&url).await)];

    let reader = Arc::new(Reader::open(&url).await);

    // One session has read all records and written to one; another has locked a table of answers.
    let own = Subject::new("somebody's own");
    assert!(matches!(
        nodes[0].put_if(own.claim(LONG)).await,
        Ok(Written::Won(_))
    ));
    let busy = session(&url).await;
    let idle = format!(
        "BEGIN; SELECT count(*) FROM hapax.heads; UPDATE hapax.heads SET version = version WHERE {}",
        own.row()
    );
    user.batch_execute(&idle).await.unwrap();
    busy.batch_execute("BEGIN; SELECT count(*) FROM hapax.answers_05")
        .await
        .unwrap();

    let tally = Arc::new(Tally::default());
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| tokio::spawn(write(nodes.clone(), reader.clone(), writer, tally.clone())))
        .collect();
    let begun = Instant::now();
    let turns = || nodes.iter().map(|node| node.stats().turns).sum::<u64>();
    let sweepers = nodes
        .clone()
        .map(|node| tokio::spawn(sweep(node, tally.clone())));
    let is_cut_short = || begun.elapsed() > LONGEST || writers.iter().any(JoinHandle::is_finished);
    while turns() < TURNS && !is_cut_short() {
        tokio::time::sleep(SWEEP_EVERY).await;
    }
    tally.is_over.store(true, Ordering::Relaxed);
    for sweeper in sweepers {
        sweeper.await.unwrap();
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let longest = Duration::from_micros(tally.longest_us.load(Ordering::Relaxed));
    hapax_testkit::report!(
        "ring: {} turns in {:?}, {} answers written, {} times replayed, {} seen to be over, {} keys contested; the longest write took {longest:?}",
        turns(),
        begun.elapsed(),
        tally.written.load(Ordering::Relaxed),
        tally.replayed.load(Ordering::Relaxed),
        tally.expired.load(Ordering::Relaxed),
        tally.contested.load(Ordering::Relaxed),
    );
    assert!(turns() >= TURNS_MIN, "void: only {} turns", turns());
    assert!(longest < STALL_MAX, "a write was held up for {longest:?}");
    user.batch_execute("COMMIT").await.unwrap();
    busy.batch_execute("COMMIT").await.unwrap();
}
