//! Metrics: what is counted, and under which labels. A label is a route's name or a word of ours, never something a caller chose.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hapax::Observer;
use hapax::store::sqlite::Stats;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::Outcome;
use super::events::{Counting, Events};
use super::routes::Requests;
use super::timed::Clocks;
use super::unknowns::COUNTED_MAX;
use super::watched::Watched;

/// One label of ours.
pub(super) type Label = [(&'static str, &'static str); 1];

/// Everything that is counted. Cheap to clone; the clones count together.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    requests: Requests,
    events: Events,
    clocks: Clocks,
    unknown: Gauge,
    suspected_principals: Counter,
    gateway_connections: Gauge,
    admin_connections: Gauge,
    connections_refused: Family<Label, Counter>,
    upstream_connects: Counter,
    upstream_connect_failures: Counter,
    draining: Gauge,
    registry: Mutex<Registry>,
}

/// Who listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// For clients.
    Gateway,
    /// For operators.
    Admin,
}

/// A connection that counts as open for as long as this is kept.
#[must_use = "the connection counts as closed when this is dropped"]
pub struct Connected(Gauge);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    /// Everything at zero. [`requests`](Metrics::requests) speaks of a route by its place in `route_names`.
    pub fn new(route_names: &[Arc<str>]) -> Metrics {
        let mut registry = Registry::with_prefix("hapax");
        let to = &mut registry;
        to.register("build", "The version that runs", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        let connections: Family<Label, Gauge> = registered(to, "connections", "Connections that are open, by who listens");
        let unknown = format!(
            "Records whose outcome is unknown and waits to be settled. Counted now and then, up to {COUNTED_MAX}, which means so many or more"
        );
        Metrics(Arc::new(Inner {
            requests: Requests::new(to, route_names),
            events: Events::new(to),
            clocks: Clocks::new(to),
            unknown: registered(to, "unknown", &unknown),
            suspected_principals: registered(
                to,
                "suspected_principals",
                "Requests seen before with the same key and body under another principal: has a credential changed between two tries?",
            ),
            gateway_connections: connections.get_or_create_owned(&[("listener", "gateway")]),
            admin_connections: connections.get_or_create_owned(&[("listener", "admin")]),
            connections_refused: registered(
                to,
                "connections_refused",
                "Connections that we closed before they were done, by reason",
            ),
            upstream_connects: registered(to, "upstream_connects", "Connections made to the upstream"),
            upstream_connect_failures: registered(
                to,
                "upstream_connect_failures",
                "Connections to the upstream that failed to be made",
            ),
            draining: registered(to, "draining", "1 once this node has begun to shut down"),
            registry: Mutex::new(registry),
        }))
    }

    /// A request has ended, on the route of this place, after so long.
    pub fn requests(&self, route: usize, outcome: Outcome, took: Duration) {
        self.0.requests.count(route, outcome, took);
    }

    /// Counts what the library tells, and passes it on.
    pub fn observer(&self, also: Arc<dyn Observer>) -> impl Observer + use<> {
        Counting { events: self.0.events.clone(), also }
    }

    /// Somebody has connected.
    pub fn connected(&self, listener: Listener) -> Connected {
        let open = match listener {
            Listener::Gateway => &self.0.gateway_connections,
            Listener::Admin => &self.0.admin_connections,
        };
        open.inc();
        Connected(open.clone())
    }

    /// A connection was closed by us before it was done. The reason is a word of a short list.
    pub fn connection_refused(&self, reason: &'static str) {
        self.0.connections_refused.get_or_create(&[("reason", reason)]).inc();
    }

    /// A connection to the upstream was made.
    pub fn upstream_connected(&self) {
        self.0.upstream_connects.inc();
    }

    /// A connection to the upstream could not be made.
    pub fn upstream_connect_failed(&self) {
        self.0.upstream_connect_failures.inc();
    }

    /// The same request was seen under another principal: see [`Suspects`](super::Suspects).
    pub fn suspected_principal(&self) {
        self.0.suspected_principals.inc();
    }

    /// This node has begun to shut down.
    pub fn draining(&self) {
        self.0.draining.set(1);
    }

    /// Asks the embedded store for its numbers whenever somebody asks for these. Hold the store weakly, or it stays open for as long
    /// as there are metrics.
    pub fn watch_store(&self, ask: impl Fn() -> Option<Stats> + Send + Sync + 'static) {
        self.registry().register_collector(Box::new(Watched(Box::new(ask))));
    }

    /// Everything, in the text format of OpenMetrics 1.0.
    pub fn encode(&self) -> String {
        let mut encoded = String::new();
        text::encode(&mut encoded, &self.registry()).expect("a string takes what is written to it");
        encoded
    }

    pub(super) fn clocks(&self) -> Clocks {
        self.0.clocks.clone()
    }

    pub(super) fn unknown(&self) -> Gauge {
        self.0.unknown.clone()
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.0.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A metric at zero, and in the registry.
pub(super) fn registered<M>(registry: &mut Registry, name: &str, help: &str) -> M
where
    M: prometheus_client::registry::Metric + Clone + Default,
{
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_count_while_they_are_open() {
        let metrics = Metrics::new(&[]);
        let (first, _second) = (metrics.connected(Listener::Gateway), metrics.connected(Listener::Gateway));
        drop(first);
        metrics.connection_refused("too-many");
        let text = metrics.encode();
        for line in [
            "hapax_connections{listener=\"gateway\"} 1",
            "hapax_connections{listener=\"admin\"} 0",
            "hapax_connections_refused_total{reason=\"too-many\"} 1",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn the_store_is_asked_when_we_are_asked_and_may_be_gone() {
        let (metrics, store) = (Metrics::new(&[]), Arc::new(Mutex::new(Stats::default())));
        let weak = Arc::downgrade(&store);
        metrics.watch_store(move || Some(weak.upgrade()?.lock().unwrap().clone()));
        {
            let mut stats = store.lock().unwrap();
            (stats.commits, stats.queue_bytes, stats.failing) = (7, 512, Some("disk full".to_owned()));
            stats.commit_latest = Duration::from_millis(2);
        }
        let text = metrics.encode();
        for line in [
            "hapax_sqlite_commits_total 7",
            "hapax_sqlite_queue_bytes 512",
            "hapax_sqlite_failing 1",
            "hapax_sqlite_commit_latest_seconds 0.002",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} in\n{text}");
        }
        drop(store);
        assert!(!metrics.encode().contains("sqlite"));
    }
}
