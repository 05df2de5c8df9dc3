//! `store`: the rate of one caller, the rate of many, and the limit of the disk.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax::{RecordId, Sqlite};

use crate::directory::Directory;
use crate::flags::{Command, Flag, Flags};
use crate::load::{ANSWER_BYTES, LONG, Load, Until};
use crate::report::{Table, at_least, number};
use crate::stats::{Quantiles, median};
use crate::{Error, runtime};

pub(crate) const COMMAND: Command = Command {
    name: "store",
    help: "claim + complete on SQLite: one at a time, 64 and 256 callers, against appending to a file; and reading back",
    flags: &[
        Flag::new("--seconds", "2", "of each measurement in each round"),
        Flag::new("--rounds", "5", "repetitions, interleaved"),
    ],
    run: |flags| runtime()?.block_on(run(flags)),
};

const CALLERS: [usize; 3] = [1, 64, 256];
const RATIO_MIN: f64 = 15.0;
/// The least that a commit of one record writes: a page.
const APPEND_BYTES: usize = 4096;

/// The results of all rounds of one measurement.
#[derive(Default)]
struct Rounds {
    rates: Vec<f64>,
    commits: Vec<f64>,
    quantiles: Vec<Quantiles>,
}

async fn run(flags: &Flags) -> Result<(), Error> {
    let (seconds, rounds) = (flags.seconds("--seconds")?, flags.count("--rounds")?);
    let directory = Directory::temporary()?;
    let mut table = Table::new(
        &format!(
            "store: claim + complete, {ANSWER_BYTES}-byte answers, random keys, every commit on the disk; medians of {rounds} \
             interleaved rounds of {seconds:?} in {}",
            directory.path().display()
        ),
        &[
            "",
            "per second",
            "p50 ms",
            "p99 ms",
            "commits/s",
            "pairs/commit",
        ],
    );
    let store = Arc::new(Sqlite::open(directory.store()).await?);
    let load = Load::new(store.clone(), LONG);
    let (mut floor, mut reads, mut results) = (vec![], vec![], CALLERS.map(|_| Rounds::default()));
    let mut ids: Vec<RecordId> = Vec::new();
    for _ in 0..rounds {
        floor.push(append(&directory.file("floor"), seconds)?);
        for (callers, rounds) in CALLERS.into_iter().zip(&mut results) {
            let before = store.stats().commits;
            let done = load.run(callers, Until::Elapsed(seconds)).await?;
            rounds
                .commits
                .push((store.stats().commits - before) as f64 / done.elapsed.as_secs_f64());
            rounds.rates.push(done.rate());
            ids.extend(done.ids);
            rounds.quantiles.push(done.pairs.quantiles());
        }
        reads.push(load.read(64, &ids, seconds).await?);
    }
    report(&mut table, &floor, &reads, &results);
    table.print();
    let [one, many, _] = results.map(|rounds| median(rounds.rates));
    at_least(
        "64 callers against one at a time",
        many / one,
        RATIO_MIN,
        " ×",
    );
    println!(
        "  one at a time makes {} of the floor's syncs in commits",
        number(2.0 * one / median(floor))
    );
    Ok(())
}

fn report(table: &mut Table, floor: &[f64], reads: &[f64], results: &[Rounds]) {
    table.row(
        "floor: append 4 KiB, fdatasync",
        [number(median(floor.iter().copied()))],
    );
    for (callers, rounds) in CALLERS.into_iter().zip(results) {
        let (rate, commits) = (
            median(rounds.rates.iter().copied()),
            median(rounds.commits.iter().copied()),
        );
        let of = |part: fn(&Quantiles) -> f64| number(median(rounds.quantiles.iter().map(part)));
        let name = if callers == 1 {
            "one at a time".to_owned()
        } else {
            format!("{callers} callers")
        };
        table.row(
            &name,
            [
                number(rate),
                of(|q| q.p50),
                of(|q| q.p99),
                number(commits),
                number(rate / commits),
            ],
        );
    }
    table.row(
        "replays by 64 callers (get)",
        [number(median(reads.iter().copied()))],
    );
}

/// How often per second a page can be appended and made durable, with no other work.
fn append(path: &Path, duration: Duration) -> Result<f64, Error> {
    let (mut file, page) = (File::create(path)?, [7; APPEND_BYTES]);
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < duration {
        file.write_all(&page)?;
        file.sync_data()?;
        count += 1;
    }
    Ok(f64::from(count) / began.elapsed().as_secs_f64())
}
