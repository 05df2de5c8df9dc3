//! `volume`: whether many stored keys cost more than few, how much disk and memory they use, and
//! how soon a killed store serves again.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax::core::store::Lifetime;
use hapax::store::sqlite::Options;
use hapax::{Sqlite, Store};
use hapax_testkit::ManualClock;

use crate::child::{self, Child};
use crate::directory::Directory;
use crate::flags::{Command, Flag, Flags};
use crate::load::{ANSWER_BYTES, Done, LONG, Load, Until};
use crate::report::{Table, at_least, at_most, mebibytes, number};
use crate::stats::{Quantiles, median};
use crate::{Error, runtime};

pub(crate) const COMMAND: Command = Command {
    name: "volume",
    help: "10 000 stored keys against many: rate, latency, size, memory, opening after kill -9; and what expiry gives back",
    flags: &[
        Flag::new("--keys", "1000000", "stored keys"),
        Flag::new(
            "--pairs",
            "20000",
            "claims with their completions in each round",
        ),
        Flag::new("--rounds", "5", "repetitions, interleaved"),
        Flag::new(
            "--expire",
            "100000",
            "keys in the store that is left to expire",
        ),
        Flag::new(
            "--keep",
            "",
            "fill the store in this directory and leave it there",
        ),
        Flag::new(
            "--reuse",
            "",
            "use the store that an earlier --keep left in this directory",
        ),
    ],
    run: |flags| runtime()?.block_on(run(flags)),
};

/// The command of the child that is killed.
pub(crate) const OWN: Command = Command {
    name: "own",
    help: "",
    flags: &[Flag::new("--store", "", "")],
    run: |flags| runtime()?.block_on(own(flags)),
};

/// The command of the child that opens the store of a killed one.
pub(crate) const REOPEN: Command = Command {
    name: "reopen",
    help: "",
    flags: &[Flag::new("--store", "", "")],
    run: |flags| runtime()?.block_on(reopen(flags)),
};

const FEW: usize = 10_000;
const CALLERS: usize = 64;
const FILLERS: usize = 256;
/// Keys between two lines of progress.
const PROGRESS: usize = 100_000;

const RATE_RATIO_MIN: f64 = 0.8;
const P99_RATIO_MAX: f64 = 2.0;
const OPENING_SECONDS_MAX: f64 = 2.0;
const BYTES_PER_KEY_MAX: f64 = 64.0;
/// The largest share of the files' size that may remain after everything in them is removed.
const LEFT_MAX: f64 = 0.5;

async fn run(flags: &Flags) -> Result<(), Error> {
    let (pairs, rounds, expire) = (
        flags.count("--pairs")?,
        flags.count("--rounds")?,
        flags.count("--expire")?,
    );
    let (directory, keys) = filled(flags).await?;
    let keys = keys + compare(&directory, keys, pairs, rounds).await?;
    size(&directory, keys);
    openings(&directory.store(), keys, rounds)?;
    note_keys(&directory, keys)?;
    expiry(expire).await
}

/// The store with many keys: filled now, or reused.
async fn filled(flags: &Flags) -> Result<(Directory, usize), Error> {
    if let Some(path) = flags.path("--reuse") {
        let directory = Directory::kept(&path)?;
        let keys = std::fs::read_to_string(directory.file("keys"))
            .map_err(|_| format!("nothing was kept in {}", path.display()))?;
        return Ok((directory, keys.trim().parse()?));
    }
    let directory = flags
        .path("--keep")
        .map_or_else(Directory::temporary, |path| Directory::kept(&path))?;
    if directory.store().exists() {
        return Err(format!(
            "{} holds a store already: use it with --reuse, or remove it",
            directory.path().display()
        )
        .into());
    }
    let keys = flags.count("--keys")?;
    let load = Load::new(Arc::new(Sqlite::open(directory.store()).await?), LONG);
    fill(&load, keys).await?;
    note_keys(&directory, keys)?;
    Ok((directory, keys))
}

fn note_keys(directory: &Directory, keys: usize) -> Result<(), Error> {
    Ok(std::fs::write(directory.file("keys"), keys.to_string())?)
}

/// Stores `keys` keys and prints the progress.
pub(crate) async fn fill(load: &Arc<Load>, keys: usize) -> Result<(), Error> {
    let (began, mut stored) = (Instant::now(), 0);
    while stored < keys {
        let done = load
            .run(FILLERS, Until::Pairs(PROGRESS.min(keys - stored)))
            .await?;
        stored += done.ids.len();
        if keys > PROGRESS {
            eprintln!(
                "  filling: {stored} of {keys} keys, {} a second, {:.0?}",
                number(done.rate()),
                began.elapsed()
            );
        }
    }
    Ok(())
}

/// Runs the same load on few keys and on many, alternating. Returns how many keys it added to the
/// many.
async fn compare(
    many: &Directory,
    keys: usize,
    pairs: usize,
    rounds: usize,
) -> Result<usize, Error> {
    let title = format!(
        "volume: claim + complete by {CALLERS} callers, {ANSWER_BYTES}-byte answers, random keys; medians of {rounds} interleaved \
         rounds of {pairs} in {}",
        many.path().display()
    );
    let mut table = Table::new(&title, &["stored keys", "per second", "p50 ms", "p99 ms"]);
    let many = Load::new(Arc::new(Sqlite::open(many.store()).await?), LONG);
    let (mut with_few, mut with_many) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        // Filled again in each round, because the load itself adds many keys.
        let directory = Directory::temporary()?;
        let few = Load::new(Arc::new(Sqlite::open(directory.store()).await?), LONG);
        fill(&few, FEW).await?;
        with_few.push(measured(few.run(CALLERS, Until::Pairs(pairs)).await?));
        with_many.push(measured(many.run(CALLERS, Until::Pairs(pairs)).await?));
    }
    for (name, results) in [(FEW, &with_few), (keys, &with_many)] {
        table.row(
            &name.to_string(),
            [rate, p50, p99].map(|part| number(median(results.iter().map(part)))),
        );
    }
    table.print();
    let ratio = |part: fn(&Measured) -> f64| {
        median(with_many.iter().map(part)) / median(with_few.iter().map(part))
    };
    at_least(
        "rate with many against few",
        ratio(rate),
        RATE_RATIO_MIN,
        " ×",
    );
    at_most("p99 with many against few", ratio(p99), P99_RATIO_MAX, " ×");
    Ok(pairs * rounds)
}

type Measured = (f64, Quantiles);

fn measured(done: Done) -> Measured {
    (done.rate(), done.pairs.quantiles())
}

fn rate((rate, _): &Measured) -> f64 {
    *rate
}

fn p50((_, quantiles): &Measured) -> f64 {
    quantiles.p50
}

fn p99((_, quantiles): &Measured) -> f64 {
    quantiles.p99
}

fn size(directory: &Directory, keys: usize) {
    let mut table = Table::new("volume: on the disk", &["", "MiB", "bytes/key"]);
    let (files, live) = (directory.bytes(), (keys * live_bytes()) as u64);
    for (name, bytes) in [
        ("all files of the store", files),
        ("answers and heads in them", live),
    ] {
        table.row(name, [mebibytes(bytes), number(bytes as f64 / keys as f64)]);
    }
    table.print();
    println!(
        "  the files take {} × what is in them",
        number(files as f64 / live as f64)
    );
}

fn live_bytes() -> usize {
    Load::new(Arc::new(hapax::store::memory()), LONG).live_bytes()
}

/// Kills the owner of a store during its work and opens the store again, several times.
fn openings(store: &Path, keys: usize, rounds: usize) -> Result<(), Error> {
    let path = store.to_str().ok_or("the path of the store is not text")?;
    let title = format!(
        "volume: opened after kill -9 in the middle of {CALLERS} callers; medians of {rounds}; file in the page cache"
    );
    let mut table = Table::new(&title, &["", ""]);
    let mut openings = Vec::new();
    for _ in 0..rounds {
        let mut owner = Child::spawn(&["own", "--store", path])?;
        owner.line()?;
        // Killed at an arbitrary point of its work.
        std::thread::sleep(Duration::from_millis(500));
        owner.kill()?;
        openings.push(Opening::parse(
            &Child::spawn(&["reopen", "--store", path])?.line()?,
        )?);
    }
    let of = |part: fn(&Opening) -> f64| median(openings.iter().map(part));
    table.row("opened, ms", [number(of(|opening| opening.open_ms))]);
    table.row(
        "first request served, ms from start of opening",
        [number(of(|opening| opening.served_ms))],
    );
    table.row(
        "resident memory more than before opening, MiB",
        [number(
            of(|opening| opening.memory_bytes) / f64::from(1 << 20),
        )],
    );
    table.print();
    at_most(
        "first request served",
        of(|opening| opening.served_ms) / 1e3,
        OPENING_SECONDS_MAX,
        " s",
    );
    at_most(
        "resident memory per stored key",
        of(|opening| opening.memory_bytes) / keys as f64,
        BYTES_PER_KEY_MAX,
        " bytes",
    );
    Ok(())
}

/// The report of the child that opens the store, in one line.
struct Opening {
    open_ms: f64,
    served_ms: f64,
    memory_bytes: f64,
}

impl Opening {
    fn parse(line: &str) -> Result<Opening, Error> {
        let numbers = line
            .split(' ')
            .map(str::parse)
            .collect::<Result<Vec<f64>, _>>()?;
        let [open_ms, served_ms, memory_bytes] = numbers[..] else {
            return Err(format!("what is {line:?}?").into());
        };
        Ok(Opening {
            open_ms,
            served_ms,
            memory_bytes,
        })
    }
}

async fn own(flags: &Flags) -> Result<(), Error> {
    child::end_with_parent();
    let load = Load::new(Arc::new(Sqlite::open(flags.text("--store")).await?), LONG);
    load.put_one().await?;
    println!("at work");
    load.run(CALLERS, Until::Elapsed(Duration::from_secs(60)))
        .await
        .map(drop)
}

async fn reopen(flags: &Flags) -> Result<(), Error> {
    let before = child::resident_bytes()?;
    let began = Instant::now();
    let store = Sqlite::open(flags.text("--store")).await?;
    let opened = began.elapsed();
    let load = Load::new(Arc::new(store), LONG);
    load.put_one().await?;
    let served = began.elapsed();
    // The store may still be loading in the background; that memory counts too.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let memory = child::resident_bytes()?.saturating_sub(before);
    println!(
        "{} {} {memory}",
        opened.as_secs_f64() * 1e3,
        served.as_secs_f64() * 1e3
    );
    Ok(())
}

/// Expires a separate store with a manual clock, and sweeps it.
async fn expiry(keys: usize) -> Result<(), Error> {
    let hour = Duration::from_secs(60 * 60);
    let title = format!(
        "volume: {keys} keys expire (retention and tombstone an hour each, by a hand-turned clock) and are swept"
    );
    let mut table = Table::new(&title, &["", "files MiB", "records swept", "seconds"]);
    let (directory, clock) = (Directory::temporary()?, ManualClock::new());
    let options = Options {
        clock: Some(Arc::new(clock.clone())),
        ..Options::default()
    };
    let store = Arc::new(Sqlite::open_with(directory.store(), options).await?);
    fill(
        &Load::new(
            store.clone(),
            Lifetime {
                retention: hour,
                tombstone: hour,
            },
        ),
        keys,
    )
    .await?;
    let full = settled_bytes(&directory).await;
    table.row("full", [mebibytes(full)]);
    let mut left = full;
    for name in ["after retention: tombstones", "after tombstones: nothing"] {
        clock.advance(hour + Duration::from_secs(1));
        let began = Instant::now();
        let swept = sweep(&*store).await?;
        let seconds = number(began.elapsed().as_secs_f64());
        left = settled_bytes(&directory).await;
        table.row(name, [mebibytes(left), swept.to_string(), seconds]);
    }
    drop(store);
    table.row("after closing", [mebibytes(directory.bytes())]);
    table.print();
    at_most(
        "files when nothing is in them, against full",
        left as f64 / full as f64,
        LEFT_MAX,
        " ×",
    );
    Ok(())
}

async fn sweep(store: &dyn Store) -> Result<usize, Error> {
    let mut total = 0;
    loop {
        match store.sweep(1_000).await?.total() {
            0 => return Ok(total),
            swept => total += swept,
        }
    }
}

/// The size of the files once they stop changing: a store may clean up in the background.
async fn settled_bytes(directory: &Directory) -> u64 {
    let (mut bytes, deadline) = (directory.bytes(), Instant::now() + Duration::from_secs(20));
    let mut unchanged = 0;
    while unchanged < 4 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = directory.bytes();
        unchanged = if now == bytes { unchanged + 1 } else { 0 };
        bytes = now;
    }
    bytes
}
