//! Claim + complete by the store and by bare commands, alternating.

use std::sync::Arc;

use hapax::Redis;
use hapax_testkit::servers;

use crate::Error;
use crate::child::cpu_micros;
use crate::load::{ANSWER_BYTES, LONG, Load, Until};
use crate::report::{Table, number};
use crate::stats::{Rounds, median};

use super::floor::Floor;
use super::server::{self, Fsync};
use super::{CALLERS, Scale};

/// A server with a setting of `appendfsync`, and what was measured on it.
struct Place {
    fsync: Fsync,
    server: servers::Redis,
    floor: Floor,
    store: Arc<Redis>,
    load: Arc<Load>,
    of_floor: Rounds,
    of_store: Rounds,
    /// Processor time of Redis for each pair, in microseconds.
    floor_micros: Vec<f64>,
    store_micros: Vec<f64>,
}

impl Place {
    async fn open(fsync: Fsync) -> Result<Place, Error> {
        let server = server::start(fsync)?;
        let store = Arc::new(server::open(&server).await?);
        Ok(Place {
            fsync,
            floor: Floor::connect(&server).await?,
            load: Load::new(store.clone(), LONG),
            store,
            server,
            of_floor: Rounds::default(),
            of_store: Rounds::default(),
            floor_micros: Vec::new(),
            store_micros: Vec::new(),
        })
    }

    async fn round(&mut self, until: Until) -> Result<(), Error> {
        let used = cpu_micros(self.server.pid())?;
        let done = self.floor.write(CALLERS, until).await?;
        let used = cpu_micros(self.server.pid())? - used;
        self.floor_micros.push(used as f64 / done.keys.len() as f64);
        self.of_floor.add(done.rate(), done.latencies.quantiles());
        self.floor.clear().await?;
        let used = cpu_micros(self.server.pid())?;
        let before = self.store.stats();
        let done = self.load.run(CALLERS, until).await?;
        let used = cpu_micros(self.server.pid())? - used;
        self.store_micros.push(used as f64 / done.ids.len() as f64);
        let after = self.store.stats();
        let calls = after.calls - before.calls;
        let pipelines = after.pipelines - before.pipelines;
        self.of_store.add(done.rate(), done.pairs.quantiles());
        self.of_store.shared.push(calls as f64 / pipelines as f64);
        Ok(())
    }

    fn rows(&self, table: &mut Table) {
        for (name, rounds, micros) in [
            ("SET NX + SET", &self.of_floor, &self.floor_micros),
            ("hapax", &self.of_store, &self.store_micros),
        ] {
            let shared = match rounds.shared.is_empty() {
                true => String::new(),
                false => number(rounds.calls_together()),
            };
            let numbers = [
                rounds.rate(),
                rounds.against(&self.of_floor),
                rounds.latency(|latency| latency.p50),
                rounds.latency(|latency| latency.p99),
                median(micros.iter().copied()),
            ];
            let cells = numbers.map(number).into_iter().chain([shared]);
            table.row(&format!("{name}, {}", self.fsync.name()), cells);
        }
    }
}

pub(super) async fn run(scale: Scale) -> Result<(), Error> {
    let Scale {
        seconds, rounds, ..
    } = scale;
    let mut places = [
        Place::open(Fsync::Everysec).await?,
        Place::open(Fsync::Always).await?,
    ];
    for round in 1..=rounds {
        eprintln!("  pairs: round {round} of {rounds}");
        for place in &mut places {
            place.round(Until::Elapsed(seconds)).await?;
        }
    }
    let title = format!(
        "redis: claim + complete by {CALLERS} callers, {ANSWER_BYTES}-byte answers, random keys; \
         medians of {rounds} interleaved rounds of {seconds:?}"
    );
    let headings = [
        "",
        "per second",
        "of SET NX + SET",
        "p50 ms",
        "p99 ms",
        "Redis CPU µs",
        "calls/pipeline",
    ];
    let mut table = Table::new(&title, &headings);
    for place in &places {
        place.rows(&mut table);
    }
    table.print();
    Ok(())
}
