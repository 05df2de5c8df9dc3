//! What a transaction costs the relay that has emitted and stays open.

use hapax_flow::publish::Null;

use crate::Error;
use crate::postgres::{Cluster, connect};
use crate::report::{Table, at_most, number};
use crate::stats::Rounds;

use super::Scale;
use super::backlog::{drain, fill};

const COST_MAX: f64 = 5.0;

pub(super) async fn run(cluster: &Cluster, scale: Scale) -> Result<(), Error> {
    let Scale {
        messages, rounds, ..
    } = scale;
    let title = format!(
        "outbox: {messages} messages wait and are published to null:, beside a transaction that has emitted and idles; medians of {rounds} interleaved rounds"
    );
    let url = cluster.migrated().await?;
    let [mut without, mut beside] = [(); 2].map(|()| Rounds::default());
    for round in 1..=rounds {
        eprintln!("  idle: round {round} of {rounds}");
        for is_open in [false, true] {
            let session = connect(&url).await?;
            if is_open {
                let emit = "BEGIN; SELECT hapax.emit('orders', 'the idle one', '{}'::jsonb)";
                session.batch_execute(emit).await?;
            }
            fill(&url, messages).await?;
            let took = drain(&url, Null, messages).await?;
            let results = if is_open { &mut beside } else { &mut without };
            results.rates.push(messages as f64 / took.as_secs_f64());
        }
    }
    let cost = 100.0 * (1.0 - beside.against(&without));
    let mut table = Table::new(&title, &["", "per second"]);
    table.row("none is open", [number(without.rate())]);
    table.row("one is open and idle", [number(beside.rate())]);
    table.print();
    at_most("cost of an idle open transaction", cost, COST_MAX, " %");
    Ok(())
}
