//! Metrics that other components keep, read when metrics are scraped: of a store, and of buffered
//! bodies.

use std::fmt;

use hapax::BodyUsage;
use hapax::store::{postgres, redis, sqlite, tiered};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// Reads a `T`, which is `None` once its owner is gone, and lists the numbers in it.
pub(super) struct Collected<T> {
    pub(super) ask: Box<dyn Fn() -> Option<T> + Send + Sync>,
    pub(super) numbers: fn(&T) -> Vec<Number>,
}

/// A number, with its name and meaning.
pub(super) struct Number {
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    value: Value,
}

enum Value {
    Counter(ConstCounter<u64>),
    Gauge(ConstGauge<i64>),
    Seconds(ConstGauge<f64>),
}

impl<T> fmt::Debug for Collected<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Collected")
    }
}

impl<T: 'static> Collector for Collected<T> {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let numbers = (self.ask)().map(|asked| (self.numbers)(&asked));
        for number in numbers.into_iter().flatten() {
            match &number.value {
                Value::Counter(metric) => number.encode(&mut encoder, metric),
                Value::Gauge(metric) => number.encode(&mut encoder, metric),
                Value::Seconds(metric) => number.encode(&mut encoder, metric),
            }?;
        }
        Ok(())
    }
}

impl Number {
    fn encode(&self, encoder: &mut DescriptorEncoder, metric: &impl EncodeMetric) -> fmt::Result {
        // The registry appends this full stop to the help of its own metrics.
        let help = format!("{}.", self.help);
        let unit = self.unit.as_ref();
        metric.encode(encoder.encode_descriptor(self.name, &help, unit, metric.metric_type())?)
    }
}

/// The numbers of the embedded store.
pub(super) fn of_sqlite(stats: &sqlite::Stats) -> Vec<Number> {
    vec![
        counter(
            "sqlite_commits",
            "Commits since the file was opened: fewer than writes, when writers share them",
            stats.commits,
        ),
        counter(
            "sqlite_commits_failed",
            "Commits that failed",
            stats.commits_failed,
        ),
        counter(
            "sqlite_writes_refused",
            "Writes refused because too much was waiting for the disk",
            stats.refused,
        ),
        counter(
            "sqlite_log_resets",
            "How often the write-ahead log was given back to be written anew",
            stats.log_resets,
        ),
        counter(
            "sqlite_reopened",
            "How often the file was closed and opened again because of an error",
            stats.reopened,
        ),
        bytes(
            "sqlite_queue",
            "Waiting for the writer now",
            stats.queue_bytes,
        ),
        bytes(
            "sqlite_log",
            "Write-ahead log that has not been given back",
            stats.log_bytes,
        ),
        gauge("sqlite_records", "Records there are", stats.records),
        gauge(
            "sqlite_failing",
            "1 while the store cannot be used",
            u64::from(stats.failing.is_some()),
        ),
        gauge(
            "sqlite_restored",
            "1 if the file was an older state of itself when it was opened",
            u64::from(stats.restored),
        ),
        seconds(
            "sqlite_commit_latest",
            "How long the latest commit took",
            stats.commit_latest.as_secs_f64(),
        ),
        seconds(
            "sqlite_commit_longest",
            "The longest commit since the file was opened",
            stats.commit_longest.as_secs_f64(),
        ),
    ]
}

/// What this node knows about its database.
pub(super) fn of_postgres(stats: &postgres::Stats) -> Vec<Number> {
    vec![
        counter(
            "postgres_statements",
            "Statements sent to the database and answered",
            stats.statements,
        ),
        counter(
            "postgres_batches",
            "Statements of those in which callers share: claims, completions and readings",
            stats.batches,
        ),
        counter(
            "postgres_batched",
            "What went in them together: divided by batches, how many callers shared one",
            stats.batched,
        ),
        counter(
            "postgres_alone",
            "Writes sent one by one, because a row among what they were sent with was locked",
            stats.alone,
        ),
        counter(
            "postgres_refused",
            "Requests refused because too much was waiting for the database",
            stats.refused,
        ),
        counter(
            "postgres_connections_made",
            "Connections made to the database",
            stats.connections,
        ),
        counter(
            "postgres_connections_lost",
            "Connections to the database that were lost",
            stats.connections_lost,
        ),
        counter(
            "postgres_turns",
            "Tables of answers past their retention that this node emptied",
            stats.turns,
        ),
        counter(
            "postgres_failovers",
            "How often the database turned out to be another server, or to go on from another point of its history",
            stats.failovers,
        ),
        counter(
            "postgres_commits_lost",
            "Writes that the database had acknowledged and that a failover or restore has lost: their effects may be repeated",
            stats.commits_lost,
        ),
        bytes(
            "postgres_queue",
            "Waiting to be sent to the database now",
            stats.queue_bytes,
        ),
        gauge(
            "postgres_restored",
            "1 if the database lacked writes when this node began that it had acknowledged before: it was restored from a backup",
            u64::from(stats.restored),
        ),
        Number {
            unit: Some(Unit::Seconds),
            ..gauge(
                "postgres_clock_ahead",
                "By how much the database's clock is ahead of the store's time, because it is more than an hour ahead of a node's clock",
                stats.clock_ahead_seconds,
            )
        },
        gauge(
            "postgres_batch_largest",
            "The most that went in one statement",
            stats.batch_largest,
        ),
        gauge(
            "postgres_failing",
            "1 while the database cannot be used by this node",
            u64::from(stats.failing.is_some()),
        ),
    ]
}

/// What this node knows about its Redis.
pub(super) fn of_redis(stats: &redis::Stats) -> Vec<Number> {
    vec![
        counter(
            "redis_calls",
            "Calls sent to Redis: scripts and commands",
            stats.calls,
        ),
        counter(
            "redis_pipelines",
            "Pipelines they were sent in: calls divided by these is how many shared a round trip",
            stats.pipelines,
        ),
        counter(
            "redis_refused",
            "Calls refused because too much was waiting for Redis",
            stats.refused,
        ),
        counter(
            "redis_sent_again",
            "Calls sent again that Redis had not executed: a slot had moved, a script was missing, or it was not ready",
            stats.sent_again,
        ),
        counter(
            "redis_connections_made",
            "Connections made to Redis",
            stats.connections,
        ),
        counter(
            "redis_connections_lost",
            "Connections to Redis that were lost",
            stats.connections_lost,
        ),
        counter(
            "redis_failovers",
            "How often a master turned out to be another server, or to have been restarted: effects of keys that it has lost may be repeated",
            stats.failovers,
        ),
        counter(
            "redis_unreplicated",
            "Writes that fewer replicas than asked for have confirmed in time",
            stats.unreplicated,
        ),
        bytes(
            "redis_queue",
            "Waiting to be sent to Redis now",
            stats.queue_bytes,
        ),
        gauge(
            "redis_pipeline_largest",
            "The most calls in one pipeline",
            stats.pipeline_largest,
        ),
        gauge(
            "redis_warnings",
            "Ways in which the settings of this Redis may lose keys: the log names each",
            stats.warnings.len() as u64,
        ),
        gauge(
            "redis_failing",
            "1 while Redis cannot be used by this node",
            u64::from(stats.failing.is_some()),
        ),
    ]
}

/// What this node knows about the cache in front of its Postgres.
pub(super) fn of_cache(stats: &tiered::Stats) -> Vec<Number> {
    vec![
        counter("cache_hits", "Repeats answered from the cache", stats.hits),
        counter(
            "cache_misses",
            "Requests that the cache had no copy for",
            stats.misses,
        ),
        counter(
            "cache_set_aside",
            "Copies that did not count: for another request, of an earlier epoch, or at the end of their retention",
            stats.set_aside,
        ),
        counter(
            "cache_unreadable",
            "Values that are no copies of this store: something else writes to this Redis",
            stats.unreadable,
        ),
        counter("cache_kept", "Copies written", stats.kept),
        counter(
            "cache_failures",
            "Calls to the cache that failed or took too long",
            stats.failures,
        ),
        counter(
            "cache_left_alone",
            "Requests for which the cache was not asked, because it had failed",
            stats.left_alone,
        ),
        gauge(
            "cache_failing",
            "1 while the cache is left alone because it has failed",
            u64::from(stats.is_left_alone),
        ),
    ]
}

/// How many bytes of request bodies are buffered.
pub(super) fn of_bodies(stats: &BodyUsage) -> Vec<Number> {
    vec![
        bytes(
            "buffered_memory",
            "Request bodies that are buffered in memory, or have reserved room there",
            stats.memory_bytes,
        ),
        bytes(
            "buffered_disk",
            "Request bodies that are buffered in files, or have reserved room there",
            stats.disk_bytes,
        ),
    ]
}

fn counter(name: &'static str, help: &'static str, value: u64) -> Number {
    let value = Value::Counter(ConstCounter::new(value));
    Number {
        name,
        help,
        unit: None,
        value,
    }
}

fn gauge(name: &'static str, help: &'static str, value: u64) -> Number {
    let value = Value::Gauge(ConstGauge::new(value.cast_signed()));
    Number {
        name,
        help,
        unit: None,
        value,
    }
}

fn bytes(name: &'static str, help: &'static str, value: u64) -> Number {
    Number {
        unit: Some(Unit::Bytes),
        ..gauge(name, help, value)
    }
}

fn seconds(name: &'static str, help: &'static str, value: f64) -> Number {
    let value = Value::Seconds(ConstGauge::new(value));
    Number {
        name,
        help,
        unit: Some(Unit::Seconds),
        value,
    }
}
