//! Queues of jobs on Postgres, as peers: pg-boss and graphile-worker, by programs for Node.

use std::path::Path;

use hapax_flow::publish::Null;
use hapax_testkit::harness::install::{Installed, Language, install};

use crate::Error;
use crate::gateway::{command, peers_directory};
use crate::postgres::{Cluster, connect};
use crate::report::{Table, at_least, number};
use crate::stats::Rounds;

use super::Scale;
use super::backlog::{drain, fill};

/// A peer: its name, its program, and the least ratio of the relay's rate to its.
const PEERS: [(&str, &str, f64); 2] = [
    ("pg-boss", "pg_boss.mjs", 3.0),
    ("graphile-worker", "graphile_worker.mjs", 1.0),
];

pub(super) async fn run(cluster: &Cluster, scale: Scale) -> Result<(), Error> {
    let Scale {
        messages, rounds, ..
    } = scale;
    let Some(installed) = tokio::task::block_in_place(installed)? else {
        return Ok(());
    };
    let title = format!(
        "outbox: {messages} jobs wait and are taken, done and ended; medians of {rounds} interleaved rounds"
    );
    let url = cluster.migrated().await?;
    let (mut hapax, mut peers) = (Rounds::default(), PEERS.map(|_| Rounds::default()));
    for round in 1..=rounds {
        eprintln!("  jobs: round {round} of {rounds}");
        fill(&url, messages).await?;
        connect(&url).await?.batch_execute("VACUUM ANALYZE").await?;
        let took = drain(&url, Null, messages).await?;
        hapax.rates.push(messages as f64 / took.as_secs_f64());
        for ((_, program, _), peer) in PEERS.iter().zip(&mut peers) {
            let program = installed.directory.join(program);
            peer.rates
                .push(moved(&program, &cluster.database(), messages)?);
        }
    }
    let mut table = Table::new(&title, &["", "per second", "hapax against it"]);
    table.row("hapax, relay to null:", [number(hapax.rate())]);
    for ((name, ..), peer) in PEERS.iter().zip(&peers) {
        table.row(name, [number(peer.rate()), number(hapax.against(peer))]);
    }
    table.print();
    for ((name, _, ratio_min), peer) in PEERS.iter().zip(&peers) {
        let what = format!("against {name}");
        at_least(&what, hapax.against(peer), *ratio_min, " ×");
    }
    Ok(())
}

/// `None`, after printing why, if npm or Node is missing.
fn installed() -> Result<Option<Installed>, Error> {
    let own = |(name, text): (&'static str, &str)| (name, text.to_owned());
    let wanted = [
        ("package.json", include_str!("jobs/package.json")),
        ("package-lock.json", include_str!("jobs/package-lock.json")),
    ];
    let sources = [
        ("pg_boss.mjs", include_str!("jobs/pg_boss.mjs")),
        (
            "graphile_worker.mjs",
            include_str!("jobs/graphile_worker.mjs"),
        ),
    ];
    let directory = peers_directory("jobs")?;
    let (wanted, sources) = (wanted.map(own), sources.map(own));
    Ok(install(directory, Language::Node, &wanted, &sources))
}

/// Has a peer's program move this number of jobs in this empty database. Returns jobs a second.
fn moved(program: &Path, url: &str, jobs: usize) -> Result<f64, Error> {
    let mut node = command("node")?;
    node.arg(program).args([url, &jobs.to_string()]);
    let output = tokio::task::block_in_place(|| node.output())?;
    let said = String::from_utf8_lossy(&output.stdout);
    let seconds: Option<f64> = said.trim().parse().ok();
    match seconds.filter(|_| output.status.success()) {
        Some(seconds) => Ok(jobs as f64 / seconds),
        None => Err(format!(
            "{} failed and said:\n{said}{}",
            program.display(),
            String::from_utf8_lossy(&output.stderr)
        )
        .into()),
    }
}
