//! The baseline: `pgbench` with one statement for each claim, each end and each replay, on tables
//! of the same shape.

use std::path::PathBuf;
use std::time::Duration;

use crate::Error;
use crate::directory::Directory;
use crate::load::answer_body;
use crate::stats::{Latencies, Quantiles};

use super::cluster::Cluster;

/// The number of stored rows that are read.
pub(super) const STORED: usize = 100_000;

/// How the statements are sent to the server.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Mode {
    /// Prepared once on each connection.
    Prepared,
    /// As text, each time.
    Simple,
}

impl Mode {
    pub(super) const ALL: [Mode; 2] = [Mode::Prepared, Mode::Simple];

    pub(super) fn name(self) -> &'static str {
        match self {
            Mode::Prepared => "prepared",
            Mode::Simple => "simple",
        }
    }
}

/// The workload.
#[derive(Clone, Copy)]
pub(super) enum Script {
    /// A claim and its end.
    Pairs,
    /// Reads a completed row with its answer.
    Select,
}

/// The tables and their scripts.
pub(super) struct Floor<'a> {
    cluster: &'a Cluster,
    database: String,
    directory: Directory,
}

impl Floor<'_> {
    pub(super) fn new(cluster: &Cluster) -> Result<Floor<'_>, Error> {
        let (database, directory) = (cluster.database(), Directory::temporary()?);
        cluster.sql(&database, &filled(include_str!("floor.sql")))?;
        let floor = Floor {
            cluster,
            database,
            directory,
        };
        std::fs::write(
            floor.script(Script::Pairs),
            filled(include_str!("pairs.pgbench")),
        )?;
        std::fs::write(
            floor.script(Script::Select),
            filled(include_str!("select.pgbench")),
        )?;
        Ok(floor)
    }

    fn script(&self, script: Script) -> PathBuf {
        self.directory.file(match script {
            Script::Pairs => "pairs.pgbench",
            Script::Select => "select.pgbench",
        })
    }

    /// Runs a script with `clients` clients. Returns runs per second and the latencies.
    pub(super) fn run(
        &self,
        script: Script,
        clients: usize,
        mode: Mode,
        duration: Duration,
    ) -> Result<(f64, Quantiles), Error> {
        // pgbench takes whole seconds and counts the connecting: on a busy machine that may use up
        // the time.
        let seconds = duration.as_secs().max(1);
        for seconds in [seconds, 4 * seconds, 16 * seconds] {
            if let Some(ran) = self.try_for(seconds, script, clients, mode)? {
                return Ok(ran);
            }
        }
        Err(format!("{clients} clients of pgbench do not get to begin").into())
    }

    /// `None` if the time was over before any transaction was done.
    fn try_for(
        &self,
        seconds: u64,
        script: Script,
        clients: usize,
        mode: Mode,
    ) -> Result<Option<(f64, Quantiles)>, Error> {
        let threads = std::thread::available_parallelism()?.get().min(clients);
        let (clients, threads, log) = (
            clients.to_string(),
            threads.to_string(),
            Directory::temporary()?,
        );
        let mut pgbench = self.cluster.client("pgbench", &self.database);
        pgbench.args([
            "--no-vacuum",
            "--log",
            "--client",
            &clients,
            "--jobs",
            &threads,
            "--time",
            &seconds.to_string(),
        ]);
        pgbench
            .args(["--protocol", mode.name()])
            .arg("--file")
            .arg(self.script(script))
            .current_dir(log.path());
        let output = pgbench.output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() || !said.contains("number of failed transactions: 0 ") {
            return Err(format!(
                "pgbench failed: {said}{}",
                String::from_utf8_lossy(&output.stderr)
            )
            .into());
        }
        let rate = said
            .lines()
            .find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
        rate.map(|rate| Ok((rate, quantiles(&log)?))).transpose()
    }
}

/// Reads the transaction logs of the threads. The third word of each line is the latency of a
/// transaction in microseconds.
fn quantiles(logs: &Directory) -> Result<Quantiles, Error> {
    let mut latencies = Latencies::default();
    for log in std::fs::read_dir(logs.path())? {
        let log = std::fs::read_to_string(log?.path())?;
        let times = log
            .lines()
            .filter_map(|line| line.split(' ').nth(2)?.parse().ok());
        times.for_each(|micros| latencies.push(Duration::from_micros(micros)));
    }
    Ok(latencies.quantiles())
}

fn filled(template: &str) -> String {
    let answer: String = answer_body()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    template
        .replace("{stored}", &STORED.to_string())
        .replace("{answer}", &format!("\\x{answer}"))
}
