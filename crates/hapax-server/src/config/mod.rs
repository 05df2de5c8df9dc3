//! The configuration of the gateway, with all its limits.
//!
//! [`Config`] is read from a file, variables and flags (`file/`), which refuses contradictions and
//! shows their lines, so a [`Config`] is consistent. Its settings are declared in `settings/`.

pub mod file;
pub(crate) mod jwt;
mod network;
mod password;
mod postgres;
mod principal;
mod reader;
mod redis;
mod route;
mod secret;
pub(crate) mod settings;
pub(crate) mod text;
pub(crate) mod url;

use std::fmt;
use std::path::PathBuf;

pub use file::{ConfigError, Environment, Overrides};
pub use jwt::{Audience, Issuer, KeysFrom};
pub use network::Network;
pub use postgres::PostgresUrl;
pub use principal::{
    AnonymousField, Claim, CookieName, PrincipalSource, PrincipalSources, WebhookSender,
};
pub(crate) use reader::reader_name;
pub use redis::RedisUrl;
pub(crate) use route::unguarded_siblings;
pub use route::{Choice, PathAmbiguous, Pattern, Route, choose, route_of};
pub use secret::Secret;
pub(crate) use settings::give_up;
pub use settings::{
    Config, Drain, ForwardAuth, Jwt, Limits, OnUnknown, Relay, Sasl, StandardWebhooks, Timeouts,
    Tls, Upstream,
};
pub use text::{admin_address, listen_address, upstream_url};
pub use url::ServiceUrl;

/// Which requests have a line in the access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// All requests.
    All,
    /// All requests except a clean pass: forwarded without a guard, and answered by the upstream
    /// with a status below 500.
    Notable,
    /// No requests.
    Off,
}

impl Lines {
    /// Its name in the configuration.
    pub fn word(self) -> &'static str {
        match self {
            Lines::All => "all",
            Lines::Notable => "notable",
            Lines::Off => "off",
        }
    }
}

/// The store of the records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// A file of the embedded store: `sqlite:hapax.db`.
    Sqlite(PathBuf),
    /// A database that several nodes may share: `postgres://hapax@db.internal/hapax`.
    Postgres(PostgresUrl),
    /// A Redis or Valkey that several nodes may share: `redis://cache.internal`. It may lose the
    /// latest records.
    Redis(RedisUrl),
    /// In memory, lost with the process. `memory:`, for trying things out.
    Memory,
}

impl StoreUrl {
    /// The URL as written, including a password: for comparing and connecting, never to be shown.
    pub(crate) fn expose(&self) -> String {
        match self {
            StoreUrl::Postgres(url) => url.expose().to_owned(),
            StoreUrl::Redis(url) => url.expose().to_owned(),
            other => other.to_string(),
        }
    }

    /// Whether it contains a password.
    pub(crate) fn has_password(&self) -> bool {
        match self {
            StoreUrl::Postgres(url) => url.has_password(),
            StoreUrl::Redis(url) => url.has_password(),
            StoreUrl::Sqlite(_) | StoreUrl::Memory => false,
        }
    }
}

/// Shown without its password.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            StoreUrl::Postgres(url) => url.fmt(f),
            StoreUrl::Redis(url) => url.fmt(f),
            StoreUrl::Memory => f.write_str("memory:"),
        }
    }
}

/// How well records must be kept. It is said only where a store may lose some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// As well as the store can: what it loses may run again.
    BestEffort,
}

impl Durability {
    /// Its name in the configuration.
    pub fn word(self) -> &'static str {
        match self {
            Durability::BestEffort => "best-effort",
        }
    }
}

/// The protocol to speak with the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Over TLS the one that both sides prefer; otherwise HTTP/1.1.
    Auto,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, without TLS by prior knowledge.
    Http2,
}

impl Protocol {
    /// Its name in the configuration.
    pub fn word(self) -> &'static str {
        match self {
            Protocol::Auto => "auto",
            Protocol::Http1 => "http1",
            Protocol::Http2 => "http2",
        }
    }
}

impl Limits {
    /// Limit on the bytes of one peer's request bodies that are buffered in memory.
    pub fn memory_share(&self) -> u64 {
        self.buffered_memory_bytes_per_peer_max
            .unwrap_or(self.buffered_memory_bytes_max / 4)
    }

    /// Limit on the bytes of one peer's request bodies that are buffered in files.
    pub fn disk_share(&self) -> u64 {
        self.buffered_disk_bytes_per_peer_max
            .unwrap_or(self.buffered_disk_bytes_max / 4)
    }
}

impl Config {
    /// The default configuration for this upstream.
    pub fn new(upstream: http::Uri) -> Config {
        Config {
            upstream: Upstream::new(upstream),
            ..Config::default()
        }
    }

    /// Whether some route lets requests through while the store fails.
    pub fn fails_open(&self) -> bool {
        self.all_routes()
            .iter()
            .any(|route| route.policy.fail_open && route.policy.key != hapax::KeyRule::Off)
    }

    /// What is wrong with the access to the admin listener, if anything.
    pub fn admin_mistake(&self) -> Option<String> {
        let admin = self.admin?;
        if !admin.ip().is_loopback() && self.admin_token.is_none() {
            return Some(format!(
                "`{admin}` can be reached from other machines, and without a token the admin listener asks nobody who they are: set `admin_token`, or write 127.0.0.1:{}, or off",
                admin.port()
            ));
        }
        let is_one = self.admin_token.is_some() && self.admin_token == self.settle_token;
        is_one.then(|| {
            "`admin_token` and `settle_token` are one: whoever settles could do everything else. Make another with `openssl rand -hex 32`"
                .to_owned()
        })
    }

    /// Contradictions between the store and the settings that only some stores have, each with the
    /// setting it is about.
    pub fn store_mistakes(&self) -> Vec<(&'static str, String)> {
        let is_redis = matches!(self.store, StoreUrl::Redis(_));
        let mut mistakes = Vec::new();
        if is_redis && self.durability.is_none() {
            mistakes.push((
                "store",
                "a Redis may lose its latest records in a crash or a failover, and requests whose records are lost run again: if they may, write durability = \"best-effort\" (as a variable, HAPAX__DURABILITY=best-effort); if not, keep the records in Postgres, with Redis as its cache: write store = \"postgres://USER@HOST/DATABASE\" and cache = \"redis://HOST:PORT\""
                    .to_owned(),
            ));
        }
        if self.durability.is_some() && !is_redis {
            mistakes.push((
                "durability",
                format!(
                    "`durability` says what a Redis may lose, and `store` is \"{}\": leave it out",
                    self.store
                ),
            ));
        }
        if self.replicas > 0 && !is_redis {
            mistakes.push((
                "replicas",
                format!(
                    "`replicas` is how many replicas of a Redis confirm a write, and `store` is \"{}\": leave it out",
                    self.store
                ),
            ));
        }
        if self.cache.is_some()
            && let Some(reason) = match &self.store {
                StoreUrl::Postgres(_) => None,
                StoreUrl::Redis(_) => {
                    Some("is a Redis itself, which a copy in another one would not make faster")
                }
                StoreUrl::Sqlite(_) => {
                    Some("is a file with one owner, which has its answers in memory")
                }
                StoreUrl::Memory => Some("is in memory"),
            }
        {
            mistakes.push((
                "cache",
                format!(
                    "`cache` is for a Postgres that several nodes share, and `store` (\"{}\") {reason}: leave it out",
                    self.store
                ),
            ));
        }
        if !self.relays.is_empty() && !matches!(self.store, StoreUrl::Postgres(_)) {
            mistakes.push((
                "relay",
                format!(
                    "a relay reads the outbox of a Postgres here, and `store` is \"{}\", in which no transaction of yours commits: write store = \"postgres://USER@HOST/DATABASE\", or leave [relay.*] out; messages in your service's own SQLite file are published by `hapax relay --store sqlite:FILE`",
                    self.store
                ),
            ));
        }
        mistakes
    }

    /// The routes as written, and the default route after them, which guards every request that has
    /// a key. Each has its principal sources.
    pub fn all_routes(&self) -> Vec<Route> {
        let rest = Route {
            name: "default".into(),
            probe: self.probe.clone(),
            ..Route::everywhere(self.defaults.clone())
        };
        let whole = |route: Route| Route {
            principal: Some(self.principal_of(&route).clone()),
            ..route
        };
        self.routes
            .iter()
            .cloned()
            .chain([rest])
            .map(whole)
            .collect()
    }

    /// What identifies callers on a route.
    pub fn principal_of<'a>(&'a self, route: &'a Route) -> &'a PrincipalSources {
        route.principal.as_ref().unwrap_or(&self.principal)
    }

    /// All lists of principal sources that the routes have, each once.
    pub fn principals(&self) -> Vec<&PrincipalSources> {
        let mut lists = vec![&self.principal];
        for route in &self.routes {
            let list = self.principal_of(route);
            if !lists.contains(&list) {
                lists.push(list);
            }
        }
        lists
    }
}

impl Upstream {
    /// How many connections unguarded requests may use together: a quarter, rounded up, is left to
    /// guarded ones.
    pub fn unguarded_max(&self) -> usize {
        unguarded_of(self.connections_max)
    }

    /// How many connections the unguarded requests and tunnels of one peer may use.
    pub fn unguarded_per_peer(&self) -> usize {
        self.unguarded_per_peer_max
            .unwrap_or(self.connections_max.div_ceil(2))
            .min(self.unguarded_max())
    }

    /// How many tunnels there may be at a time.
    pub fn tunnels(&self) -> usize {
        self.tunnels_max
            .unwrap_or(self.connections_max.div_ceil(2))
            .min(self.unguarded_max())
    }

    /// The default settings for this origin.
    pub fn new(url: http::Uri) -> Upstream {
        Upstream {
            url,
            ..Upstream::default()
        }
    }
}

/// How many of these connections, or streams, unguarded requests may use together.
pub(crate) fn unguarded_of(connections: usize) -> usize {
    connections - connections.div_ceil(4).min(connections.saturating_sub(1))
}
