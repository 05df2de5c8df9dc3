//! The table: every peer in turn, in every repetition.

use std::sync::Arc;
use std::time::Duration;

use hapax::Sqlite;
use uuid::Uuid;

use crate::Error;
use crate::client::{self, BODY_BYTES, Keys, Sent};
use crate::directory::Directory;
use crate::flags::Flags;
use crate::load::{ANSWER_BYTES, LONG, Load};
use crate::volume::fill;

use super::cells::{self, Cell, PEERS, Peer, Traffic};
use super::hapax::Program;
use super::nginx;
use super::restate::{Installed, Setting};
use super::results::{Cpu, Measured, Results};
use super::server::Server;
use super::upstream::Upstream;

/// Before each measurement, and not counted.
const WARM_UP: Duration = Duration::from_millis(500);
/// Connections that make the keys which are then replayed.
const MAKERS: usize = 256;
/// The longest that making them may take.
const MAKING: Duration = Duration::from_secs(240);
/// What a measurement may take longer than it should before it is given up.
const PATIENCE: Duration = Duration::from_secs(60);

struct Bench {
    seconds: Duration,
    wanted: Vec<&'static Cell>,
    upstream: Upstream,
    hapax: Option<Program>,
    /// With the stored keys in it.
    store: Option<Directory>,
    restate: Option<Installed>,
    /// Keys that were made on the gateway's store, and outlive it.
    stored: Vec<Uuid>,
    results: Results,
}

pub(super) async fn run(flags: &Flags) -> Result<(), Error> {
    let (seconds, repetitions, keys) = (flags.seconds("--seconds")?, flags.count("--repetitions")?, flags.count("--keys")?);
    let wanted = cells::wanted(flags.text("--only"))?;
    let mut bench = Bench {
        seconds,
        wanted,
        upstream: Upstream::start()?,
        hapax: None,
        store: None,
        restate: None,
        stored: Vec::new(),
        results: Results::default(),
    };
    bench.prepare(keys).await?;
    let title = format!(
        "gateway: POST with {BODY_BYTES} bytes of JSON, {ANSWER_BYTES}-byte answers; {keys} keys in SQLite before; medians of \
         {repetitions} interleaved repetitions of {seconds:?}"
    );
    for repetition in 1..=repetitions {
        eprintln!("  repetition {repetition} of {repetitions}");
        bench.repetition().await?;
    }
    bench.results.print(&title);
    Ok(())
}

impl Bench {
    fn wanted_of(&self, which: impl Fn(Peer) -> bool) -> Vec<&'static Cell> {
        self.wanted.iter().copied().filter(|cell| which(cell.peer)).collect()
    }

    fn wants(&self, which: impl Fn(Peer) -> bool) -> bool {
        self.wanted.iter().any(|cell| which(cell.peer))
    }

    /// Builds, fills and installs what the wanted rows need.
    async fn prepare(&mut self, keys: usize) -> Result<(), Error> {
        if self.wants(Peer::is_hapax) {
            self.hapax = Some(Program::build()?);
        }
        if self.wants(|peer| peer == Peer::HapaxSqlite) {
            let directory = Directory::temporary()?;
            fill(&Load::new(Arc::new(Sqlite::open(directory.store()).await?), LONG), keys).await?;
            self.store = Some(directory);
        }
        if self.wants(Peer::is_restate) {
            match Installed::get() {
                Ok(installed) => self.restate = Some(installed),
                Err(error) => self.skip(Peer::is_restate, &error.to_string()),
            }
        }
        Ok(())
    }

    /// A peer that cannot be had here is no reason not to measure the others.
    fn skip(&mut self, which: impl Fn(Peer) -> bool, reason: &str) {
        for cell in self.wanted_of(which) {
            self.results.skip(cell, reason);
        }
    }

    async fn repetition(&mut self) -> Result<(), Error> {
        for peer in PEERS {
            let cells = self.wanted_of(|other| other == peer);
            if !cells.is_empty()
                && let Some(server) = self.start(peer).await?
            {
                self.measure_all(&cells, peer, &server).await?;
            }
        }
        Ok(())
    }

    async fn measure_all(&mut self, cells: &[&'static Cell], peer: Peer, server: &Server) -> Result<(), Error> {
        // The store of the gateway stays from one repetition to the next, and its keys with it.
        let mut made = if peer == Peer::HapaxSqlite { std::mem::take(&mut self.stored) } else { Vec::new() };
        for cell in cells {
            self.measure(cell, server, &mut made).await.map_err(|error| format!("{}: {error}", cell.name))?;
        }
        if peer == Peer::HapaxSqlite {
            self.stored = made;
        }
        Ok(())
    }

    async fn start(&mut self, peer: Peer) -> Result<Option<Server>, Error> {
        let upstream = &self.upstream.address;
        match (peer, &self.hapax, &self.store, &self.restate) {
            (Peer::Nginx, ..) => nginx::start(upstream).await.map(Some),
            (Peer::HapaxMemory, Some(hapax), ..) => hapax.serve(upstream, "memory:").await.map(Some),
            (Peer::HapaxSqlite, Some(hapax), Some(store), _) => {
                hapax.serve(upstream, &format!("sqlite:{}", store.store().display())).await.map(Some)
            }
            (Peer::Restate(setting), _, _, Some(restate)) => match restate.serve(setting, upstream).await {
                Ok(server) => Ok(Some(server)),
                Err(error) => {
                    self.skip(|other| other == peer, &error.to_string());
                    Ok(None)
                }
            },
            _ => Ok(None),
        }
    }

    /// One cell, once. The keys that it makes are added to those made on this server.
    async fn measure(&mut self, cell: &Cell, server: &Server, made: &mut Vec<Uuid>) -> Result<(), Error> {
        let missing = cell.traffic.known().saturating_sub(made.len());
        if missing > 0 {
            made.extend(self.send(server, Traffic::Fresh, MAKERS.min(missing), &Keys::fresh(missing), MAKING).await?.keys);
        }
        let keys = cell.traffic.keys(made);
        let warm_up = self.send(server, cell.traffic, cell.connections, &keys, WARM_UP).await?;
        let (orders, cpu) = (self.upstream.orders().await?, Cpu::now(server, &self.upstream)?);
        let sent = self.send(server, cell.traffic, cell.connections, &keys, self.seconds).await?;
        let cpu = cpu.until(&Cpu::now(server, &self.upstream)?);
        self.check(cell, &sent, self.upstream.orders().await? - orders)?;
        if cell.traffic == Traffic::Fresh {
            made.extend(warm_up.keys);
            made.extend(&sent.keys);
        }
        self.results.add(cell, Measured::new(sent, &cpu));
        Ok(())
    }

    async fn send(
        &self,
        server: &Server,
        traffic: Traffic,
        connections: usize,
        keys: &Keys,
        duration: Duration,
    ) -> Result<Sent, Error> {
        let request = if traffic == Traffic::WithoutKey { &server.without_key } else { &server.order };
        let sent = client::send(&server.address, request, connections, keys, duration);
        let sent = tokio::time::timeout(duration + PATIENCE, sent).await.map_err(|_| "not every request is answered".into());
        sent.flatten().map_err(|error: Error| format!("{error}; the server said:\n{}", server.process.last_words()).into())
    }

    /// A proxy that lost an order, sent one twice or ran a replay again was not measured doing its work.
    fn check(&self, cell: &Cell, sent: &Sent, orders: u64) -> Result<(), Error> {
        let due = match (cell.peer, cell.traffic.replays()) {
            (Peer::Restate(Setting::Installed), _) | (_, true) => 0,
            (_, false) => sent.keys.len() as u64,
        };
        if orders != due {
            return Err(format!("{} requests came to {orders} orders instead of {due}", sent.keys.len()).into());
        }
        let marked = cell.traffic.replays() && cell.peer.is_hapax();
        if sent.replayed != marked {
            return Err("replays where there should be none, or none where there should be".into());
        }
        Ok(())
    }
}
