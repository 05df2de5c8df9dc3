//! What a transaction costs the relay that has emitted and stays open.

use hapax_flow::publish::Null;

use crate::Error;
use crate::child::cpu_micros;
use crate::postgres::{Cluster, connect};
use crate::report::{Table, at_most, number};
use crate::stats::median;

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
    let mut results: [Vec<Relayed>; 2] = [Vec::new(), Vec::new()];
    for round in 1..=rounds {
        eprintln!("  idle: round {round} of {rounds}");
        for (is_open, results) in [false, true].into_iter().zip(&mut results) {
            let session = connect(&url).await?;
            if is_open {
                let emit = "BEGIN; SELECT hapax.emit('orders', 'the idle one', '{}'::jsonb)";
                session.batch_execute(emit).await?;
            }
            fill(&url, messages).await?;
            results.push(relay(cluster, &url, messages).await?);
        }
    }
    let mut table = Table::new(&title, &["", "per second", "CPU µs each"]);
    for (name, results) in ["none is open", "one is open and idle"]
        .into_iter()
        .zip(&results)
    {
        let of = |part: fn(&Relayed) -> f64| number(median(results.iter().map(part)));
        table.row(
            name,
            [of(|relayed| relayed.rate), of(|relayed| relayed.cpu)],
        );
    }
    table.print();
    let [without, beside] = &results;
    let ratios = beside.iter().zip(without);
    let cost = 100.0 * (median(ratios.map(|(beside, without)| beside.cpu / without.cpu)) - 1.0);
    let what = "processor time for an idle open transaction";
    at_most(what, cost, COST_MAX, " %");
    Ok(())
}

struct Relayed {
    /// Messages per second.
    rate: f64,
    /// Microseconds of the server and of this process for each message. Other work on the machine
    /// disturbs it less than the rate.
    cpu: f64,
}

async fn relay(cluster: &Cluster, url: &str, messages: usize) -> Result<Relayed, Error> {
    let used = || Ok::<_, Error>(cluster.cpu_micros()? + cpu_micros(std::process::id())?);
    let before = used()?;
    let took = drain(url, Null, messages).await?;
    Ok(Relayed {
        rate: messages as f64 / took.as_secs_f64(),
        cpu: (used()? - before) as f64 / messages as f64,
    })
}
