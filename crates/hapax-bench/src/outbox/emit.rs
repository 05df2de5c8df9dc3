//! An effect with its message against the effect alone.

use std::collections::BTreeMap;

use crate::Error;
use crate::postgres::Cluster;
use crate::report::{Table, at_least, number};
use crate::stats::Rounds;
use crate::transaction::{Orders, Who};

use super::Scale;

const CLIENTS: [usize; 2] = [16, 64];
const MEASURED: [Who; 5] = [
    Who::Bare,
    Who::Emit,
    Who::EmitWithCommit,
    Who::Transaction,
    Who::TransactionEmit,
];
/// Each with a message, the same without one, and the least ratio between their rates.
const PAIRS: [(Who, Who, f64); 3] = [
    (Who::Emit, Who::Bare, 0.6),
    (Who::EmitWithCommit, Who::Bare, 0.6),
    (Who::TransactionEmit, Who::Transaction, 0.85),
];

pub(super) async fn run(cluster: &Cluster, scale: Scale) -> Result<(), Error> {
    let Scale {
        seconds, rounds, ..
    } = scale;
    let title = format!(
        "outbox: BEGIN, INSERT, COMMIT with and without a message, every commit on the disk; medians of {rounds} interleaved rounds of {seconds:?}"
    );
    let mut results: BTreeMap<(usize, Who), Rounds> = BTreeMap::new();
    let orders = Orders::open(&cluster.migrated().await?).await?;
    for round in 1..=rounds {
        eprintln!("  emit: round {round} of {rounds}");
        for clients in CLIENTS {
            for who in MEASURED {
                let ran = orders.run(clients, who, seconds).await?;
                let of = results.entry((clients, who)).or_default();
                of.add(ran.rate, ran.latencies.quantiles());
            }
        }
    }
    let mut table = Table::new(
        &title,
        &[
            "",
            "clients",
            "per second",
            "of the same without",
            "p50 ms",
            "p99 ms",
        ],
    );
    let mut ratios = Vec::new();
    for clients in CLIENTS {
        for who in MEASURED {
            let of = &results[&(clients, who)];
            let pair = PAIRS.iter().find(|(with, ..)| *with == who);
            let ratio = pair.map(|(_, without, ratio_min)| {
                let ratio = of.against(&results[&(clients, *without)]);
                ratios.push((clients, who, ratio, *ratio_min));
                ratio
            });
            let cells = [
                clients.to_string(),
                number(of.rate()),
                ratio.map_or_else(String::new, number),
                number(of.latency(|quantiles| quantiles.p50)),
                number(of.latency(|quantiles| quantiles.p99)),
            ];
            table.row(who.name(), cells);
        }
    }
    table.print();
    for (clients, who, ratio, ratio_min) in ratios {
        let what = format!("{clients} clients, {}", who.name());
        at_least(&what, ratio, ratio_min, "");
    }
    Ok(())
}
