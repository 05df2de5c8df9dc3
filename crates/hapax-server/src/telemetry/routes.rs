//! Requests by route: how they ended, and how long they took.

use std::sync::Arc;
use std::time::Duration;

use hapax::Would;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::Outcome;
use super::metrics::registered;

/// Buckets from a replay out of memory to a slow upstream.
const SECONDS: [f64; 16] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    10.0, 60.0,
];

pub(super) fn seconds() -> Histogram {
    Histogram::new(SECONDS)
}

/// Metrics by route. A route of an earlier configuration keeps its counts.
pub(super) struct Requests {
    counts: Counts,
    durations: Durations,
    shadowed: Shadowed,
}

/// The metrics of one route, looked up once: most requests end in one of these, without hashing a
/// label.
pub struct RouteMetrics {
    name: Arc<str>,
    counts: Counts,
    shadowed: Shadowed,
    first: Ends,
    replayed: Ends,
    unguarded: Ends,
    upstream_failed: Ends,
    refused: Ends,
    /// Rejections are counted by their slug, which is looked up each time.
    rejected: Histogram,
}

struct Ends {
    count: Counter,
    seconds: Histogram,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    route: Arc<str>,
    outcome: &'static str,
}

/// Labels for durations. Replays and attempts are kept apart, because their durations differ too
/// much.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassLabels {
    route: Arc<str>,
    class: &'static str,
}

/// What would have become of a request on a shadow route.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WouldLabels {
    route: Arc<str>,
    would: String,
}

type Counts = Family<OutcomeLabels, Counter>;
type Shadowed = Family<WouldLabels, Counter>;
type Durations = Family<ClassLabels, Histogram, fn() -> Histogram>;

impl Requests {
    pub(super) fn new(registry: &mut Registry) -> Requests {
        let counts = registered(
            registry,
            "requests",
            "Requests by route and by how they ended: first, replayed, unguarded, upstream_failed, refused (cannot be read), or a problem",
        );
        let durations = Durations::new_with_constructor(seconds);
        let help = "How long requests took, by route and by what was done: first, replayed, unguarded, rejected";
        registry.register_with_unit("request", help, Unit::Seconds, durations.clone());
        let help = "Requests on routes that only watch, by what would have become of them: run, replay, or reject- and the problem";
        Requests {
            counts,
            durations,
            shadowed: registered(registry, "shadow", help),
        }
    }

    /// The metrics of a route: the existing ones, if there was a route with this name.
    pub(super) fn route(&self, name: &Arc<str>) -> RouteMetrics {
        let class = |class| {
            self.durations.get_or_create_owned(&ClassLabels {
                route: name.clone(),
                class,
            })
        };
        let ends = |outcome: Outcome, seconds: Histogram| {
            let labels = OutcomeLabels {
                route: name.clone(),
                outcome: outcome.label(),
            };
            Ends {
                count: self.counts.get_or_create_owned(&labels),
                seconds,
            }
        };
        RouteMetrics {
            name: name.clone(),
            counts: self.counts.clone(),
            shadowed: self.shadowed.clone(),
            first: ends(Outcome::First, class("first")),
            replayed: ends(Outcome::Replayed, class("replayed")),
            unguarded: ends(Outcome::Unguarded, class("unguarded")),
            upstream_failed: ends(Outcome::UpstreamFailed, class("unguarded")),
            refused: ends(Outcome::Refused, class("rejected")),
            rejected: class("rejected"),
        }
    }
}

impl RouteMetrics {
    /// Counts a request that has ended, and its duration.
    pub fn request(&self, outcome: Outcome, took: Duration) {
        let ends = match outcome {
            Outcome::First => &self.first,
            Outcome::Replayed => &self.replayed,
            Outcome::Unguarded => &self.unguarded,
            Outcome::UpstreamFailed => &self.upstream_failed,
            Outcome::Refused => &self.refused,
            Outcome::Rejected(outcome) => {
                self.rejected.observe(took.as_secs_f64());
                self.counts
                    .get_or_create(&OutcomeLabels {
                        route: self.name.clone(),
                        outcome,
                    })
                    .inc();
                return;
            }
        };
        ends.count.inc();
        ends.seconds.observe(took.as_secs_f64());
    }

    /// Counts a request on a shadow route that would have been run, replayed, or rejected with this
    /// problem.
    pub fn shadowed(&self, would: &Would) {
        let labels = WouldLabels {
            route: self.name.clone(),
            would: would_label(would),
        };
        self.shadowed.get_or_create(&labels).inc();
    }
}

fn would_label(would: &Would) -> String {
    match would {
        Would::Run => "run".to_owned(),
        Would::Replay => "replay".to_owned(),
        Would::Reject(rejection) => format!("reject-{}", rejection.row().slug),
    }
}
