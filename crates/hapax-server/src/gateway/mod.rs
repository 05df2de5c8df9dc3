//! The gateway: the library's layer around a proxying service.
//!
//! `stack.rs` is the path of one request; `runtime.rs` holds everything built from one
//! configuration, and `reload/` replaces it with another. `listen/` accepts connections, and
//! `wire/` checks their bytes more strictly than hyper; `forward.rs` says which fields pass;
//! `upstream/` sends a request once; `probe.rs` asks the upstream what became of a lost attempt.

mod access;
mod body;
mod check;
mod forward;
mod listen;
mod on_unknown;
mod principal;
mod probe;
mod reload;
mod runtime;
mod spill;
mod stack;
mod stream;
mod upstream;
mod well_known;
mod wire;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use hapax::store::tiered::{self, Tiered};
use hapax::{Drained, Hapax, Limits, Observer, Postgres, Sqlite, Store};
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::check::mistakes;
use self::listen::Listener;
use self::on_unknown::{Hints, OnUnknown, Telling};
pub use self::reload::{Change, ReloadError, Reloader, Reread};
use self::runtime::{Live, Runtime};
use self::upstream::Tunnels;
pub(crate) use self::well_known::PATH as WELL_KNOWN;
use crate::admin::reload::{Changed, NotReloaded};
use crate::admin::{self, Admin, Readiness};
use crate::config::{Config, RedisUrl, StoreUrl};
use crate::publishers;
use crate::relay::{self, Backlogs, Relays, Source};
use crate::store::{self, NotOpened};
use crate::telemetry::{self, Metrics, PrincipalChanges, Timed, Traces};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Clients of a gateway use any SDK, so it sends retry advice in the dialects of all of them: see
/// [`hapax::Policy::retry_dialects`].
const RETRY_DIALECTS: bool = true;

/// How long connections may take to end after all attempts have: their answers are being sent.
const GOODBYE: Duration = Duration::from_secs(5);

/// Connections that the kernel may hold before they are accepted. Beyond this, a client's first
/// packet is dropped, and the client repeats it after a second.
const BACKLOG: u32 = 4_096;

/// How many lost attempts one sweep at the start looks for.
const SWEEP_BATCH: usize = 1_000;

/// A running gateway. Dropping it does not shut down cleanly: use [`Gateway::drain`].
pub struct Gateway {
    live: Arc<ArcSwap<Live>>,
    runtime: Arc<Runtime>,
    reloader: Reloader,
    address: SocketAddr,
    admin: Option<SocketAddr>,
    ready: Arc<Readiness>,
    closing: CancellationToken,
    connections: TaskTracker,
    /// Publish messages, if the configuration says so.
    relays: Option<Relays>,
    /// Tells of unknown outcomes, if the configuration says so.
    telling: Option<Telling>,
}

/// Optional parts of a gateway.
#[derive(Default)]
pub struct Options {
    /// Receives events, in addition to the metrics.
    pub observer: Option<Arc<dyn Observer>>,
    /// Reads the configuration again. Without it, reloading is not possible.
    pub reread: Option<Reread>,
    /// Allow every reload to change scopes: a caller that retries across it may cause a second
    /// effect.
    pub reload_scopes: bool,
}

/// Why a gateway did not start. The text says which setting to change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The store could not be opened.
    #[error("store {url}: {reason}")]
    Store {
        /// The store as it was named.
        url: StoreUrl,
        /// What is wrong with it.
        reason: String,
    },
    /// The store exists, and has to be prepared first.
    #[error("store {url}: {reason}")]
    StoreUnfit {
        /// The store as it was named, without a password.
        url: StoreUrl,
        /// What to do.
        reason: String,
    },
    /// An address cannot be listened on.
    #[error("{setting} {address}: {error}")]
    Listen {
        /// `listen` or `admin`.
        setting: &'static str,
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        error: std::io::Error,
    },
    /// A setting does not work.
    #[error("{0}")]
    Setting(String),
}

impl Gateway {
    /// Opens the store, listens, and serves.
    pub async fn start(config: Config) -> Result<Gateway, StartError> {
        Gateway::start_observed(config, ()).await
    }

    /// Like [`Gateway::start`], with an observer that receives events in addition to the metrics.
    pub async fn start_observed(
        config: Config,
        observer: impl Observer,
    ) -> Result<Gateway, StartError> {
        Gateway::start_with(
            config,
            Options {
                observer: Some(Arc::new(observer)),
                ..Options::default()
            },
        )
        .await
    }

    /// Like [`Gateway::start`], with options.
    pub async fn start_with(config: Config, options: Options) -> Result<Gateway, StartError> {
        let (metrics, tunnels) = (Metrics::new(), Tunnels::default());
        // Mistakes that would otherwise show up late are found first, before anything is opened.
        let mistakes = mistakes(&config).await;
        if !mistakes.is_empty() {
            return Err(StartError::Setting(mistakes.join("\n")));
        }
        let traces = Traces::from_env().map_err(StartError::Setting)?;

        let socket = bind("listen", config.listen)?;
        let admin_socket = match config.admin {
            Some(address) => Some(bind("admin", address)?),
            None => None,
        };
        let ready = Arc::new(Readiness::default());
        let store = open(&config, &metrics, &ready).await?;
        tell_of_lost(&*store).await;
        let operation_ids = store
            .info()
            .await
            .map_err(|error| store_error(&config, &error))?
            .operation_ids();
        let observer = options.observer.unwrap_or_else(|| Arc::new(()));
        let (observer, hints) = match &config.on_unknown {
            Some(on_unknown) => {
                let (observer, hints) = Hints::new(observer);
                let receiver =
                    publishers::of_on_unknown(on_unknown).map_err(StartError::Setting)?;
                (
                    Arc::new(observer) as Arc<dyn Observer>,
                    Some((receiver, hints)),
                )
            }
            None => (observer, None),
        };
        let mut builder = Hapax::builder(Timed::new(store, &metrics))
            .observer(metrics.observer(observer))
            .limits(Limits {
                attempts_in_flight_max: config.limits.attempts_in_flight_max,
                velocity_entries_max: config.limits.velocity_entries_max,
                records_per_principal_max: config.limits.records_per_principal_max,
                bytes_per_principal_max: config.limits.bytes_per_principal_max,
                records_max: Some(config.limits.records_max),
                refused_records_max: Some(config.limits.refused_records_max),
                buffered_memory_bytes_max: config.limits.buffered_memory_bytes_max,
                buffered_memory_bytes_per_peer_max: config.limits.memory_share(),
                buffered_disk_bytes_max: config.limits.buffered_disk_bytes_max,
                buffered_disk_bytes_per_peer_max: config.limits.disk_share(),
                ..Limits::default()
            });
        if let Some(directory) = &config.spill_directory {
            builder = builder.spill_directory(directory);
        }
        let hapax = builder.build().namespace(&config.namespace);
        spill::check(&config, hapax.body_budget()).map_err(StartError::Setting)?;
        let budget = hapax.body_budget().clone();
        metrics.watch_bodies(move || budget.usage());
        let secret = *operation_ids.secret();
        let runtime = Arc::new(Runtime {
            hapax,
            secret,
            metrics,
            traces,
            tunnels,
            principal_changes: Arc::<PrincipalChanges>::default(),
        });
        let live = Live::new(config, &runtime, None)
            .await
            .map_err(StartError::Setting)?;
        live.settle_in(None);
        let live = Arc::new(ArcSwap::from_pointee(live));
        let operators = Admin::new(
            ready.clone(),
            runtime.metrics.clone(),
            runtime.hapax.clone(),
            operation_ids,
            admin::Rules::new(&live.load().config),
        );
        let telling = hints.map(|(receiver, hints)| {
            let rules = operators.rules.clone();
            let on_unknown = OnUnknown {
                receiver,
                hapax: runtime.hapax.clone(),
                metrics: runtime.metrics.clone(),
                operation_ids,
                is_meant: Box::new(move |head| rules.load().is_ours_to_settle(head)),
            };
            on_unknown.start(hints)
        });
        ready.fails_open(live.load().config.fails_open());
        let reloader = Reloader::new(
            live.clone(),
            runtime.clone(),
            (ready.clone(), operators.rules.clone()),
            options.reread,
            options.reload_scopes,
        );
        let (relays, backlogs) = start_relays(&live.load().config, &runtime)?;
        let operators = operators
            .reloaded_by(for_operators(reloader.clone()))
            .with_messages(messages_of(&live.load().config.store))
            .refreshing(backlogs.map(for_scrapes));

        let local =
            |socket: &TcpListener| socket.local_addr().expect("a bound socket has an address");
        let (address, admin) = (local(&socket), admin_socket.as_ref().map(local));
        let listener = Listener::new(socket, live.clone(), runtime.metrics.clone());
        let (closing, connections) = (listener.closing(), listener.connections());
        tokio::spawn(listener.run());
        if let Some(socket) = admin_socket {
            tokio::spawn(admin::serve(
                socket,
                admin::router(operators),
                runtime.metrics.clone(),
                admin::Limits::default(),
            ));
        }
        ready.started();
        Ok(Gateway {
            live,
            runtime,
            reloader,
            address,
            admin,
            ready,
            closing,
            connections,
            relays,
            telling,
        })
    }

    /// The address it listens on; if port 0 was configured, with the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the admin listener, if there is one.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// The engine, for operators.
    pub fn hapax(&self) -> &Hapax {
        &self.runtime.hapax
    }

    /// The reloader, which replaces the configuration.
    pub fn reloader(&self) -> &Reloader {
        &self.reloader
    }

    /// The configuration in use.
    pub fn config(&self) -> Arc<Config> {
        self.live.load().config.clone()
    }

    /// Turns readiness off, waits a moment, stops accepting, lets attempts end or marks them as
    /// unknown, and closes.
    ///
    /// It waits for attempts, not for connections: a client that keeps its connection open causes
    /// no delay.
    pub async fn drain(self) -> Drained {
        self.ready.draining();
        let Runtime {
            hapax,
            metrics,
            tunnels,
            traces,
            ..
        } = &*self.runtime;
        metrics.draining();
        let drain = self.config().drain;
        tokio::time::sleep(drain.notice).await;
        self.closing.cancel();
        let until = Instant::now() + drain.deadline;
        let drained = hapax.drain(drain.deadline).await;
        tunnels.close().await;
        // Unguarded requests have what is left of the deadline, and answers being sent have at
        // least `GOODBYE`.
        let patience = GOODBYE.max(until.saturating_duration_since(Instant::now()));
        if tokio::time::timeout(patience, self.connections.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                connections = self.connections.len(),
                "connections were cut off that had not ended by the deadline"
            );
        }
        if let Some(telling) = self.telling {
            telling.end().await;
        }
        // Last, so that what the last attempts emitted is published too.
        if let Some(relays) = &self.relays
            && !relays.stop(GOODBYE).await
        {
            tracing::warn!(
                "a destination of messages did not answer in time: what was under way is published again"
            );
        }
        if let Some(traces) = traces {
            traces.clone().shutdown(GOODBYE).await;
        }
        drained
    }
}

/// Starts the relays of a configuration, and has them counted.
fn start_relays(
    config: &Config,
    runtime: &Runtime,
) -> Result<(Option<Relays>, Option<Arc<Backlogs>>), StartError> {
    if config.relays.is_empty() {
        return Ok((None, None));
    }
    let source = Source::of(&config.store).map_err(StartError::Setting)?;
    let relays = Relays::start(&source, &config.relays, runtime.traces.clone())
        .map_err(StartError::Setting)?;
    let backlogs = Backlogs::new(&source, relays.runtime.clone());
    runtime
        .metrics
        .watch_relays(relay::stats(&relays, &backlogs));
    Ok((Some(relays), Some(backlogs)))
}

/// The outbox and the inbox in the database of a store, for operators.
fn messages_of(store: &StoreUrl) -> Option<admin::Messages> {
    let source = Source::of(store).ok()?;
    Some(admin::Messages {
        outbox: source.operators(),
        inbox: source.inbox(),
    })
}

/// Asking what waits in the outbox, in the form that the admin listener calls.
fn for_scrapes(backlogs: Arc<Backlogs>) -> admin::Refresh {
    Arc::new(move || {
        let backlogs = backlogs.clone();
        Box::pin(async move { backlogs.refresh().await })
    })
}

/// The reloader in the form that the admin listener calls.
fn for_operators(reloader: Reloader) -> admin::reload::Reloader {
    Arc::new(move |allows_scope_change| {
        let reloader = reloader.clone();
        Box::pin(async move {
            match reloader.reload(allows_scope_change).await {
                Ok(changes) => Ok(changes.into_iter().map(Changed::from).collect()),
                Err(error) => Err(NotReloaded {
                    code: match &error {
                        ReloadError::Nothing => "nothing-to-reload",
                        ReloadError::Restart(_) => "restart-needed",
                        ReloadError::Promises(_) => "promises-broken",
                        ReloadError::Bad(_) => "configuration-bad",
                    },
                    detail: error.to_string(),
                }),
            }
        })
    })
}

impl From<Change> for Changed {
    fn from(Change { setting, from, to }: Change) -> Changed {
        Changed { setting, from, to }
    }
}

fn bind(setting: &'static str, address: SocketAddr) -> Result<TcpListener, StartError> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    };
    let bound = socket.and_then(|socket| {
        // Lets a restart bind while old connections are still in TIME_WAIT.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    });
    bound.map_err(|error| StartError::Listen {
        setting,
        address,
        error,
    })
}

async fn open(
    config: &Config,
    metrics: &Metrics,
    ready: &Arc<Readiness>,
) -> Result<Arc<dyn Store>, StartError> {
    match &config.store {
        StoreUrl::Memory => Ok(Arc::new(hapax::store::memory())),
        StoreUrl::Sqlite(path) => {
            let store = Sqlite::open(path)
                .await
                .map_err(|error| store_error(config, &error))?;
            let store = Arc::new(store);
            let (counted, watched) = (Arc::downgrade(&store), Arc::downgrade(&store));
            let store: Arc<dyn Store> = store;
            metrics.watch_store(move || counted.upgrade().map(|store| store.stats()));
            ready.watch_store(&store, move || {
                watched.upgrade().and_then(|store| store.stats().failing)
            });
            Ok(store)
        }
        StoreUrl::Postgres(url) => {
            let high_water_file = config
                .high_water_file
                .clone()
                .or_else(store::high_water_file);
            if high_water_file.is_none() {
                tracing::warn!(
                    "this gateway has no high-water file: if the database is restored from a backup while it is stopped, it will not notice. Set \
                     high_water_file to a file that outlasts a restart, or run `hapax migrate --restored` after each restore"
                );
            }
            let store = store::postgres_with(url, high_water_file)
                .await
                .map_err(|error| not_opened(config, error))?;
            let namespace = &config.namespace;
            let is_for_start = store.is_for_start(namespace).await;
            if is_for_start.map_err(|error| store_error(config, &error))? {
                return Err(StartError::Setting(format!(
                    "namespace = \"{namespace}\": it belongs to hapax.start in {}, whose transactions hold their keys open, and a gateway would wait for them: choose another namespace",
                    config.store
                )));
            }
            if let Some(cache) = &config.cache {
                return tiered(store, cache, metrics, ready);
            }
            let store = Arc::new(store);
            let (counted, watched) = (Arc::downgrade(&store), Arc::downgrade(&store));
            let store: Arc<dyn Store> = store;
            metrics.watch_postgres(move || counted.upgrade().map(|store| store.stats()));
            ready.watch_store(&store, move || {
                watched.upgrade().and_then(|store| store.stats().failing)
            });
            Ok(store)
        }
        StoreUrl::Redis(url) => {
            let store = store::redis(url, config.replicas)
                .await
                .map_err(|error| not_opened(config, error))?;
            let store = Arc::new(store);
            let (counted, watched) = (Arc::downgrade(&store), Arc::downgrade(&store));
            let store: Arc<dyn Store> = store;
            metrics.watch_redis(move || counted.upgrade().map(|store| store.stats()));
            ready.watch_store(&store, move || {
                watched.upgrade().and_then(|store| store.stats().failing)
            });
            Ok(store)
        }
    }
}

/// A Postgres with a Redis in front of it. The gateway is ready when Postgres is.
fn tiered(
    postgres: Postgres,
    cache: &RedisUrl,
    metrics: &Metrics,
    ready: &Arc<Readiness>,
) -> Result<Arc<dyn Store>, StartError> {
    let tiered = Tiered::new(postgres, &tiered::Options::new(cache.expose()));
    let store = tiered.map_err(|error| StartError::Setting(format!("cache: {error}")))?;
    let store = Arc::new(store);
    let counted = || Arc::downgrade(&store);
    let (database, cache, watched) = (counted(), counted(), counted());
    let store: Arc<dyn Store> = store;
    metrics.watch_postgres(move || database.upgrade().map(|store| store.postgres().stats()));
    metrics.watch_cache(move || cache.upgrade().map(|store| store.stats()));
    ready.watch_store(&store, move || {
        watched
            .upgrade()
            .and_then(|store| store.postgres().stats().failing)
    });
    Ok(store)
}

/// Logs attempts whose process ended before they did. A store file has one owner, so all attempts
/// of the previous owner are found now. In a database, this finds those whose lease is over; the
/// sweep finds the others later.
async fn tell_of_lost(store: &dyn Store) {
    let mut lost = 0;
    loop {
        match store.sweep(SWEEP_BATCH).await {
            Ok(swept) => {
                lost += swept.lost;
                if swept.lost < SWEEP_BATCH {
                    break;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "attempts that were lost could not be counted");
                break;
            }
        }
    }
    telemetry::tell_of_lost(lost);
}

fn not_opened(config: &Config, error: NotOpened) -> StartError {
    let (url, NotOpened { reason, is_unfit }) = (config.store.clone(), error);
    if is_unfit {
        StartError::StoreUnfit { url, reason }
    } else {
        StartError::Store { url, reason }
    }
}

fn store_error(config: &Config, error: &dyn std::fmt::Display) -> StartError {
    StartError::Store {
        url: config.store.clone(),
        reason: error.to_string(),
    }
}
