//! `gateway idle`: how much memory the gateway uses, and whether the amount stays constant.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax::Sqlite;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use uuid::Uuid;

use crate::Error;
use crate::client::{self, Connection, Keys};
use crate::directory::Directory;
use crate::flags::Flags;
use crate::load::{LONG, Load};
use crate::report::{Table, at_most, mebibytes, number};
use crate::volume::fill;

use super::hapax::Program;
use super::held::Held;
use super::process::Process;
use super::server::Server;
use super::upstream::Upstream;

/// Connections for each of the three kinds of load.
const BUSY: usize = 32;
/// Keys that are replayed repeatedly.
const REPLAYED: usize = 10_000;
/// Keys that are answered before the load begins. They are more than memory holds, so the answer
/// cache is full from then on.
const WARM_UP: usize = 200_000;
const WARM_UP_CONNECTIONS: usize = 256;
/// The longest time for the warm-up.
const WARM_UP_MAX: Duration = Duration::from_secs(240);
/// Allowance for sockets of the load, files of the store, and other open files of a process.
const FILES_BESIDE: usize = 1_000;
/// The largest ratio of the last sample to the first.
const GROWTH_MAX: f64 = 1.1;

pub(super) async fn run(flags: &Flags) -> Result<(), Error> {
    let (seconds, keys, connections) = (
        flags.seconds("--seconds")?,
        flags.count("--keys")?,
        flags.count("--connections")?,
    );
    let (fresh, samples) = (flags.count("--fresh")?, flags.count("--samples")?);
    allow_files(connections + FILES_BESIDE)?;
    let (hapax, directory, upstream) = (
        Program::build()?,
        Directory::temporary()?,
        Upstream::start()?,
    );
    fill(
        &Load::new(Arc::new(Sqlite::open(directory.store()).await?), LONG),
        keys,
    )
    .await?;
    let title = format!(
        "gateway idle: {keys} keys in SQLite, {connections} idle connections, {seconds:?} of load: {fresh} fresh keys a second; replays, \
         and requests without a key, as fast as they go, on {BUSY} connections each"
    );
    let mut table = Table::new(&title, &["", "resident MiB"]);
    let server = hapax
        .serve(
            &upstream.address,
            &format!("sqlite:{}", directory.store().display()),
        )
        .await?;
    table.row(
        "the store opened",
        [mebibytes(server.process.resident_bytes()?)],
    );
    let mut held = Held::open(&server.address, &server.without_key, connections).await?;
    table.row(
        "and idle connections",
        [mebibytes(server.process.resident_bytes()?)],
    );
    let warm_up = client::send(
        &server.address,
        &server.order,
        WARM_UP_CONNECTIONS,
        &Keys::fresh(WARM_UP),
        WARM_UP_MAX,
    )
    .await?
    .keys;
    table.row(
        "and full caches",
        [mebibytes(server.process.resident_bytes()?)],
    );
    let replayed = Keys::last(&warm_up, REPLAYED);
    let load = load(&server, fresh, &replayed, seconds);
    let (sampled, sent) =
        tokio::try_join!(sample(&server.process, &mut held, seconds, samples), load)?;
    for (name, bytes) in [
        ("first under load", sampled.first),
        ("last", sampled.last),
        ("most", sampled.most),
    ] {
        table.row(name, [mebibytes(bytes)]);
    }
    table.print();
    let [added, replays, without_key] = sent;
    let rate = |count: usize| number(count as f64 / seconds.as_secs_f64());
    println!(
        "  added keys: {added}; replays: {} a second; without a key: {} a second",
        rate(replays),
        rate(without_key)
    );
    println!(
        "  idle connections that the gateway closed and that were opened again: {}",
        held.reopened()?
    );
    at_most(
        "memory at the end against the first sample",
        sampled.last as f64 / sampled.first as f64,
        GROWTH_MAX,
        " ×",
    );
    Ok(())
}

/// Raises the limit on open files to `count` for this process and its children.
fn allow_files(count: usize) -> Result<(), Error> {
    let limit = getrlimit(Resource::Nofile);
    let count = count as u64;
    if limit.maximum.is_some_and(|maximum| maximum < count) {
        return Err(format!("a process may not have {count} files open here: raise `ulimit -Hn`, or lower --connections").into());
    }
    Ok(setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    )?)
}

/// Samples of the memory, in bytes.
struct Sampled {
    first: u64,
    last: u64,
    most: u64,
}

/// Samples the memory at even intervals during the load.
async fn sample(
    process: &Process,
    held: &mut Held,
    duration: Duration,
    samples: usize,
) -> Result<Sampled, Error> {
    let began = Instant::now();
    let mut sampled = Vec::new();
    for at in 1..=samples {
        let due = duration.mul_f64(at as f64 / samples as f64);
        tokio::time::sleep(due.saturating_sub(began.elapsed())).await;
        let bytes = process.resident_bytes()?;
        eprintln!(
            "  {:.0?}: {} MiB, {} idle connections opened again",
            began.elapsed(),
            mebibytes(bytes),
            held.reopened()?
        );
        sampled.push(bytes);
    }
    let most = sampled.iter().copied().max().unwrap_or_default();
    Ok(Sampled {
        first: sampled[0],
        last: sampled[samples - 1],
        most,
    })
}

/// Runs all three kinds of load concurrently. Returns how many requests of each were sent.
async fn load(
    server: &Server,
    fresh: usize,
    replayed: &Keys,
    duration: Duration,
) -> Result<[usize; 3], Error> {
    let (added, replays, without_key) = tokio::try_join!(
        paced(server, fresh, Instant::now() + duration),
        client::send(&server.address, &server.order, BUSY, replayed, duration),
        client::send(
            &server.address,
            &server.without_key,
            BUSY,
            &Keys::Fresh,
            duration
        ),
    )?;
    Ok([added, replays.keys.len(), without_key.keys.len()])
}

/// Sends fresh keys at a steady rate, so that the store grows by the same number in every minute.
async fn paced(server: &Server, a_second: usize, end: Instant) -> Result<usize, Error> {
    let mut tasks = JoinSet::new();
    for _ in 0..BUSY {
        let connection = Connection::open(&server.address, server.order.clone()).await?;
        tasks.spawn(send_paced(
            connection,
            Duration::from_secs_f64(BUSY as f64 / a_second as f64),
            end,
        ));
    }
    let mut sent = 0;
    while let Some(ended) = tasks.join_next().await {
        sent += ended??;
    }
    Ok(sent)
}

async fn send_paced(
    mut connection: Connection,
    period: Duration,
    end: Instant,
) -> Result<usize, Error> {
    let (mut sent, mut ticks) = (0, tokio::time::interval(period));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while Instant::now() < end {
        ticks.tick().await;
        connection.exchange(Uuid::new_v4()).await?;
        sent += 1;
    }
    Ok(sent)
}
