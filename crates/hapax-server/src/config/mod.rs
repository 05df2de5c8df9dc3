//! What the gateway is to do, and every limit it keeps.
//!
//! [`Config`] is made of a file, variables and flags (`file/`), and is good by then: whatever
//! contradicts itself was refused with the line it stands in.

pub(crate) mod fields;
pub mod file;
mod forward_auth;
pub(crate) mod jwt;
mod network;
pub(crate) mod postgres;
mod principal;
mod route;
mod secret;
pub(crate) mod text;
pub(crate) mod url;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

pub use file::{ConfigError, Environment, Overrides};
pub use forward_auth::ForwardAuth;
pub use jwt::{Audience, Issuer, Jwt, KeysFrom};
pub use network::Network;
pub use postgres::PostgresUrl;
pub use principal::{AnonymousField, Claim, CookieName, PrincipalSource, PrincipalSources};
pub(crate) use route::unguarded_siblings;
pub use route::{Choice, PathAmbiguous, Pattern, Route, choose, route_of};
pub use secret::Secret;
pub use text::{admin_address, listen_address, upstream_url};
pub use url::ServiceUrl;

/// Everything the gateway is told before it starts.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where clients connect.
    pub listen: SocketAddr,
    /// Where operators ask. Beyond loopback only with a token, because there anybody may come by.
    pub admin: Option<SocketAddr>,
    /// What operators present. Without it, whoever reaches the admin listener is one.
    pub admin_token: Option<Secret>,
    /// What the upstream's own reconciliation job presents, which may settle and nothing else.
    pub settle_token: Option<Secret>,
    /// Which requests have a line in the access log.
    pub access_log: Lines,
    /// Where records are kept.
    pub store: StoreUrl,
    /// Where this node keeps its last acknowledged writes, if the store is a Postgres: by them it
    /// notices a restore at its start.
    pub high_water_file: Option<PathBuf>,
    /// Where large request bodies are written while they are buffered; `None` for the system's
    /// directory for temporary files.
    pub spill_directory: Option<PathBuf>,
    /// Sets apart the keys of this service from those of others on the same store.
    pub namespace: String,
    /// Who is asking, on every route that does not say otherwise.
    pub principal: PrincipalSources,
    /// Parts of a request that identify nobody, besides those on the gateway's own list.
    pub anonymous_fields: Vec<AnonymousField>,
    /// How its token is verified, where the source is `jwt`.
    pub jwt: Option<Jwt>,
    /// How the other service is asked, where the source is `forward-auth`.
    pub forward_auth: Option<ForwardAuth>,
    /// The service behind.
    pub upstream: Upstream,
    /// What the gateway shows to clients, if it speaks TLS with them.
    pub tls: Option<Tls>,
    /// Peers whose `Forwarded` and `X-Forwarded-*` are believed and added to, and who may name the
    /// caller where the source is `header`. Those fields of others are replaced or taken off.
    pub trusted_proxies: Vec<Network>,
    /// How long anybody may take.
    pub timeouts: Timeouts,
    /// How much of anything there may be.
    pub limits: Limits,
    /// How to stop.
    pub drain: Drain,
    /// What each route promises: the first that matches counts. After the last stands, unwritten,
    /// one for every path.
    pub routes: Vec<Route>,
    /// What that last one promises.
    pub defaults: hapax::Policy,
    /// Whom it asks: see [`Route::probe`].
    pub probe: Option<http::uri::PathAndQuery>,
}

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

/// The service behind the gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct Upstream {
    /// Its origin: scheme, host and port. A path is refused: requests keep theirs.
    pub url: http::Uri,
    /// What to speak with it.
    pub protocol: Protocol,
    /// Whom to believe, besides the system's authorities, when it shows its certificate.
    pub ca_file: Option<PathBuf>,
    /// Connections that may be open to it. A request that finds none free within `timeouts.connect`
    /// was never dispatched.
    pub connections_max: usize,
    /// Of these, connections that the unguarded requests and tunnels of one peer may use at the
    /// same time; half of them by default. All unguarded requests together leave a quarter of the
    /// connections to guarded ones.
    pub unguarded_per_peer_max: Option<usize>,
    /// Tunnels (WebSocket) there may be at the same time, half of them to one peer. Half of the
    /// connections by default.
    pub tunnels_max: Option<usize>,
    /// How long an unused connection is kept.
    pub idle_max: Duration,
    /// How long a connection may have been unused for a request that must not be sent twice:
    /// shorter than the upstream's own patience, which is 2 s for gunicorn and 5 s for Node.
    pub reuse_max: Duration,
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

/// What the gateway shows to clients. Both in PEM.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The certificate and those that vouch for it.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// How long anybody may take.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// From connecting to the first byte.
    pub first_byte: Duration,
    /// To agree on TLS.
    pub handshake: Duration,
    /// From the first byte of a request's head to its last.
    pub header: Duration,
    /// From one request to the next on the same connection.
    pub keep_alive: Duration,
    /// A client that sends a body, or takes an answer, without any progress.
    pub stall: Duration,
    /// To connect to the upstream, TLS included.
    pub connect: Duration,
    /// From the last byte of the request to the head of the upstream's answer, and from each part
    /// of its body to the next.
    pub answer: Duration,
    /// A tunnel through which nothing comes from either side.
    pub tunnel_idle: Duration,
}

/// How much of anything there may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections of clients.
    pub connections_max: usize,
    /// Of these, such as have not sent a byte yet. Over it the oldest of them is closed.
    pub silent_connections_max: usize,
    /// Bytes of a request's head.
    pub header_bytes_max: usize,
    /// Fields of a request's head.
    pub header_fields_max: usize,
    /// Streams of one HTTP/2 connection.
    pub streams_max: u32,
    /// Attempts that may be running.
    pub attempts_max: usize,
    /// Bytes a second that a client must send of a body or take of an answer, on the average of
    /// each `timeouts.stall`.
    pub rate_min: u64,
    /// Live records that one principal may have.
    pub records_per_principal_max: Option<u64>,
    /// Bytes of kept answers that one principal may have.
    pub bytes_per_principal_max: Option<u64>,
    /// Records in the store, of all nodes. The last tenth is for principals who have records.
    pub records_max: u64,
    /// Of these, records that are kept only because their caller was refused.
    pub refused_records_max: u64,
    /// Values by which new keys are counted at the same time.
    pub velocity_entries_max: usize,
    /// Bytes of request bodies buffered in memory.
    pub buffered_memory_bytes_max: u64,
    /// The same of one peer; a quarter of the total by default.
    pub buffered_memory_bytes_per_peer_max: Option<u64>,
    /// Bytes of request bodies buffered in files.
    pub buffered_disk_bytes_max: u64,
    /// The same of one peer; a quarter of the total by default.
    pub buffered_disk_bytes_per_peer_max: Option<u64>,
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

/// How to stop.
#[derive(Clone, Copy, Debug)]
pub struct Drain {
    /// From turning readiness off to taking no more connections: as long as load balancers take to
    /// notice.
    pub notice: Duration,
    /// How long attempts may take to end after that, before they are marked as unknown.
    pub deadline: Duration,
}

impl Config {
    /// Everything at its default, in front of this upstream.
    pub fn new(upstream: http::Uri) -> Config {
        Config {
            listen: (Ipv4Addr::LOCALHOST, 4000).into(),
            admin: Some((Ipv4Addr::LOCALHOST, 4001).into()),
            admin_token: None,
            settle_token: None,
            access_log: Lines::Notable,
            store: StoreUrl::Sqlite("hapax.db".into()),
            high_water_file: None,
            spill_directory: None,
            namespace: "default".to_owned(),
            principal: PrincipalSources::default(),
            anonymous_fields: Vec::new(),
            jwt: None,
            forward_auth: None,
            upstream: Upstream::new(upstream),
            tls: None,
            trusted_proxies: Vec::new(),
            timeouts: Timeouts::default(),
            limits: Limits::default(),
            drain: Drain::default(),
            routes: Vec::new(),
            defaults: hapax::Policy::default(),
            probe: None,
        }
    }
}

impl Config {
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
            protocol: Protocol::Auto,
            ca_file: None,
            connections_max: 1_024,
            unguarded_per_peer_max: None,
            tunnels_max: None,
            idle_max: Duration::from_secs(60),
            reuse_max: Duration::from_secs(1),
        }
    }
}

/// How many of some connections, or streams, unguarded requests may use together.
pub(crate) fn unguarded_of(connections: usize) -> usize {
    connections - connections.div_ceil(4).min(connections.saturating_sub(1))
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            first_byte: Duration::from_secs(10),
            handshake: Duration::from_secs(10),
            header: Duration::from_secs(10),
            keep_alive: Duration::from_secs(75),
            stall: Duration::from_secs(20),
            connect: Duration::from_secs(5),
            // Longer than the longest attempt: one that is given up at five minutes may still end,
            // and resolve its record.
            answer: Duration::from_secs(10 * 60),
            // Longer than the pings of WebSocket libraries are apart, which is a minute at most as
            // a rule.
            tunnel_idle: Duration::from_secs(5 * 60),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections_max: 20_000,
            silent_connections_max: 4_096,
            header_bytes_max: 32 << 10,
            header_fields_max: 100,
            streams_max: 128,
            attempts_max: 10_000,
            rate_min: 128,
            records_per_principal_max: None,
            bytes_per_principal_max: None,
            records_max: 10_000_000,
            refused_records_max: 100_000,
            velocity_entries_max: 100_000,
            buffered_memory_bytes_max: 256 << 20,
            buffered_memory_bytes_per_peer_max: None,
            buffered_disk_bytes_max: 4 << 30,
            buffered_disk_bytes_per_peer_max: None,
        }
    }
}

impl Default for Drain {
    fn default() -> Self {
        Drain {
            notice: Duration::from_secs(2),
            deadline: Duration::from_secs(30),
        }
    }
}
