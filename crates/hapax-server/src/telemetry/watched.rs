//! What the embedded store says of itself, asked for when somebody asks us.

use std::fmt;

use hapax::store::sqlite::Stats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// Asks a store for its numbers. `None` once it is gone.
pub(super) type Ask = dyn Fn() -> Option<Stats> + Send + Sync;

pub(super) struct Watched(pub(super) Box<Ask>);

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watched")
    }
}

impl Collector for Watched {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let Some(stats) = (self.0)() else {
            return Ok(());
        };
        let mut counter =
            |name, help, value: u64| put(&mut encoder, name, help, None, &ConstCounter::new(value));
        counter(
            "sqlite_commits",
            "Commits since the file was opened: fewer than writes, when writers share them",
            stats.commits,
        )?;
        counter(
            "sqlite_commits_failed",
            "Commits that failed",
            stats.commits_failed,
        )?;
        counter(
            "sqlite_writes_refused",
            "Writes refused because too much was waiting for the disk",
            stats.refused,
        )?;
        counter(
            "sqlite_log_resets",
            "How often the write-ahead log was given back to be written anew",
            stats.log_resets,
        )?;
        counter(
            "sqlite_reopened",
            "How often the file was closed and opened again because of an error",
            stats.reopened,
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
            "sqlite_queue",
            "Waiting for the writer now",
            Some(&Unit::Bytes),
            stats.queue_bytes,
        )?;
        gauge(
            "sqlite_log",
            "Write-ahead log that has not been given back",
            Some(&Unit::Bytes),
            stats.log_bytes,
        )?;
        gauge("sqlite_records", "Records there are", None, stats.records)?;
        gauge(
            "sqlite_failing",
            "1 while the store cannot be used",
            None,
            u64::from(stats.failing.is_some()),
        )?;
        gauge(
            "sqlite_restored",
            "1 if the file was an older state of itself when it was opened",
            None,
            u64::from(stats.restored),
        )?;

        let mut seconds = |name, help, value: std::time::Duration| {
            put(
                &mut encoder,
                name,
                help,
                Some(&Unit::Seconds),
                &ConstGauge::new(value.as_secs_f64()),
            )
        };
        seconds(
            "sqlite_commit_latest",
            "How long the latest commit took",
            stats.commit_latest,
        )?;
        seconds(
            "sqlite_commit_longest",
            "The longest commit since the file was opened",
            stats.commit_longest,
        )
    }
}

pub(super) fn put(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    // The registry adds this full stop for metrics of its own.
    let help = format!("{help}.");
    metric.encode(encoder.encode_descriptor(name, &help, unit, metric.metric_type())?)
}
