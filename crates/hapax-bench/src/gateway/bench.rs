//! The table: measures every peer in turn, in every repetition.

use std::time::Duration;

use uuid::Uuid;

use crate::Error;
use crate::client::{self, BODY_BYTES, Keys, Sent};
use crate::load::ANSWER_BYTES;
use crate::postgres::Cluster;

use super::cells::{self, Cell, PEERS, Peer, Traffic};
use super::peers::{Peers, Started};
use super::results::{Cpu, Measured, Results};
use super::server::Server;
use super::upstream::Upstream;

/// Runs before each measurement and is not counted.
const WARM_UP: Duration = Duration::from_millis(500);
/// Connections that make the keys which are then replayed.
const MAKERS: usize = 256;
/// The longest time for making them.
const MAKING: Duration = Duration::from_secs(240);
/// How much longer than planned a measurement may take before it is aborted.
const PATIENCE: Duration = Duration::from_secs(60);

/// What to measure, and for how long.
pub(super) struct Plan<'a> {
    pub(super) seconds: Duration,
    pub(super) repetitions: usize,
    /// Keys stored in SQLite before the measurement.
    pub(super) keys: usize,
    /// Names of rows, as [`cells::wanted`] takes them.
    pub(super) only: &'a str,
    /// For the rows on Postgres. If it is `None`, a server is started for them.
    pub(super) cluster: Option<Cluster>,
}

struct Bench {
    seconds: Duration,
    wanted: Vec<&'static Cell>,
    upstream: Upstream,
    peers: Peers,
    /// Keys made on the gateway's SQLite store. They stay there from one repetition to the next.
    stored: Vec<Uuid>,
    results: Results,
}

pub(super) async fn run(plan: Plan<'_>) -> Result<(), Error> {
    let Plan {
        seconds,
        repetitions,
        keys,
        only,
        cluster,
    } = plan;
    let wanted = cells::wanted(only)?;
    let peers: Vec<_> = wanted.iter().map(|cell| cell.peer).collect();
    let before = if peers.contains(&Peer::HapaxSqlite) {
        format!("{keys} keys in SQLite before; ")
    } else {
        String::new()
    };
    let peers = Peers::prepare(&peers, keys, cluster).await?;
    let mut bench = Bench {
        seconds,
        wanted,
        upstream: Upstream::start()?,
        peers,
        stored: Vec::new(),
        results: Results::default(),
    };
    let title = format!(
        "gateway: POST with {BODY_BYTES} bytes of JSON, {ANSWER_BYTES}-byte answers; {before}medians of {repetitions} interleaved \
         repetitions of {seconds:?}"
    );
    for repetition in 1..=repetitions {
        eprintln!("  repetition {repetition} of {repetitions}");
        bench.repetition().await?;
    }
    bench.results.print(&title);
    Ok(())
}

impl Bench {
    async fn repetition(&mut self) -> Result<(), Error> {
        for peer in PEERS {
            let cells: Vec<_> = self
                .wanted
                .iter()
                .copied()
                .filter(|cell| cell.peer == peer)
                .collect();
            if !cells.is_empty() {
                self.turn(peer, &cells).await?;
            }
        }
        Ok(())
    }

    /// Measures all cells of one peer.
    async fn turn(&mut self, peer: Peer, cells: &[&'static Cell]) -> Result<(), Error> {
        if let Some(reason) = self.peers.missing(peer) {
            cells
                .iter()
                .for_each(|cell| self.results.skip(cell, reason));
            return Ok(());
        }
        match self.peers.start(peer, &self.upstream.address).await {
            Ok(started) => self.measure_all(cells, peer, &started).await,
            // A failure of another product is noted as skipped. A failure of Hapax or nginx aborts
            // the run.
            Err(error) if !peer.is_hapax() && peer != Peer::Nginx => {
                cells
                    .iter()
                    .for_each(|cell| self.results.skip(cell, &error.to_string()));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn measure_all(
        &mut self,
        cells: &[&'static Cell],
        peer: Peer,
        started: &Started,
    ) -> Result<(), Error> {
        // The gateway's store and its keys stay from one repetition to the next.
        let mut made = if peer == Peer::HapaxSqlite {
            std::mem::take(&mut self.stored)
        } else {
            Vec::new()
        };
        for cell in cells {
            self.measure(cell, started, &mut made)
                .await
                .map_err(|error| format!("{}: {error}", cell.name))?;
        }
        if peer == Peer::HapaxSqlite {
            self.stored = made;
        }
        Ok(())
    }

    /// Measures one cell once. The keys that it makes are added to those made on this server.
    async fn measure(
        &mut self,
        cell: &Cell,
        started: &Started,
        made: &mut Vec<Uuid>,
    ) -> Result<(), Error> {
        let server = &started.server;
        let missing = cell.traffic.known().saturating_sub(made.len());
        if missing > 0 {
            made.extend(
                self.send(
                    started.maker(),
                    Traffic::Fresh,
                    MAKERS.min(missing),
                    &Keys::fresh(missing),
                    MAKING,
                )
                .await?
                .keys,
            );
        }
        let keys = cell.traffic.keys_to_warm_up(made);
        let warm_up = self
            .send(server, cell.traffic, cell.connections, &keys, WARM_UP)
            .await?;
        let keys = cell.traffic.keys(made);
        let (orders, cpu) = (
            self.upstream.orders().await?,
            Cpu::now(server, &self.upstream)?,
        );
        let sent = self
            .send(server, cell.traffic, cell.connections, &keys, self.seconds)
            .await?;
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
        let request = if traffic == Traffic::WithoutKey {
            &server.without_key
        } else {
            &server.order
        };
        let sent = client::send(&server.address, request, connections, keys, duration);
        let sent = tokio::time::timeout(duration + PATIENCE, sent)
            .await
            .map_err(|_| "not every request is answered".into());
        sent.flatten().map_err(|error: Error| {
            format!("{error}; the server said:\n{}", server.process.last_words()).into()
        })
    }

    /// Fails if the proxy lost an order, sent one twice or ran a replay again: then it did not do
    /// the work that is being measured.
    fn check(&self, cell: &Cell, sent: &Sent, orders: u64) -> Result<(), Error> {
        let due = if cell.peer.has_own_service() || cell.traffic.replays() {
            0
        } else {
            sent.keys.len() as u64
        };
        if orders != due {
            return Err(format!(
                "{} requests came to {orders} orders instead of {due}",
                sent.keys.len()
            )
            .into());
        }
        let marked = cell.traffic.replays() && cell.peer.is_hapax();
        if sent.replayed != marked {
            return Err("replays where there should be none, or none where there should be".into());
        }
        Ok(())
    }
}
