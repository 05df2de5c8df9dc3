//! Metrics: what is counted, and under which labels. A label is a route's name or one of a fixed
//! set, never something a caller chose.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use hapax::store::sqlite::Stats;
use hapax::store::{postgres, redis, tiered};
use hapax::{BodyUsage, Observer};
use parking_lot::{Mutex, MutexGuard};
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use super::collected::{self, Collected, Number};
use super::events::{Counting, Events};
use super::relays::RelayStats;
use super::reloads::Reloads;
use super::routes::{Requests, RouteMetrics};
use super::timed::Clocks;
use super::unknowns::COUNTED_MAX;

/// A label from a fixed set.
pub(super) type Label = [(&'static str, &'static str); 1];

/// All metrics. Cheap to clone; clones share their counters.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    requests: Requests,
    events: Events,
    clocks: Clocks,
    reloads: Reloads,
    open: Open,
    suspected_principals: Counter,
    credentials_refused: Family<Label, Counter>,
    identity_fields_ignored: Family<Label, Counter>,
    principal_unavailable: Family<Label, Counter>,
    jwt_keys_read: Family<Label, Counter>,
    gateway_connections: Gauge,
    admin_connections: Gauge,
    connections_refused: Family<Label, Counter>,
    admin_refused: Family<Label, Counter>,
    upstream_connects: Counter,
    upstream_connect_failures: Counter,
    upstream_surplus: Counter,
    on_unknown: Family<Label, Counter>,
    draining: Gauge,
    registry: Mutex<Registry>,
}

/// Gauges about unfinished records, kept by [`Unknowns`](super::Unknowns).
#[derive(Clone)]
pub(super) struct Open {
    pub(super) unknown: Gauge,
    pub(super) oldest_unknown: Seconds,
    pub(super) oldest_attempt: Seconds,
}

pub(super) type Seconds = Gauge<f64, AtomicU64>;

/// Why the gateway closes a connection early.
const REFUSED: [&str; 3] = ["too_many", "silent", "handshake"];

/// What becomes of a request about an unknown outcome.
const TOLD: [&str; 3] = ["sent", "failed", "dropped"];

/// The kinds of fields that may identify a caller and that no principal source reads.
const IDENTITY_FIELDS: [&str; 4] = ["authorization", "cookie", "query", "other"];

/// A listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// For clients.
    Gateway,
    /// For operators.
    Admin,
}

/// Counts a connection as open until dropped.
#[must_use = "the connection counts as closed when this is dropped"]
pub struct Connected(Gauge);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    /// All metrics, at zero.
    pub fn new() -> Metrics {
        let mut registry = Registry::with_prefix("hapax");
        let to = &mut registry;
        register_build(to);
        let connections: Family<Label, Gauge> = registered(
            to,
            "connections",
            "Connections that are open, by who listens",
        );
        let unknown = format!(
            "Records whose outcome is unknown and waits for a person; what the next repeat resolves is left out. Counted now and then, up to {COUNTED_MAX}, which means so many or more"
        );
        Metrics(Arc::new(Inner {
            requests: Requests::new(to),
            events: Events::new(to),
            clocks: Clocks::new(to),
            reloads: Reloads::new(to),
            open: Open {
                unknown: registered(to, "unknown", &unknown),
                oldest_unknown: gauge_seconds(
                    to,
                    "oldest_unknown",
                    "Since when the oldest of these is unknown; 0 if there is none",
                ),
                oldest_attempt: gauge_seconds(
                    to,
                    "oldest_attempt",
                    "How long the oldest attempt under way has been running, on whichever node; 0 if there is none",
                ),
            },
            suspected_principals: registered(
                to,
                "suspected_principals",
                "Requests seen before with the same key and body under another principal: has a credential changed between two tries?",
            ),
            credentials_refused: registered(
                to,
                "credentials_refused",
                "Guarded requests whose caller did not say who it is, or not so that it could be believed, by reason",
            ),
            identity_fields_ignored: {
                let help = "Guarded requests with fields that may identify somebody beside what the principal is taken from, by field";
                let ignored: Family<Label, Counter> =
                    registered(to, "identity_fields_ignored", help);
                for field in IDENTITY_FIELDS {
                    drop(ignored.get_or_create(&[("field", field)]));
                }
                ignored
            },
            principal_unavailable: registered(
                to,
                "principal_unavailable",
                "Guarded requests refused because nobody could tell who is asking: no keys of tokens, or no answer from forward-auth, by reason",
            ),
            jwt_keys_read: registered(
                to,
                "jwt_keys_read",
                "Times that the keys of tokens were asked for, by result",
            ),
            gateway_connections: connections.get_or_create_owned(&[("listener", "gateway")]),
            admin_connections: connections.get_or_create_owned(&[("listener", "admin")]),
            connections_refused: {
                let help = "Connections that we closed before they were done, by reason: too_many, silent, handshake";
                let refused: Family<Label, Counter> = registered(to, "connections_refused", help);
                for reason in REFUSED {
                    drop(refused.get_or_create(&[("reason", reason)]));
                }
                refused
            },
            admin_refused: registered(
                to,
                "admin_refused",
                "Requests that the admin listener refused for who sent them, by reason: token-missing, token-wrong, not-allowed, stranger",
            ),
            upstream_connects: registered(
                to,
                "upstream_connects",
                "Connections made to the upstream",
            ),
            upstream_connect_failures: registered(
                to,
                "upstream_connect_failures",
                "Connections to the upstream that failed to be made",
            ),
            upstream_surplus: registered(
                to,
                "upstream_surplus",
                "Connections on which the upstream sent bytes that nobody had asked for",
            ),
            on_unknown: {
                let help = "Requests that told of unknown outcomes, by what became of them: sent, failed (it is tried again), dropped (the receiver refuses it)";
                let told: Family<Label, Counter> = registered(to, "on_unknown", help);
                for result in TOLD {
                    drop(told.get_or_create(&[("result", result)]));
                }
                told
            },
            draining: registered(to, "draining", "1 once this node has begun to shut down"),
            registry: Mutex::new(registry),
        }))
    }

    /// The metrics of the route with this name. The same name counts together, before and after a
    /// reload.
    pub fn route(&self, name: &Arc<str>) -> RouteMetrics {
        self.0.requests.route(name)
    }

    /// The metrics of reloads.
    pub(crate) fn reloads(&self) -> &Reloads {
        &self.0.reloads
    }

    /// An observer that counts the library's events and passes them on.
    pub fn observer(&self, also: Arc<dyn Observer>) -> impl Observer + use<> {
        Counting {
            events: self.0.events.clone(),
            also,
        }
    }

    /// Counts a new connection.
    pub fn connected(&self, listener: Listener) -> Connected {
        let open = match listener {
            Listener::Gateway => &self.0.gateway_connections,
            Listener::Admin => &self.0.admin_connections,
        };
        open.inc();
        Connected(open.clone())
    }

    /// Counts a connection that the gateway closed early. The reason is one of a fixed set.
    pub fn connection_refused(&self, reason: &'static str) {
        self.0
            .connections_refused
            .get_or_create(&[("reason", reason)])
            .inc();
    }

    /// Counts a request that the admin listener refused. The reason is one of a fixed set.
    pub fn admin_refused(&self, reason: &'static str) {
        self.0
            .admin_refused
            .get_or_create(&[("reason", reason)])
            .inc();
    }

    /// Counts a connection made to the upstream.
    pub fn upstream_connected(&self) {
        self.0.upstream_connects.inc();
    }

    /// Counts a failure to connect to the upstream.
    pub fn upstream_connect_failed(&self) {
        self.0.upstream_connect_failures.inc();
    }

    /// Counts surplus bytes from the upstream, outside of any answer.
    pub fn upstream_surplus(&self) {
        self.0.upstream_surplus.inc();
    }

    /// Counts a request that was seen again under another principal: see
    /// [`PrincipalChanges`](super::PrincipalChanges).
    pub fn suspected_principal(&self) {
        self.0.suspected_principals.inc();
    }

    /// Counts a guarded request whose caller is not identified. The reason is one of a fixed set.
    pub fn credentials_refused(&self, reason: &'static str) {
        self.0
            .credentials_refused
            .get_or_create(&[("reason", reason)])
            .inc();
    }

    /// Counts a field that may identify the caller and that no principal source reads. The field is
    /// one of a fixed set.
    pub fn identity_field_ignored(&self, field: &'static str) {
        self.0
            .identity_fields_ignored
            .get_or_create(&[("field", field)])
            .inc();
    }

    /// Counts a guarded request whose caller cannot be checked now. The reason is one of a fixed
    /// set.
    pub fn principal_unavailable(&self, reason: &'static str) {
        self.0
            .principal_unavailable
            .get_or_create(&[("reason", reason)])
            .inc();
    }

    /// Counts a reading of the keys of tokens.
    pub fn jwt_keys_read(&self, is_good: bool) {
        let result = if is_good { "ok" } else { "failed" };
        self.0
            .jwt_keys_read
            .get_or_create(&[("result", result)])
            .inc();
    }

    /// Counts a request that told of an unknown outcome: `sent`, `failed` or `dropped`.
    pub(crate) fn told_of_unknown(&self, result: &'static str) {
        self.0.on_unknown.get_or_create(&[("result", result)]).inc();
    }

    /// Records that this node has begun to shut down.
    pub fn draining(&self) {
        self.0.draining.set(1);
    }

    /// Reads the numbers of the embedded store on every scrape. `ask` must hold the store weakly,
    /// or the store stays open for as long as there are metrics.
    pub fn watch_store(&self, ask: impl Fn() -> Option<Stats> + Send + Sync + 'static) {
        self.collect(ask, collected::of_sqlite);
    }

    /// Like [`Metrics::watch_store`], for a database: what this node knows about it, without a
    /// query.
    pub fn watch_postgres(
        &self,
        ask: impl Fn() -> Option<postgres::Stats> + Send + Sync + 'static,
    ) {
        self.collect(ask, collected::of_postgres);
    }

    /// Like [`Metrics::watch_postgres`], for a Redis.
    pub fn watch_redis(&self, ask: impl Fn() -> Option<redis::Stats> + Send + Sync + 'static) {
        self.collect(ask, collected::of_redis);
    }

    /// Like [`Metrics::watch_postgres`], for the cache in front of it.
    pub fn watch_cache(&self, ask: impl Fn() -> Option<tiered::Stats> + Send + Sync + 'static) {
        self.collect(ask, collected::of_cache);
    }

    /// Reads how many bytes of request bodies are buffered on every scrape.
    pub fn watch_bodies(&self, ask: impl Fn() -> BodyUsage + Send + Sync + 'static) {
        self.collect(move || Some(ask()), collected::of_bodies);
    }

    /// Reads the numbers of relays on every scrape.
    pub(crate) fn watch_relays(&self, stats: RelayStats) {
        self.registry().register_collector(Box::new(stats));
    }

    fn collect<T: 'static>(
        &self,
        ask: impl Fn() -> Option<T> + Send + Sync + 'static,
        numbers: fn(&T) -> Vec<Number>,
    ) {
        let ask = Box::new(ask);
        let collected = Box::new(Collected { ask, numbers });
        self.registry().register_collector(collected);
    }

    /// All metrics, in the text format of OpenMetrics 1.0.
    pub fn encode(&self) -> String {
        let mut encoded = String::new();
        text::encode(&mut encoded, &self.registry()).expect("a string takes what is written to it");
        encoded
    }

    pub(super) fn clocks(&self) -> Clocks {
        self.0.clocks.clone()
    }

    pub(super) fn open(&self) -> Open {
        self.0.open.clone()
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.0.registry.lock()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}

/// Registers which version runs.
pub(super) fn register_build(registry: &mut Registry) {
    let commit = option_env!("HAPAX_BUILD_COMMIT").unwrap_or("unknown");
    let build = [("version", env!("CARGO_PKG_VERSION")), ("commit", commit)];
    registry.register(
        "build",
        "The version that runs, and the commit it was made from",
        Info::new(build),
    );
}

/// A gauge in seconds, registered and at zero.
pub(super) fn gauge_seconds(registry: &mut Registry, name: &str, help: &str) -> Seconds {
    let metric = Seconds::default();
    registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
    metric
}

/// A metric, registered and at zero.
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn connections_count_while_they_are_open() {
        let metrics = Metrics::new();
        let (first, _second) = (
            metrics.connected(Listener::Gateway),
            metrics.connected(Listener::Gateway),
        );
        drop(first);
        metrics.connection_refused("too_many");
        let text = metrics.encode();
        for line in [
            "hapax_connections{listener=\"gateway\"} 1",
            "hapax_connections{listener=\"admin\"} 0",
            "hapax_connections_refused_total{reason=\"too_many\"} 1",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn the_store_is_asked_when_we_are_asked_and_may_be_gone() {
        let (metrics, store) = (Metrics::new(), Arc::new(Mutex::new(Stats::default())));
        let weak = Arc::downgrade(&store);
        metrics.watch_store(move || Some(weak.upgrade()?.lock().clone()));
        {
            let mut stats = store.lock();
            (stats.commits, stats.queue_bytes, stats.failing) =
                (7, 512, Some("disk full".to_owned()));
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

    #[test]
    fn of_a_database_it_is_told_what_this_node_knows() {
        let (metrics, stats) = (
            Metrics::new(),
            Arc::new(Mutex::new(postgres::Stats::default())),
        );
        let asked = stats.clone();
        metrics.watch_postgres(move || Some(asked.lock().clone()));
        {
            let mut stats = stats.lock();
            (
                stats.statements,
                stats.batches,
                stats.batched,
                stats.commits_lost,
            ) = (9, 4, 70, 2);
            stats.failing = Some("refused".to_owned());
        }
        let text = metrics.encode();
        for line in [
            "hapax_postgres_statements_total 9",
            "hapax_postgres_batches_total 4",
            "hapax_postgres_batched_total 70",
            "hapax_postgres_commits_lost_total 2",
            "hapax_postgres_failing 1",
            "hapax_postgres_queue_bytes 0",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn of_a_redis_it_is_told_what_this_node_knows() {
        let (metrics, stats) = (
            Metrics::new(),
            Arc::new(Mutex::new(redis::Stats::default())),
        );
        let asked = stats.clone();
        metrics.watch_redis(move || Some(asked.lock().clone()));
        {
            let mut stats = stats.lock();
            (stats.calls, stats.pipelines, stats.failovers) = (70, 4, 2);
            stats.warnings = vec!["no replica".to_owned(), "no append-only file".to_owned()];
            stats.failing = Some("refused".to_owned());
        }
        let text = metrics.encode();
        for line in [
            "hapax_redis_calls_total 70",
            "hapax_redis_pipelines_total 4",
            "hapax_redis_failovers_total 2",
            "hapax_redis_warnings 2",
            "hapax_redis_failing 1",
            "hapax_redis_queue_bytes 0",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} in\n{text}");
        }
    }
}
