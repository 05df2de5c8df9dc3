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

/// The age of something in seconds, by the name of a reader.
type AgeOf = dyn Fn(&str) -> Option<f64> + Send + Sync;

/// What relays in this process know of themselves.
#[derive(Clone)]
pub(crate) struct RelayStats {
    readers: Vec<(String, Arc<Progress>)>,
    /// The age in seconds of the oldest message that a reader has not published, if it is known.
    oldest: Arc<AgeOf>,
}

impl RelayStats {
    pub(crate) fn new(
        readers: Vec<(String, Arc<Progress>)>,
        oldest: impl Fn(&str) -> Option<f64> + Send + Sync + 'static,
    ) -> RelayStats {
        let oldest = Arc::new(oldest);
        RelayStats { readers, oldest }
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

impl Collector for RelayStats {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for (name, help, count) in COUNTERS {
            let of = |progress: &Progress| Some(ConstCounter::new(count(&progress.counts())));
            self.each(&mut encoder, (name, help, None), |_, progress| of(progress))?;
        }
        let help = "1 while this process has the reader, 0 while it stands by";
        let active = ("relay_active", help, None);
        self.each(&mut encoder, active, |_, progress| {
            Some(ConstGauge::new(i64::from(progress.is_active())))
        })?;
        let help = "1 while the reader is stopped until an operator starts it";
        let stopped = ("relay_stopped", help, None);
        self.each(&mut encoder, stopped, |_, progress| {
            Some(ConstGauge::new(i64::from(progress.stopped().is_some())))
        })?;
        let help =
            "Age of the oldest message that the reader has not published; 0 if there is none";
        let oldest = ("relay_oldest", help, Some(&Unit::Seconds));
        self.each(&mut encoder, oldest, |reader, _| {
            (self.oldest)(reader).map(ConstGauge::new)
        })
    }
}

impl RelayStats {
    /// Encodes one metric of every reader that has it.
    fn each<M: EncodeMetric>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        (name, help, unit): (&str, &str, Option<&Unit>),
        metric: impl Fn(&str, &Progress) -> Option<M>,
    ) -> fmt::Result {
        let metrics: Vec<_> = self
            .readers
            .iter()
            .filter_map(|(reader, progress)| Some((reader, metric(reader, progress)?)))
            .collect();
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
