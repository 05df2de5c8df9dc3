//! Requests by route: how they ended, and how long they took.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::Outcome;
use super::metrics::registered;

/// From a replay out of memory to an upstream that takes its time.
const SECONDS: [f64; 16] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

pub(super) fn seconds() -> Histogram {
    Histogram::new(SECONDS)
}

pub(super) struct Requests {
    counts: Family<OutcomeLabels, Counter>,
    routes: Vec<Route>,
}

/// The counters of one route, found once: most requests end in one of these, and hash nothing.
struct Route {
    name: Arc<str>,
    first: Ends,
    replayed: Ends,
    unguarded: Ends,
    upstream_failed: Ends,
    refused: Ends,
    /// Rejections are counted by their slug, which has to be looked up.
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

/// What was done for a request. A replay and an attempt have nothing in common but their route.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassLabels {
    route: Arc<str>,
    class: &'static str,
}

type Durations = Family<ClassLabels, Histogram, fn() -> Histogram>;

impl Requests {
    pub(super) fn new(registry: &mut Registry, route_names: &[Arc<str>]) -> Requests {
        let counts = registered(
            registry,
            "requests",
            "Requests by route and by how they ended: first, replayed, unguarded, upstream_failed, refused (cannot be read), or a problem",
        );
        let durations = Durations::new_with_constructor(seconds);
        let help = "How long requests took, by route and by what was done: first, replayed, unguarded, rejected";
        registry.register_with_unit("request", help, Unit::Seconds, durations.clone());
        let routes = route_names.iter().map(|name| Route::new(name, &counts, &durations)).collect();
        Requests { counts, routes }
    }

    pub(super) fn count(&self, route: usize, outcome: Outcome, took: Duration) {
        let Some(route) = self.routes.get(route) else { return debug_assert!(false, "there is no route {route}") };
        let ends = match outcome {
            Outcome::First => &route.first,
            Outcome::Replayed => &route.replayed,
            Outcome::Unguarded => &route.unguarded,
            Outcome::UpstreamFailed => &route.upstream_failed,
            Outcome::Refused => &route.refused,
            Outcome::Rejected(outcome) => {
                route.rejected.observe(took.as_secs_f64());
                self.counts.get_or_create(&OutcomeLabels { route: route.name.clone(), outcome }).inc();
                return;
            }
        };
        ends.count.inc();
        ends.seconds.observe(took.as_secs_f64());
    }
}

impl Route {
    fn new(name: &Arc<str>, counts: &Family<OutcomeLabels, Counter>, durations: &Durations) -> Route {
        let class = |class| durations.get_or_create_owned(&ClassLabels { route: name.clone(), class });
        let ends = |outcome: Outcome, seconds: Histogram| {
            let labels = OutcomeLabels { route: name.clone(), outcome: outcome.word() };
            Ends { count: counts.get_or_create_owned(&labels), seconds }
        };
        Route {
            name: name.clone(),
            first: ends(Outcome::First, class("first")),
            replayed: ends(Outcome::Replayed, class("replayed")),
            unguarded: ends(Outcome::Unguarded, class("unguarded")),
            upstream_failed: ends(Outcome::UpstreamFailed, class("unguarded")),
            refused: ends(Outcome::Refused, class("rejected")),
            rejected: class("rejected"),
        }
    }
}
