//! `bounds`: how long callers wait for a commit, and how large the write-ahead log grows, while
//! other work runs at the same time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hapax::core::store::Lifetime;
use hapax::{Sqlite, Store};
use rusqlite::{Connection, OpenFlags};

use crate::directory::{Directory, wal_bytes};
use crate::flags::{Command, Flag, Flags};
use crate::load::{ANSWER_BYTES, LONG, Load, Until};
use crate::report::{Table, at_most, mebibytes, number};
use crate::stats::{Quantiles, median};
use crate::{Error, runtime};

pub(crate) const COMMAND: Command = Command {
    name: "bounds",
    help: "commit latency and the write-ahead log under load: alone, with a long reader, while sweeping, during a backup",
    flags: &[
        Flag::new("--seconds", "20", "of each phase in each round"),
        Flag::new("--rounds", "3", "repetitions, interleaved"),
    ],
    run: |flags| runtime()?.block_on(run(flags)),
};

const CALLERS: usize = 64;
const SPREAD_MAX: f64 = 5.0;
const WAL_BYTES_MAX: u64 = 64 << 20;
const BACK_SECONDS_MAX: f64 = 10.0;
/// How long to wait for the log to shrink before reporting that it does not.
const PATIENCE: Duration = Duration::from_secs(15);
const SAMPLE_EVERY: Duration = Duration::from_millis(3);

/// The other work that runs during the load.
#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Plain,
    LongReader,
    Sweeping,
    Backup,
}

const PHASES: [(Phase, &str); 4] = [
    (Phase::Plain, "plain load"),
    (Phase::LongReader, "a reader for half of it"),
    (Phase::Sweeping, "records expire, swept"),
    (Phase::Backup, "backups"),
];

/// The results of one phase of one round.
struct Seen {
    rate: f64,
    puts: Quantiles,
    wal: u64,
    beside: Beside,
}

/// The result of the other work.
#[derive(Default)]
struct Beside {
    note: String,
    /// How long the log took to shrink after the reader had ended.
    back: Option<Duration>,
}

async fn run(flags: &Flags) -> Result<(), Error> {
    let (seconds, rounds) = (flags.seconds("--seconds")?, flags.count("--rounds")?);
    let title = format!(
        "bounds: claim + complete by {CALLERS} callers, {ANSWER_BYTES}-byte answers; latency of one commit as a caller sees it; \
         p50 and p99 medians, max and log largest, of {rounds} interleaved rounds of {seconds:?}"
    );
    let mut table = Table::new(
        &title,
        &[
            "", "pairs/s", "p50 ms", "p99 ms", "max ms", "p99/p50", "log MiB", "beside",
        ],
    );
    let mut results = PHASES.map(|_| Vec::new());
    for _ in 0..rounds {
        for ((phase, _), seen) in PHASES.into_iter().zip(&mut results) {
            seen.push(measure(phase, seconds).await?);
        }
    }
    for ((_, name), seen) in PHASES.into_iter().zip(&results) {
        report(&mut table, name, seen);
    }
    table.print();
    for ((phase, name), seen) in PHASES.into_iter().zip(&results) {
        verdicts(phase, name, seen);
    }
    Ok(())
}

fn report(table: &mut Table, name: &str, seen: &[Seen]) {
    let last = seen.last().expect("there is a round");
    let (rate, p50, p99) = (
        of(seen, |seen| seen.rate),
        of(seen, |seen| seen.puts.p50),
        of(seen, |seen| seen.puts.p99),
    );
    let max = seen.iter().map(|seen| seen.puts.max).fold(0.0, f64::max);
    let cells = [rate, p50, p99, max, p99 / p50].map(number).into_iter();
    table.row(
        name,
        cells.chain([mebibytes(wal_max(seen)), last.beside.note.clone()]),
    );
}

fn verdicts(phase: Phase, name: &str, seen: &[Seen]) {
    let spread = of(seen, |seen| seen.puts.p99) / of(seen, |seen| seen.puts.p50);
    at_most(
        &format!("{name}: p99 against p50"),
        spread,
        SPREAD_MAX,
        " ×",
    );
    if phase == Phase::LongReader {
        // While the reader runs, the log must keep what the reader may still need. Only the time to
        // shrink afterwards depends on the store.
        let back = of(seen, |seen| {
            seen.beside
                .back
                .map_or(f64::INFINITY, |back| back.as_secs_f64())
        });
        at_most(
            &format!("{name}: log under 64 MiB again after it ended"),
            back,
            BACK_SECONDS_MAX,
            " s",
        );
    } else {
        at_most(
            &format!("{name}: log"),
            wal_max(seen) as f64 / f64::from(1 << 20),
            (WAL_BYTES_MAX >> 20) as f64,
            " MiB",
        );
    }
}

fn of(seen: &[Seen], part: fn(&Seen) -> f64) -> f64 {
    median(seen.iter().map(part))
}

fn wal_max(seen: &[Seen]) -> u64 {
    seen.iter().map(|seen| seen.wal).max().unwrap_or_default()
}

async fn measure(phase: Phase, duration: Duration) -> Result<Seen, Error> {
    let directory = Directory::temporary()?;
    let store = Arc::new(Sqlite::open(directory.store()).await?);
    let second = Duration::from_secs(1);
    let lifetime = if phase == Phase::Sweeping {
        Lifetime {
            retention: second,
            tombstone: second,
        }
    } else {
        LONG
    };
    let load = Load::new(store.clone(), lifetime);
    let watch = Watch::start(directory.store());
    let beside = go_beside(phase, &store, &directory, Instant::now() + duration);
    let (done, beside) = tokio::join!(load.run(CALLERS, Until::Elapsed(duration)), beside);
    let done = done?;
    Ok(Seen {
        rate: done.rate(),
        puts: done.puts.quantiles(),
        wal: watch.stop(),
        beside: beside?,
    })
}

async fn go_beside(
    phase: Phase,
    store: &Arc<Sqlite>,
    directory: &Directory,
    end: Instant,
) -> Result<Beside, Error> {
    match phase {
        Phase::Plain => Ok(Beside::default()),
        Phase::LongReader => {
            let path = directory.store();
            tokio::task::spawn_blocking(move || read_long(&path, end)).await?
        }
        Phase::Sweeping => sweep(store, end).await,
        Phase::Backup => back_up_often(store, &directory.file("backup.db"), end).await,
    }
}

/// Holds a snapshot for half of the time, then waits for the log to shrink.
fn read_long(store: &Path, end: Instant) -> Result<Beside, Error> {
    let reader = Connection::open_with_flags(store, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    reader.execute_batch("BEGIN")?;
    // A transaction takes its snapshot at its first read. Every file has this table.
    let _: i64 = reader.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
    std::thread::sleep(end.saturating_duration_since(Instant::now()) / 2);
    reader.execute_batch("COMMIT")?;
    let ended = Instant::now();
    let largest = wal_bytes(store);
    while wal_bytes(store) > WAL_BYTES_MAX && ended.elapsed() < PATIENCE {
        std::thread::sleep(SAMPLE_EVERY);
    }
    let back = (wal_bytes(store) <= WAL_BYTES_MAX).then(|| ended.elapsed());
    let said = back.map_or_else(
        || format!("not in {PATIENCE:?}"),
        |back| format!("in {back:.1?}"),
    );
    Ok(Beside {
        note: format!("log {} MiB when it ended, small {said}", mebibytes(largest)),
        back,
    })
}

/// Sweeps as `Hapax` does, but without pauses. Records expire a second after they are made.
async fn sweep(store: &Sqlite, end: Instant) -> Result<Beside, Error> {
    let batch = hapax::Sweep::default().batch;
    let mut total = 0;
    while Instant::now() < end {
        let swept = store.sweep(batch).await?.total();
        total += swept;
        if swept < batch {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    Ok(Beside {
        note: format!("{total} swept"),
        ..Beside::default()
    })
}

/// Makes one backup after the other.
async fn back_up_often(store: &Sqlite, to: &Path, end: Instant) -> Result<Beside, Error> {
    let (mut count, mut bytes) = (0, 0);
    while Instant::now() < end {
        bytes = store.backup(to).await?.bytes;
        count += 1;
        std::fs::remove_file(to)?;
    }
    Ok(Beside {
        note: format!("{count} made, the last of {} MiB", mebibytes(bytes)),
        ..Beside::default()
    })
}

/// Watches the log of a store and records its largest size.
struct Watch {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Watch {
    fn start(store: PathBuf) -> Watch {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let thread = std::thread::spawn(move || {
            let mut largest = 0;
            while !over.load(Ordering::Relaxed) {
                largest = largest.max(wal_bytes(&store));
                std::thread::sleep(SAMPLE_EVERY);
            }
            largest
        });
        Watch { is_over, thread }
    }

    fn stop(self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}
