//! `instructions`: counts by callgrind, compared with the saved counts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};

use crate::Error;
use crate::flags::{Command, Flag, Flags};
use crate::report::Table;

pub(crate) const COMMAND: Command = Command {
    name: "instructions",
    help: "benches/instructions.rs under callgrind, against instructions.txt; needs valgrind and gungraun-runner 0.20.0",
    flags: &[Flag::switch(
        "--keep",
        "keep these counts as the ones to compare with",
    )],
    run,
};

/// The largest ratio to the saved count. Hash seeds and addresses vary a little from run to run; a
/// larger difference has a cause.
const RATIO_MAX: f64 = 1.05;

/// This count includes the start of the process, which the count for no claims removes again.
const SOME_CLAIMS: (&str, f64) = ("claims_on_sqlite.hundred", 100.0);
const NO_CLAIMS: &str = "claims_on_sqlite.none";
const ONE_CLAIM: &str = "claims_on_sqlite.each";

type Counts = BTreeMap<String, u64>;

fn run(flags: &Flags) -> Result<(), Error> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "instructions.txt"]
        .iter()
        .collect();
    let kept = read(&path)?;
    let counts = per_claim(parse(&bench()?))?;
    let mut table = Table::new("instructions, by callgrind", &["", "kept", "now", "ratio"]);
    let mut over = Vec::new();
    for (name, &now) in &counts {
        let Some(&before) = kept.get(name) else {
            table.row(name, ["-".to_owned(), now.to_string()]);
            continue;
        };
        let ratio = now as f64 / before as f64;
        let is_over = ratio > RATIO_MAX;
        table.row(
            name,
            [
                before.to_string(),
                now.to_string(),
                format!("{ratio:.3}{}", if is_over { "  MORE" } else { "" }),
            ],
        );
        over.extend(is_over.then_some(name.as_str()));
    }
    table.print();
    if flags.is_set("--keep") {
        return write(&path, &counts);
    }
    if over.is_empty() {
        Ok(())
    } else {
        Err(format!("over {RATIO_MAX} times what was kept: {}", over.join(", ")).into())
    }
}

fn bench() -> Result<String, Error> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut bench = Process::new(cargo);
    bench.args([
        "bench",
        "--quiet",
        "--package",
        "hapax-bench",
        "--features",
        "instructions",
        "--bench",
        "instructions",
    ]);
    let output = bench
        .env("GUNGRAUN_COLOR", "never")
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err("the benches did not run: is valgrind there, and `cargo install gungraun-runner --version 0.20.0`?".into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// The name `function.case` of each bench, and its count.
fn parse(output: &str) -> Counts {
    let (mut counts, mut name) = (Counts::new(), None);
    for line in output.lines() {
        if let Some((_, bench)) = line.split_once("::counts::") {
            name = bench.split(':').next().map(|name| name.replace(' ', "."));
        } else if let Some(count) = line.trim().strip_prefix("Instructions:") {
            let count = count
                .split('|')
                .next()
                .and_then(|count| count.trim().parse().ok());
            counts.extend(name.take().zip(count));
        }
    }
    counts
}

fn per_claim(mut counts: Counts) -> Result<Counts, Error> {
    let mut take = |name: &str| {
        counts
            .remove(name)
            .ok_or_else(|| format!("the benches did not count {name}"))
    };
    let (some, none) = (take(SOME_CLAIMS.0)?, take(NO_CLAIMS)?);
    counts.insert(
        ONE_CLAIM.to_owned(),
        (some.saturating_sub(none) as f64 / SOME_CLAIMS.1) as u64,
    );
    Ok(counts)
}

fn read(path: &Path) -> Result<Counts, Error> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let count = |line: &str| -> Result<_, Error> {
        let (name, count) = line
            .split_once(' ')
            .ok_or_else(|| format!("{}: what is {line:?}?", path.display()))?;
        Ok((name.to_owned(), count.trim().parse()?))
    };
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(count)
        .collect()
}

fn write(path: &Path, counts: &Counts) -> Result<(), Error> {
    let lines = counts
        .iter()
        .map(|(name, count)| format!("{name} {count}\n"));
    let about = "# Written by `cargo run --release -p hapax-bench -- instructions --keep`. See docs/benchmarks.md.\n".to_owned();
    Ok(std::fs::write(
        path,
        std::iter::once(about).chain(lines).collect::<String>(),
    )?)
}
