//! Compares many stored keys with few, on the same server.

use std::sync::Arc;

use hapax::Postgres;

use crate::Error;
use crate::load::{ANSWER_BYTES, LONG, Load, Until};
use crate::report::{Table, at_least, mebibytes, number};
use crate::stats::{Quantiles, median};
use crate::volume::fill;

use super::Scale;
use super::cluster::Cluster;

const FEW: usize = 10_000;
const CALLERS: usize = 64;
const RATE_RATIO_MIN: f64 = 0.8;

pub(super) async fn run(cluster: &Cluster, scale: Scale) -> Result<(), Error> {
    let Scale {
        seconds,
        rounds,
        keys,
    } = scale;
    let (many_url, many) = filled(cluster, keys).await?;
    let title = format!(
        "postgres: claim + complete by {CALLERS} callers with many stored keys and with few, {ANSWER_BYTES}-byte answers; medians of {rounds} \
         interleaved rounds of {seconds:?}"
    );
    let mut table = Table::new(&title, &["stored keys", "per second", "p50 ms", "p99 ms"]);
    let (mut with_few, mut with_many): (Vec<(f64, Quantiles)>, Vec<_>) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        // Filled again in each round, because the load itself adds many keys.
        let (_, few) = filled(cluster, FEW).await?;
        for (load, results) in [(&few, &mut with_few), (&many, &mut with_many)] {
            let done = load.run(CALLERS, Until::Elapsed(seconds)).await?;
            results.push((done.rate(), done.pairs.quantiles()));
        }
    }
    for (count, results) in [(FEW, &with_few), (keys, &with_many)] {
        let of = |part: fn(&(f64, Quantiles)) -> f64| number(median(results.iter().map(part)));
        table.row(
            &count.to_string(),
            [
                of(|(rate, _)| *rate),
                of(|(_, q)| q.p50),
                of(|(_, q)| q.p99),
            ],
        );
    }
    table.print();
    let size: u64 = cluster
        .sql(&many_url, "SELECT pg_database_size(current_database())")?
        .parse()?;
    println!("  the database of many keys takes {} MiB", mebibytes(size));
    let ratios = with_many
        .iter()
        .zip(&with_few)
        .map(|((many, _), (few, _))| many / few);
    at_least(
        "rate with many against few",
        median(ratios),
        RATE_RATIO_MIN,
        " ×",
    );
    Ok(())
}

/// A store with `keys` keys and no pending maintenance.
async fn filled(cluster: &Cluster, keys: usize) -> Result<(String, Arc<Load>), Error> {
    let url = cluster.migrated().await?;
    let load = Load::new(Arc::new(Postgres::open(&url).await?), LONG);
    fill(&load, keys).await?;
    // Done now, so that the server does not do it during a measurement.
    cluster.sql(&url, "VACUUM ANALYZE hapax.heads")?;
    cluster.sql(&url, "CHECKPOINT")?;
    Ok((url, load))
}
