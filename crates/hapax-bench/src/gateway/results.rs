//! The results of the measurements: a row for each cell, and the targets.

use std::collections::BTreeMap;

use crate::Error;
use crate::child;
use crate::client::Sent;
use crate::report::{Table, at_least, at_most, number};
use crate::stats::{Quantiles, median};

use super::cells::{CELLS, Cell, Peer, TIMES};
use super::process::Process;
use super::server::Server;
use super::upstream::Upstream;

/// Processor time in microseconds.
pub(super) struct Cpu {
    server: u64,
    upstream: u64,
    client: u64,
}

impl Cpu {
    pub(super) fn now(server: &Server, upstream: &Upstream) -> Result<Cpu, Error> {
        // A server with its own service does not use the upstream.
        let upstream = server
            .service
            .as_ref()
            .map_or_else(|| upstream.cpu_micros(), Process::cpu_micros)?;
        Ok(Cpu {
            server: server.process.cpu_micros()?,
            upstream,
            client: child::cpu_micros(std::process::id())?,
        })
    }

    /// The time used between the two readings.
    pub(super) fn until(&self, then: &Cpu) -> Cpu {
        Cpu {
            server: then.server - self.server,
            upstream: then.upstream - self.upstream,
            client: then.client - self.client,
        }
    }
}

/// One measurement of one repetition.
pub(super) struct Measured {
    rate: f64,
    latency: Quantiles,
    server_micros: f64,
    upstream_micros: f64,
    client_micros: f64,
}

impl Measured {
    pub(super) fn new(sent: Sent, cpu: &Cpu) -> Measured {
        let count = sent.keys.len() as f64;
        Measured {
            rate: count / sent.elapsed.as_secs_f64(),
            latency: sent.latencies.quantiles(),
            server_micros: cpu.server as f64 / count,
            upstream_micros: cpu.upstream as f64 / count,
            client_micros: cpu.client as f64 / count,
        }
    }
}

/// The results by the names of the cells.
#[derive(Default)]
pub(super) struct Results {
    measured: BTreeMap<&'static str, Vec<Measured>>,
    skipped: BTreeMap<&'static str, String>,
}

const HEADINGS: [&str; 11] = [
    "",
    "row",
    "connections",
    "per second",
    "of nginx",
    "p50 ms",
    "p99 ms",
    "p99 of nginx's",
    "server CPU µs",
    "upstream CPU µs",
    "client CPU µs",
];

impl Results {
    pub(super) fn add(&mut self, cell: &Cell, measured: Measured) {
        self.measured.entry(cell.name).or_default().push(measured);
    }

    pub(super) fn skip(&mut self, cell: &Cell, reason: &str) {
        self.skipped.insert(cell.name, reason.to_owned());
    }

    pub(super) fn print(&self, title: &str) {
        let mut table = Table::new(title, &HEADINGS);
        for cell in &CELLS {
            if let Some(cells) = self.row(cell) {
                table.row(cell.title, cells);
            }
        }
        table.print();
        let mut reasons: Vec<_> = self.skipped.values().collect();
        reasons.dedup();
        for reason in reasons {
            println!("  SKIPPED: {reason}");
        }
        self.targets();
    }

    fn row(&self, cell: &Cell) -> Option<Vec<String>> {
        let (name, connections) = (cell.name.to_owned(), cell.connections.to_string());
        if self.skipped.contains_key(cell.name) {
            return Some(vec![name, connections, "SKIPPED".into()]);
        }
        let of = |part: fn(&Measured) -> f64| self.median(cell.name, part);
        let numbers = [
            of(rate)?,
            self.against(cell.name, baseline(cell), rate)?,
            of(|measured| measured.latency.p50)?,
            of(p99)?,
            self.against(cell.name, baseline(cell), p99)?,
            of(|measured| measured.server_micros)?,
            of(|measured| measured.upstream_micros)?,
            of(|measured| measured.client_micros)?,
        ];
        Some(
            [name, connections]
                .into_iter()
                .chain(numbers.map(number))
                .collect(),
        )
    }

    fn targets(&self) {
        for cell in &CELLS {
            let what = format!(
                "{} at {} connections, against nginx",
                cell.title, cell.connections
            );
            if let (Some(target), Some(value)) = (
                cell.of_nginx_min,
                self.against(cell.name, baseline(cell), rate),
            ) {
                at_least(&what, value, target, " ×");
            }
            if let (Some(target), Some(value)) =
                (cell.p99_max, self.against(cell.name, baseline(cell), p99))
            {
                at_most(&format!("{what}, p99"), value, target, " ×");
            }
        }
        for (name, other, target) in TIMES {
            if let Some(value) = self.against(name, other, rate) {
                at_least(&format!("{name} against {other}"), value, target, " ×");
            }
        }
    }

    fn median(&self, name: &str, part: fn(&Measured) -> f64) -> Option<f64> {
        self.measured
            .get(name)
            .map(|measured| median(measured.iter().map(part)))
    }

    /// The median of the ratios of each repetition. The measurements of one repetition are within a
    /// minute of each other.
    fn against(&self, name: &str, other: &str, part: fn(&Measured) -> f64) -> Option<f64> {
        let (these, others) = (self.measured.get(name)?, self.measured.get(other)?);
        Some(median(
            these
                .iter()
                .zip(others)
                .map(|(this, other)| part(this) / part(other)),
        ))
    }
}

/// The name of the nginx cell with the same number of connections.
fn baseline(cell: &Cell) -> &'static str {
    let baseline = CELLS
        .iter()
        .find(|other| other.peer == Peer::Nginx && other.connections == cell.connections);
    baseline.map_or("", |baseline| baseline.name)
}

fn rate(measured: &Measured) -> f64 {
    measured.rate
}

fn p99(measured: &Measured) -> f64 {
    measured.latency.p99
}
