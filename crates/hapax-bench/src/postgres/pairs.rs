//! Claim + complete by the store and by `pgbench`, alternating; and replays.

use std::collections::BTreeMap;
use std::sync::Arc;

use hapax::{Postgres, RecordId};

use crate::Error;
use crate::load::{ANSWER_BYTES, LONG, Load, Until};
use crate::report::{Table, at_least, at_most, number};
use crate::stats::{Rounds, median};

use super::Scale;
use super::cluster::Cluster;
use super::floor::{Floor, Mode, STORED, Script};

const CALLERS: [usize; 4] = [1, 16, 64, 256];
/// The number of callers that read answers.
const READERS: usize = 64;

/// The least ratio of the store's pairs to pgbench's, by the number of callers.
const PAIRS_MIN: [(usize, f64); 2] = [(64, 4.0), (256, 5.0)];
/// The largest ratio of a single caller's latency to pgbench's.
const LATENCY_MAX: f64 = 1.15;
const REPLAYS_MIN: f64 = 0.8;

/// What is measured: the store, or pgbench in one of its modes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Prepared,
    Simple,
    Hapax,
}

impl Who {
    fn name(self) -> &'static str {
        match self {
            Who::Prepared => "pgbench, prepared",
            Who::Simple => "pgbench, simple",
            Who::Hapax => "hapax",
        }
    }

    fn floor(mode: Mode) -> Who {
        match mode {
            Mode::Prepared => Who::Prepared,
            Mode::Simple => Who::Simple,
        }
    }
}

#[derive(Default)]
struct Results {
    pairs: BTreeMap<(usize, Who), Rounds>,
    replays: BTreeMap<Who, Rounds>,
}

pub(super) async fn run(cluster: &Cluster, scale: Scale) -> Result<(), Error> {
    let Scale {
        seconds, rounds, ..
    } = scale;
    let floor = Floor::new(cluster)?;
    let store = Arc::new(Postgres::open(&cluster.migrated().await?).await?);
    let load = Load::new(store.clone(), LONG);
    let (mut results, mut ids) = (Results::default(), Vec::new());
    for round in 1..=rounds {
        eprintln!("  pairs: round {round} of {rounds}");
        for callers in CALLERS {
            for mode in Mode::ALL {
                let (rate, quantiles) = floor.run(Script::Pairs, callers, mode, seconds)?;
                results
                    .pairs
                    .entry((callers, Who::floor(mode)))
                    .or_default()
                    .add(rate, quantiles);
            }
            let before = store.stats();
            let done = load.run(callers, Until::Elapsed(seconds)).await?;
            let after = store.stats();
            let hapax = results.pairs.entry((callers, Who::Hapax)).or_default();
            hapax.shared.push(
                (after.batched - before.batched) as f64 / (after.batches - before.batches) as f64,
            );
            hapax.add(done.rate(), done.pairs.quantiles());
            ids.extend(done.ids);
        }
        replays(&floor, &load, &ids, scale, &mut results).await?;
    }
    let title = format!(
        "postgres: claim + complete, {ANSWER_BYTES}-byte answers, random keys, every commit on the disk; medians of {rounds} \
         interleaved rounds of {seconds:?}"
    );
    results.print(&title);
    Ok(())
}

async fn replays(
    floor: &Floor<'_>,
    load: &Arc<Load>,
    ids: &[RecordId],
    scale: Scale,
    results: &mut Results,
) -> Result<(), Error> {
    for mode in Mode::ALL {
        let (rate, quantiles) = floor.run(Script::Select, READERS, mode, scale.seconds)?;
        results
            .replays
            .entry(Who::floor(mode))
            .or_default()
            .add(rate, quantiles);
    }
    let last = &ids[ids.len().saturating_sub(STORED)..];
    results
        .replays
        .entry(Who::Hapax)
        .or_default()
        .rates
        .push(load.read(READERS, last, scale.seconds).await?);
    Ok(())
}

impl Results {
    fn print(&self, title: &str) {
        let mut table = Table::new(
            title,
            &[
                "",
                "callers",
                "per second",
                "of pgbench",
                "p50 ms",
                "p99 ms",
                "puts/statement",
            ],
        );
        for ((callers, who), rounds) in &self.pairs {
            let ratio = number(self.against(*callers, *who));
            let shared = if rounds.shared.is_empty() {
                String::new()
            } else {
                number(rounds.calls_together())
            };
            let (p50, p99) = (
                number(rounds.latency(|q| q.p50)),
                number(rounds.latency(|q| q.p99)),
            );
            table.row(
                who.name(),
                [
                    callers.to_string(),
                    number(rounds.rate()),
                    ratio,
                    p50,
                    p99,
                    shared,
                ],
            );
        }
        for (who, rounds) in &self.replays {
            let name = format!("{}: replays", who.name());
            table.row(
                &name,
                [
                    READERS.to_string(),
                    number(rounds.rate()),
                    number(self.replays_against(*who)),
                ],
            );
        }
        table.print();
        self.targets();
    }

    fn targets(&self) {
        for (callers, target) in PAIRS_MIN {
            at_least(
                &format!("{callers} callers, against pgbench"),
                self.against(callers, Who::Hapax),
                target,
                " ×",
            );
        }
        let floor = &self.pairs[&(1, self.faster(1))];
        let ratios = floor
            .quantiles
            .iter()
            .zip(&self.pairs[&(1, Who::Hapax)].quantiles)
            .map(|(floor, hapax)| hapax.p50 / floor.p50);
        at_most(
            "one caller's wait (p50), against pgbench",
            median(ratios),
            LATENCY_MAX,
            " ×",
        );
        at_least(
            "replays, against pgbench's select",
            self.replays_against(Who::Hapax),
            REPLAYS_MIN,
            " ×",
        );
    }

    /// The faster mode of pgbench, which is the one to compare with.
    fn faster(&self, callers: usize) -> Who {
        faster(|who| self.pairs[&(callers, who)].rate())
    }

    fn against(&self, callers: usize, who: Who) -> f64 {
        self.pairs[&(callers, who)].against(&self.pairs[&(callers, self.faster(callers))])
    }

    fn replays_against(&self, who: Who) -> f64 {
        let floor = faster(|who| self.replays[&who].rate());
        self.replays[&who].against(&self.replays[&floor])
    }
}

fn faster(rate: impl Fn(Who) -> f64) -> Who {
    if rate(Who::Prepared) >= rate(Who::Simple) {
        Who::Prepared
    } else {
        Who::Simple
    }
}
