//! What the gateway is to do, and every limit it keeps.
//!
//! [`Config`] is made of a file, variables and flags (`file/`), and is good by then: whatever
//! contradicts itself was refused with the line it stands in. Its settings are declared in
//! `settings/`.

pub mod file;
pub(crate) mod jwt;
mod network;
pub(crate) mod postgres;
mod principal;
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
pub use principal::{AnonymousField, Claim, CookieName, PrincipalSource, PrincipalSources};
pub(crate) use route::unguarded_siblings;
pub use route::{Choice, PathAmbiguous, Pattern, Route, choose, route_of};
pub use secret::Secret;
pub use settings::{Config, Drain, ForwardAuth, Jwt, Limits, Timeouts, Tls, Upstream};
pub use text::{admin_address, listen_address, upstream_url};
pub use url::ServiceUrl;

/// Which requests have a line in the access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// Every one.
    All,
    /// Every one but a clean pass: passed on without a guard, and answered by the upstream with
    /// less than 500.
    Notable,
    /// None.
    Off,
}

impl Lines {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Lines::All => "all",
            Lines::Notable => "notable",
            Lines::Off => "off",
        }
    }
}

/// Where records are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// A file of the embedded store: `sqlite:hapax.db`.
    Sqlite(PathBuf),
    /// A database that several nodes may share: `postgres://hapax@db.internal/hapax`.
    Postgres(PostgresUrl),
    /// Nowhere: gone with the process. `memory:`, for trying things out.
    Memory,
}

impl StoreUrl {
    /// As it was written, a password too: for whoever compares or connects, and never to be shown.
    pub(crate) fn expose(&self) -> String {
        match self {
            StoreUrl::Postgres(url) => url.expose().to_owned(),
            other => other.to_string(),
        }
    }

    /// Whether a password stands in it.
    pub(crate) fn has_password(&self) -> bool {
        matches!(self, StoreUrl::Postgres(url) if url.has_password())
    }
}

/// Without its password.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            StoreUrl::Postgres(url) => url.fmt(f),
            StoreUrl::Memory => f.write_str("memory:"),
        }
    }
}

/// What to speak with the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Over TLS what both prefer; else HTTP/1.1.
    Auto,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, without TLS by prior knowledge.
    Http2,
}

impl Protocol {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Protocol::Auto => "auto",
            Protocol::Http1 => "http1",
            Protocol::Http2 => "http2",
        }
    }
}

impl Limits {
    /// Bytes of one peer's request bodies that may be buffered in memory.
    pub fn memory_share(&self) -> u64 {
        self.buffered_memory_bytes_per_peer_max
            .unwrap_or(self.buffered_memory_bytes_max / 4)
    }

    /// Bytes of one peer's request bodies that may be buffered in files.
    pub fn disk_share(&self) -> u64 {
        self.buffered_disk_bytes_per_peer_max
            .unwrap_or(self.buffered_disk_bytes_max / 4)
    }
}

impl Config {
    /// Everything at its default, in front of this upstream.
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

    /// What is wrong with who may reach the admin listener, if anything.
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

    /// The routes as written, and the one that stands unwritten after them: whatever carries a key
    /// is guarded. Each says who is asking.
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

    /// Who is asking on a route.
    pub fn principal_of<'a>(&'a self, route: &'a Route) -> &'a PrincipalSources {
        route.principal.as_ref().unwrap_or(&self.principal)
    }

    /// Every list of sources that some route has, each once.
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
    /// Connections that all unguarded requests together may use: a quarter, rounded up, is left to
    /// guarded ones.
    pub fn unguarded_max(&self) -> usize {
        unguarded_of(self.connections_max)
    }

    /// Connections that the unguarded requests and tunnels of one peer may use.
    pub fn unguarded_per_peer(&self) -> usize {
        self.unguarded_per_peer_max
            .unwrap_or(self.connections_max.div_ceil(2))
            .min(self.unguarded_max())
    }

    /// Tunnels there may be at the same time.
    pub fn tunnels(&self) -> usize {
        self.tunnels_max
            .unwrap_or(self.connections_max.div_ceil(2))
            .min(self.unguarded_max())
    }

    /// Everything at its default, at this origin.
    pub fn new(url: http::Uri) -> Upstream {
        Upstream {
            url,
            ..Upstream::default()
        }
    }
}

/// How many of some connections, or streams, unguarded requests may use together.
pub(crate) fn unguarded_of(connections: usize) -> usize {
    connections - connections.div_ceil(4).min(connections.saturating_sub(1))
}
