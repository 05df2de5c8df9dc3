//! Metrics of configuration reloads.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::metrics::{Label, Seconds, gauge_seconds, registered};

/// The counters of reloads.
#[derive(Clone)]
pub(crate) struct Reloads {
    ok: Counter,
    refused: Counter,
    bad: Counter,
    is_current: Gauge,
    since: Seconds,
}

impl Reloads {
    /// The start counts as a first successful reload.
    pub(super) fn new(to: &mut Registry) -> Reloads {
        let reloads: Family<Label, Counter> = registered(
            to,
            "reloads",
            "Reloads of the configuration: ok, refused (it would break a promise), or bad (it has mistakes)",
        );
        let result = |result| reloads.get_or_create_owned(&[("result", result)]);
        let counters = Reloads {
            ok: result("ok"),
            refused: result("refused"),
            bad: result("bad"),
            is_current: registered(
                to,
                "config_last_reload_successful",
                "1 if the latest reload was taken, or there was none; else 0",
            ),
            since: gauge_seconds(
                to,
                "config_last_reload_success_timestamp",
                "When the configuration in use was taken, in seconds since 1970",
            ),
        };
        counters.taken();
        counters
    }

    pub(crate) fn ok(&self) {
        self.ok.inc();
        self.taken();
    }

    pub(crate) fn refused(&self) {
        self.refused.inc();
        self.is_current.set(0);
    }

    pub(crate) fn bad(&self) {
        self.bad.inc();
        self.is_current.set(0);
    }

    fn taken(&self) {
        self.is_current.set(1);
        self.since.set(
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0.0, |since| since.as_secs_f64()),
        );
    }
}
