//! What this node knows of its Postgres, asked for when somebody asks us.

use std::fmt;

use hapax::store::postgres::Stats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use super::watched::put;

/// Asks a store for its numbers. `None` once it is gone.
pub(super) type Ask = dyn Fn() -> Option<Stats> + Send + Sync;

pub(super) struct WatchedPostgres(pub(super) Box<Ask>);

impl fmt::Debug for WatchedPostgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WatchedPostgres")
    }
}

impl Collector for WatchedPostgres {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let Some(stats) = (self.0)() else {
            return Ok(());
        };
        let mut counter =
            |name, help, value: u64| put(&mut encoder, name, help, None, &ConstCounter::new(value));
        counter(
            "postgres_statements",
            "Statements sent to the database and answered",
            stats.statements,
        )?;
        counter(
            "postgres_batches",
            "Statements of those in which callers share: claims, completions and readings",
            stats.batches,
        )?;
        counter(
            "postgres_batched",
            "What went in them together: divided by batches, how many callers shared one",
            stats.batched,
        )?;
        counter(
            "postgres_alone",
            "Writes sent one by one, because a row among what they were sent with was locked",
            stats.alone,
        )?;
        counter(
            "postgres_refused",
            "Requests refused because too much was waiting for the database",
            stats.refused,
        )?;
        counter(
            "postgres_connections_made",
            "Connections made to the database",
            stats.connections,
        )?;
        counter(
            "postgres_connections_lost",
            "Connections to the database that were lost",
            stats.connections_lost,
        )?;
        counter(
            "postgres_turns",
            "Tables of answers past their retention that this node emptied",
            stats.turns,
        )?;
        counter(
            "postgres_failovers",
            "How often the database turned out to be another server, or to go on from another point of its history",
            stats.failovers,
        )?;
        counter(
            "postgres_commits_lost",
            "Writes that the database had acknowledged and that a failover or restore has lost: their effects may be repeated",
            stats.commits_lost,
        )?;

        let mut gauge = |name, help, unit, value: u64| {
            put(
                &mut encoder,
                name,
                help,
                unit,
                &ConstGauge::new(value.cast_signed()),
            )
        };
        gauge(
            "postgres_queue",
            "Waiting to be sent to the database now",
            Some(&Unit::Bytes),
            stats.queue_bytes,
        )?;
        gauge(
            "postgres_restored",
            "1 if the database lacked writes when this node began that it had acknowledged before: it was restored from a backup",
            None,
            u64::from(stats.restored),
        )?;
        gauge(
            "postgres_clock_ahead",
            "By how much the database's clock is ahead of the store's time, because it is more than an hour ahead of a node's clock",
            Some(&Unit::Seconds),
            stats.clock_ahead_seconds,
        )?;
        gauge(
            "postgres_batch_largest",
            "The most that went in one statement",
            None,
            stats.batch_largest,
        )?;
        gauge(
            "postgres_failing",
            "1 while the database cannot be used by this node",
            None,
            u64::from(stats.failing.is_some()),
        )
    }
}
