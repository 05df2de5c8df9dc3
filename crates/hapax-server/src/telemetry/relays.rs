//! The metrics of relays, each with the name of its reader.

use std::fmt;
use std::sync::Arc;

use hapax_flow::relay::{Counts, Progress};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::metrics::register_build;

/// What waits in the outbox for a reader.
#[derive(Clone, Debug)]
pub(crate) struct Backlog {
    pub(crate) reader: String,
    /// The age of the oldest message that is not published; 0 if there is none.
    pub(crate) oldest_seconds: f64,
    /// Messages that are set aside and will be sent.
    pub(crate) waiting: u64,
    /// Messages that wait for an operator.
    pub(crate) held: u64,
    /// Messages that are given up.
    pub(crate) dead: u64,
}

/// What relays in this process know of themselves.
#[derive(Clone)]
pub(crate) struct RelayStats {
    readers: Vec<(String, Arc<Progress>)>,
    /// What waits for every reader of the outbox, if it is known.
    backlogs: Arc<dyn Fn() -> Vec<Backlog> + Send + Sync>,
}

impl RelayStats {
    pub(crate) fn new(
        readers: Vec<(String, Arc<Progress>)>,
        backlogs: impl Fn() -> Vec<Backlog> + Send + Sync + 'static,
    ) -> RelayStats {
        let backlogs = Arc::new(backlogs);
        RelayStats { readers, backlogs }
    }
}

impl fmt::Debug for RelayStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RelayStats")
    }
}

type Counted = (&'static str, &'static str, fn(&Counts) -> u64);

const COUNTERS: [Counted; 8] = [
    (
        "relay_published",
        "Messages that the destination accepted. One that was sent again counts again",
        |counts| counts.published,
    ),
    (
        "relay_duplicates",
        "Of these, messages that the destination had already, as far as it says",
        |counts| counts.duplicates,
    ),
    (
        "relay_payload_bytes",
        "Bytes of payload that were accepted",
        |counts| counts.bytes,
    ),
    (
        "relay_retried",
        "Attempts to send a message that was set aside",
        |counts| counts.retried,
    ),
    (
        "relay_set_aside",
        "Messages that were set aside: because they failed, or behind one that did",
        |counts| counts.set_aside,
    ),
    (
        "relay_given_up",
        "Messages that wait for an operator, or are dead",
        |counts| counts.given_up,
    ),
    (
        "relay_outages",
        "Batches that the destination did not take at all",
        |counts| counts.outages,
    ),
    (
        "relay_failovers",
        "Times the database went on from another server",
        |counts| counts.failovers,
    ),
];

/// A name, what it says, and how it is read.
type Waiting = (&'static str, &'static str, fn(&Backlog) -> u64);

/// The numbers of messages that are set aside.
const WAITING: [Waiting; 3] = [
    (
        "relay_waiting",
        "Messages that are set aside and will be sent",
        |backlog| backlog.waiting,
    ),
    (
        "relay_held",
        "Messages that wait for an operator",
        |backlog| backlog.held,
    ),
    (
        "relay_dead",
        "Messages that are given up, and hold up nobody",
        |backlog| backlog.dead,
    ),
];

impl Collector for RelayStats {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for (name, help, count) in COUNTERS {
            let of = |progress: &Progress| ConstCounter::new(count(&progress.counts()));
            self.of_progress(&mut encoder, (name, help, None), of)?;
        }
        let help = "1 while this process has the reader, 0 while it stands by";
        let active = ("relay_active", help, None);
        self.of_progress(&mut encoder, active, |progress| {
            ConstGauge::new(i64::from(progress.is_active()))
        })?;
        let help = "1 while the reader is stopped until an operator starts it";
        let stopped = ("relay_stopped", help, None);
        self.of_progress(&mut encoder, stopped, |progress| {
            ConstGauge::new(i64::from(progress.stopped().is_some()))
        })?;
        let backlogs = (self.backlogs)();
        let help =
            "Age of the oldest message that the reader has not published; 0 if there is none";
        let oldest = ("relay_oldest", help, Some(&Unit::Seconds));
        let age = |backlog: &Backlog| ConstGauge::new(backlog.oldest_seconds);
        let ages = backlogs
            .iter()
            .map(|backlog| (&backlog.reader, age(backlog)));
        encode(&mut encoder, oldest, ages)?;
        for (name, help, count) in WAITING {
            let waiting = backlogs
                .iter()
                .map(|backlog| (&backlog.reader, ConstGauge::new(count(backlog))));
            encode(&mut encoder, (name, help, None), waiting)?;
        }
        Ok(())
    }
}

impl RelayStats {
    /// Encodes one metric of every relay in this process.
    fn of_progress<M: EncodeMetric>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        named: Named<'_>,
        metric: impl Fn(&Progress) -> M,
    ) -> fmt::Result {
        let metrics = self
            .readers
            .iter()
            .map(|(reader, progress)| (reader, metric(progress)));
        encode(encoder, named, metrics)
    }
}

/// Name, help and unit of a metric.
type Named<'a> = (&'a str, &'a str, Option<&'a Unit>);

/// Encodes one metric, by the names of readers. Without any there is no such metric.
fn encode<'a, M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help, unit): Named<'_>,
    metrics: impl Iterator<Item = (&'a String, M)>,
) -> fmt::Result {
    let metrics: Vec<_> = metrics.collect();
    let Some((_, first)) = metrics.first() else {
        return Ok(());
    };
    // The registry appends this full stop to the help of its own metrics.
    let help = format!("{help}.");
    let mut family = encoder.encode_descriptor(name, &help, unit, first.metric_type())?;
    for (reader, metric) in &metrics {
        let label = [("reader", reader.as_str())];
        metric.encode(family.encode_family(&label)?)?;
    }
    Ok(())
}

/// The metrics of a process that only relays, in the text format of OpenMetrics 1.0.
pub(crate) fn encode_relays(stats: &RelayStats) -> String {
    let mut registry = Registry::with_prefix("hapax");
    register_build(&mut registry);
    registry.register_collector(Box::new(stats.clone()));
    let mut encoded = String::new();
    text::encode(&mut encoded, &registry).expect("a string takes what is written to it");
    encoded
}
