//! How soon a request that waits for an attempt of another node is answered.

use std::time::{Duration, Instant};

use hapax::store::tiered::{self, Tiered};
use hapax::{Done, Hapax, Once, Postgres, RunError, Store};
use hapax_testkit::servers;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::Error;
use crate::load::answer_body;
use crate::postgres::Cluster;
use crate::report::{Table, at_most, number};
use crate::stats::{Latencies, Quantiles};

use super::Scale;
use super::server::{self, Fsync};

/// The largest p99 where the other node is told.
const P99_MAX_MS: f64 = 5.0;
/// The attempt goes on for this long, so that the other request certainly waits when it ends.
const RUNS_MIN: Duration = Duration::from_millis(20);
/// And up to this much longer, by chance: Postgres is polled this often, and an attempt may end at
/// any time between two polls.
const POLL: Duration = Duration::from_millis(50);
/// Longer than any attempt.
const PATIENCE: Duration = Duration::from_secs(20);

/// Two nodes on one store.
struct Nodes {
    name: &'static str,
    runs: Once,
    waits: Once,
    /// If the other node is told, and does not only poll.
    is_told: bool,
    after_work: Latencies,
    after_first: Latencies,
}

impl Nodes {
    fn new(name: &'static str, is_told: bool, stores: [impl Store; 2]) -> Nodes {
        let [runs, waits] = stores.map(|store| Hapax::new(store).namespace("bench").once("wait"));
        Nodes {
            name,
            runs,
            waits: waits.wait(PATIENCE),
            is_told,
            after_work: Latencies::default(),
            after_first: Latencies::default(),
        }
    }

    /// One key that the first node runs and the second waits for.
    async fn sample(&mut self) -> Result<(), Error> {
        let key = Uuid::new_v4().to_string();
        let (begun, has_begun) = oneshot::channel();
        let (go, may_go) = oneshot::channel::<()>();
        let work = async move |_| {
            begun.send(()).map_err(|()| "nobody listens")?;
            may_go.await?;
            Ok::<_, Error>(answer_body().into())
        };
        let (runs, waits) = (self.runs.clone(), self.waits.clone());
        let first_key = key.clone();
        let first = tokio::spawn(async move {
            let done = runs.run(first_key, "request", work).await;
            (done, Instant::now())
        });
        has_begun.await?;
        let second = tokio::spawn(async move {
            let ran_twice = async |_| Err(std::io::Error::other("ran twice"));
            let done = waits.run(key, "request", ran_twice).await;
            (done, Instant::now())
        });
        tokio::time::sleep(RUNS_MIN + by_chance(POLL)).await;
        let ended = Instant::now();
        go.send(()).map_err(|()| "the work has ended by itself")?;
        let first = answered(first.await?, false)?;
        let second = answered(second.await?, true)?;
        self.after_work.push(second - ended);
        // The second may be answered before the first has got as far.
        self.after_first
            .push(second.saturating_duration_since(first));
        Ok(())
    }
}

/// When a request was answered, if it was answered as it has to be.
fn answered<T>(
    (done, at): (Result<Done<T>, RunError>, Instant),
    replayed: bool,
) -> Result<Instant, Error> {
    if done?.replayed != replayed {
        return Err("a request ran that should wait, or waited that should run".into());
    }
    Ok(at)
}

fn by_chance(longest: Duration) -> Duration {
    let random = u32::from_be_bytes(*Uuid::new_v4().as_bytes().first_chunk().expect("16 bytes"));
    longest.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

pub(super) async fn run(scale: Scale) -> Result<(), Error> {
    let samples = scale.samples;
    let cluster = Cluster::start()?;
    let (redis, cache) = (server::start(Fsync::Everysec)?, server::start_cache()?);
    let database = cluster.migrated().await?;
    let on_postgres = [
        Postgres::open(&database).await?,
        Postgres::open(&database).await?,
    ];
    let database = cluster.migrated().await?;
    let on_tier = [
        tier(&database, &cache).await?,
        tier(&database, &cache).await?,
    ];
    let on_redis = [server::open(&redis).await?, server::open(&redis).await?];
    let mut all = [
        Nodes::new("Postgres, polled", false, on_postgres),
        Nodes::new("Redis", true, on_redis),
        Nodes::new("Redis over Postgres", true, on_tier),
    ];
    for sample in 1..=samples {
        if sample % 100 == 0 {
            eprintln!("  waiters: {sample} of {samples}");
        }
        for nodes in &mut all {
            nodes.sample().await?;
        }
    }
    print(all, samples);
    Ok(())
}

async fn tier(database: &str, cache: &servers::Redis) -> Result<Tiered, Error> {
    let postgres = Postgres::open(database).await?;
    Ok(Tiered::new(postgres, &tiered::Options::new(cache.url()))?)
}

fn print(all: [Nodes; 3], samples: usize) {
    let title = format!(
        "redis: a request waits on one node for an attempt on another; how long after the work, \
         and after the first request was answered, it is answered itself; {samples} samples each, \
         interleaved"
    );
    let headings = [
        "",
        "after the work: p50 ms",
        "p99 ms",
        "after the first answer: p50 ms",
        "p99 ms",
        "max ms",
        "p99 of Postgres'",
    ];
    let mut table = Table::new(&title, &headings);
    let rows = all.map(|nodes| {
        let after_work = nodes.after_work.quantiles();
        let after_first = nodes.after_first.quantiles();
        (nodes.name, nodes.is_told, after_work, after_first)
    });
    let polled: Quantiles = rows[0].3;
    for (name, _, after_work, after_first) in &rows {
        let numbers = [
            after_work.p50,
            after_work.p99,
            after_first.p50,
            after_first.p99,
            after_first.max,
            after_first.p99 / polled.p99,
        ];
        table.row(name, numbers.map(number));
    }
    table.print();
    for (name, _, _, after_first) in rows.iter().filter(|(_, is_told, ..)| *is_told) {
        at_most(
            &format!("{name}: p99 after the first answer"),
            after_first.p99,
            P99_MAX_MS,
            " ms",
        );
    }
}
