//! How long callers wait while answer tables are emptied.

use std::sync::Arc;
use std::time::Duration;

use hapax::core::store::Lifetime;
use hapax::{Postgres, Store};
use tokio::time::MissedTickBehavior;

use crate::Error;
use crate::load::{ANSWER_BYTES, Done, Load, Until};
use crate::report::{Table, at_most, number};
use crate::stats::{Quantiles, median};

use super::Scale;
use super::cluster::Cluster;

const CALLERS: usize = 64;
/// How often the answer tables are maintained, and how long each is written to.
const EVERY: Duration = Duration::from_millis(100);
const SWEPT_MAX: usize = 1_000;
/// The first answers expire after a second; only then is there a table to empty.
const SECONDS_MIN: Duration = Duration::from_secs(3);
/// Belongs to the ring of tables that turns this often.
const SHORT: Lifetime = Lifetime {
    retention: Duration::from_secs(1),
    tombstone: Duration::from_secs(3600),
};
const P99_MAX: f64 = 1.5;

pub(super) async fn run(cluster: &Cluster, scale: Scale) -> Result<(), Error> {
    let (seconds, rounds) = (scale.seconds.max(SECONDS_MIN), scale.rounds);
    let title = format!(
        "postgres: claim + complete by {CALLERS} callers while a table of answers is emptied every {EVERY:?}, {ANSWER_BYTES}-byte answers; \
         latency of one put; medians of {rounds} interleaved rounds of {seconds:?}"
    );
    let mut table = Table::new(
        &title,
        &[
            "",
            "per second",
            "p50 ms",
            "p99 ms",
            "max ms",
            "tables emptied",
        ],
    );
    let (quiet, turning) = (open(cluster, false).await?, open(cluster, true).await?);
    let mut results: [Vec<(f64, Quantiles)>; 2] = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (store, results) in [&quiet, &turning].into_iter().zip(&mut results) {
            let done = swept(store, seconds).await?;
            results.push((done.rate(), done.puts.quantiles()));
        }
    }
    for ((name, store), results) in [("at rest", &quiet), ("turning", &turning)]
        .into_iter()
        .zip(&results)
    {
        let of = |part: fn(&(f64, Quantiles)) -> f64| number(median(results.iter().map(part)));
        let turns = store.stats().turns.to_string();
        table.row(
            name,
            [
                of(|(rate, _)| *rate),
                of(|(_, q)| q.p50),
                of(|(_, q)| q.p99),
                of(|(_, q)| q.max),
                turns,
            ],
        );
    }
    table.print();
    if turning.stats().turns == 0 {
        return Err("no table was emptied while it was measured".into());
    }
    let [quiet, turning] = results;
    let ratios = turning
        .iter()
        .zip(&quiet)
        .map(|((_, turning), (_, quiet))| turning.p99 / quiet.p99);
    at_most(
        "p99 while tables are emptied, against at rest",
        median(ratios),
        P99_MAX,
        " ×",
    );
    Ok(())
}

/// A store whose first ring turns every [`EVERY`], or at the default interval.
async fn open(cluster: &Cluster, turns: bool) -> Result<Arc<Postgres>, Error> {
    let url = cluster.migrated().await?;
    if turns {
        cluster.sql(
            &url,
            &format!("UPDATE hapax.pace SET hours_width = {}", EVERY.as_micros()),
        )?;
    }
    Ok(Arc::new(Postgres::open(&url).await?))
}

/// Runs the load with a concurrent sweep. It does so on both stores, so that the sweep itself makes
/// no difference.
async fn swept(store: &Arc<Postgres>, duration: Duration) -> Result<Done, Error> {
    let sweep = async {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            store.sweep(SWEPT_MAX).await?;
        }
    };
    let load = Load::new(store.clone(), SHORT);
    tokio::select! {
        done = load.run(CALLERS, Until::Elapsed(duration)) => done,
        stopped = sweep => stopped,
    }
}
