//! `http`: compares a handler under the layer with the same handler alone, over loopback sockets.

mod server;

use std::time::Duration;

use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::Error;
use crate::child::{self, Child};
use crate::client::{self, Keys, Request, Sent};
use crate::directory::Directory;
use crate::flags::{Command, Flag, Flags};
use crate::load::ANSWER_BYTES;
use crate::report::{Table, at_least, number};
use crate::stats::{Quantiles, median};

pub(crate) use self::server::SERVE;

pub(crate) const COMMAND: Command = Command {
    name: "http",
    help: "an axum handler with the layer against the same handler bare, over keep-alive connections on loopback",
    flags: &[
        Flag::new("--seconds", "4", "of each measurement in each round"),
        Flag::new("--rounds", "5", "repetitions, interleaved"),
        Flag::new(
            "--connections",
            "64",
            "kept alive, one request at a time on each",
        ),
        Flag::new("--threads", "2", "of the server's runtime"),
        Flag::new("--client-threads", "1", "of the client's runtime"),
        Flag::new(
            "--only",
            "",
            "measure only this one against bare: memory, fresh or replays",
        ),
    ],
    run,
};

const FRESH_MIN: f64 = 0.40;
const REPLAYS_MIN: f64 = 0.85;
/// Runs before each measurement and is not counted.
const WARM_UP: Duration = Duration::from_millis(300);
/// How many of the keys just made are sent again: few enough that all are in memory.
const CACHED: usize = 10_000;

const BARE: usize = 0;
const NAMES: [&str; 5] = [
    "bare",
    "layer in memory, fresh keys",
    "layer on SQLite, fresh keys",
    "layer on SQLite, replays",
    "layer on SQLite, replays after a restart",
];

/// One measurement of one round.
struct Measured {
    rate: f64,
    latency: Quantiles,
    server_micros: f64,
    client_share: f64,
}

struct Bench {
    client: Client,
    seconds: Duration,
    threads: String,
    only: String,
    results: [Vec<Measured>; 5],
}

fn run(flags: &Flags) -> Result<(), Error> {
    let (seconds, rounds, connections) = (
        flags.seconds("--seconds")?,
        flags.count("--rounds")?,
        flags.count("--connections")?,
    );
    let (threads, client_threads) = (flags.count("--threads")?, flags.count("--client-threads")?);
    let title = format!(
        "http: POST with {} bytes of JSON, {ANSWER_BYTES}-byte answers, {connections} connections, {threads} server threads, \
         {client_threads} client threads; medians of {rounds} interleaved rounds of {seconds:?}",
        client::BODY_BYTES
    );
    let headings = [
        "",
        "per second",
        "of bare",
        "p50 ms",
        "p99 ms",
        "server CPU µs",
        "more than bare",
        "client CPU",
    ];
    let mut table = Table::new(&title, &headings);
    let only = flags.text("--only").to_owned();
    let client = Client::new(connections, client_threads)?;
    let mut bench = Bench {
        client,
        seconds,
        threads: threads.to_string(),
        only,
        results: Default::default(),
    };
    for _ in 0..rounds {
        bench.round()?;
    }
    for (at, name) in NAMES
        .into_iter()
        .enumerate()
        .filter(|&(at, _)| !bench.results[at].is_empty())
    {
        bench.report(&mut table, at, name);
    }
    table.print();
    for (at, target) in [(2, FRESH_MIN), (3, REPLAYS_MIN), (4, REPLAYS_MIN)] {
        if !bench.results[at].is_empty() {
            at_least(
                &format!("{}, against bare", NAMES[at]),
                bench.ratio(at),
                target,
                " ×",
            );
        }
    }
    Ok(())
}

impl Bench {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only == name
    }

    fn round(&mut self) -> Result<(), Error> {
        let bare = Server::start(&["--kind", "bare"], &self.threads)?;
        self.client.run(&bare.address, &Keys::Fresh, WARM_UP)?;
        self.measure(BARE, &bare, &Keys::Fresh)?;
        drop(bare);
        if self.wants("memory") {
            let memory = Server::start(&["--kind", "memory"], &self.threads)?;
            self.client.run(&memory.address, &Keys::Fresh, WARM_UP)?;
            self.measure(1, &memory, &Keys::Fresh)?;
        }
        if self.wants("fresh") || self.wants("replays") {
            self.on_sqlite()?;
        }
        Ok(())
    }

    fn on_sqlite(&mut self) -> Result<(), Error> {
        let directory = Directory::temporary()?;
        let path = directory.store();
        let arguments = [
            "--kind",
            "sqlite",
            "--store",
            path.to_str().ok_or("the path of the store is not text")?,
        ];
        let server = Server::start(&arguments, &self.threads)?;
        self.client.run(&server.address, &Keys::Fresh, WARM_UP)?;
        let made = self.measure(2, &server, &Keys::Fresh)?;
        if !self.wants("replays") {
            return Ok(());
        }
        let cached = Keys::last(&made, CACHED);
        self.client.run(&server.address, &cached, WARM_UP)?;
        self.measure(3, &server, &cached)?;
        drop(server);
        // Each key once: a second request would be answered from memory.
        let server = Server::start(&arguments, &self.threads)?;
        self.measure(4, &server, &Keys::Once(made)).map(drop)
    }

    fn measure(&mut self, at: usize, server: &Server, keys: &Keys) -> Result<Vec<Uuid>, Error> {
        let cpu = || {
            Ok::<_, Error>((
                child::cpu_micros(server.child.pid())?,
                child::cpu_micros(std::process::id())?,
            ))
        };
        let before = cpu()?;
        let Sent {
            keys: sent,
            elapsed,
            latencies,
            replayed,
        } = self.client.run(&server.address, keys, self.seconds)?;
        let after = cpu()?;
        if replayed != matches!(keys, Keys::Again(_) | Keys::Once(_)) {
            return Err(format!(
                "{}: replays where there should be none, or none where there should be",
                NAMES[at]
            )
            .into());
        }
        self.results[at].push(Measured {
            rate: sent.len() as f64 / elapsed.as_secs_f64(),
            latency: latencies.quantiles(),
            server_micros: (after.0 - before.0) as f64 / sent.len() as f64,
            client_share: (after.1 - before.1) as f64 / 1e6 / elapsed.as_secs_f64(),
        });
        Ok(sent)
    }

    /// The median of the ratios of each round. The measurements of one round are within seconds of
    /// each other.
    fn ratio(&self, at: usize) -> f64 {
        median(
            self.results[at]
                .iter()
                .zip(&self.results[BARE])
                .map(|(this, bare)| this.rate / bare.rate),
        )
    }

    fn report(&self, table: &mut Table, at: usize, name: &str) {
        let of = |at: usize, part: fn(&Measured) -> f64| median(self.results[at].iter().map(part));
        let micros = of(at, |measured| measured.server_micros);
        let cells = [
            number(of(at, |measured| measured.rate)),
            number(self.ratio(at)),
            number(of(at, |measured| measured.latency.p50)),
            number(of(at, |measured| measured.latency.p99)),
            number(micros),
            number(micros - of(BARE, |measured| measured.server_micros)),
            format!("{:.0} %", of(at, |measured| measured.client_share) * 100.0),
        ];
        table.row(name, cells);
    }
}

/// The client with its own runtime.
struct Client {
    runtime: Runtime,
    request: Request,
    connections: usize,
}

impl Client {
    fn new(connections: usize, threads: usize) -> Result<Client, Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .enable_all()
            .build()?;
        Ok(Client {
            runtime,
            request: Request::order("/v1/charges", 201),
            connections,
        })
    }

    fn run(&self, address: &str, keys: &Keys, duration: Duration) -> Result<Sent, Error> {
        self.runtime.block_on(client::send(
            address,
            &self.request,
            self.connections,
            keys,
            duration,
        ))
    }
}

/// A server in its own process, killed when dropped.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(arguments: &[&str], threads: &str) -> Result<Server, Error> {
        let mut child = Child::spawn(&[&["serve", "--threads", threads], arguments].concat())?;
        let address = child.line()?;
        Ok(Server { child, address })
    }
}
