//! The settings of the gateway itself.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::declare::{
    choice, count, directory, file, list, new_file, settings, shown_text, size, text, texts,
    timeout, token, up_to_a_day, value,
};
use super::{ForwardAuth, Jwt, Kind, OnUnknown, Relay, Settings, StandardWebhooks};
use crate::config::file::value::{networks, parse_texts};
use crate::config::file::{checks, principals};
use crate::config::text::{admin_address, listen_address, upstream_url};
use crate::config::{
    AnonymousField, Durability, Lines, Network, PrincipalSources, Protocol, RedisUrl, Route,
    Secret, StoreUrl,
};

settings! {
    /// Everything the gateway is told before it starts.
    #[derive(Clone, Debug)]
    pub struct Config {
        /// where clients connect; port 0 takes a free one
        listen: SocketAddr = is "127.0.0.1:4000", text(listen_address).at_start(), "0.0.0.0:8080";
        /// where operators ask for health, readiness, metrics and keys, see [admin.md](admin.md);
        /// beyond loopback only with `admin_token`; `off` for nowhere
        admin: Option<SocketAddr> = is "127.0.0.1:4001",
            shown_text(admin_address, |admin| {
                Some(admin.map_or("off".to_owned(), |admin| admin.to_string()))
            })
            .at_start(),
            "off";
        /// what operators present as a bearer token, 16 bytes or more. Without it whoever reaches
        /// the admin listener is one
        admin_token: Option<Secret> = none, token("admin_token_file"),
            "a-token-of-16-bytes-or-more";
        /// what the service's own reconciliation job presents, which may settle what is unknown and
        /// nothing else
        settle_token: Option<Secret> = none, token("settle_token_file"),
            "another-token-of-16-bytes-or-more";
        /// which requests have a line in the [access log](operations.md#the-access-log): `all`;
        /// `notable`, all but those that were passed on without a guard and answered by the service
        /// with less than 500; `off`, none
        access_log: Lines = is "notable",
            choice(&["all", "notable", "off"], Lines::from_str, |lines| {
                Some(lines.word().to_owned())
            }),
            "all";
        /// `sqlite:FILE`, see [store.md](store.md); `postgres://USER@HOST/DATABASE` for several
        /// nodes, see [postgres.md](postgres.md); `redis://HOST:PORT`, `redis+sentinel://…` or
        /// `redis+cluster://…` for several nodes that may lose the latest keys, see
        /// [redis.md](redis.md); `memory:` forgets everything when the program ends
        store: StoreUrl = is "sqlite:hapax.db",
            text(StoreUrl::from_str).compared_by(|store| Some(store.expose())).at_start(),
            "postgres://hapax@db.internal/hapax";
        /// with a Redis, which needs it: `best-effort` says that you know what a Redis may lose.
        /// Keys that it has lost run again
        durability: Option<Durability> = none,
            choice(&["best-effort"], |text| text.parse().map(Some), |durability| {
                durability.map(|one: Durability| one.word().to_owned())
            })
            .at_start(),
            "best-effort";
        /// with a Redis: how many of its replicas must confirm a write before it counts. One
        /// that fewer confirm in half a second has failed. A failover then rarely loses a key
        replicas: u32 = is "0", count(0, 100).at_start(), "1";
        /// with a Postgres: a Redis that keeps copies of answers, so that repeats need not ask
        /// Postgres, and that tells waiting nodes when an attempt ends. It decides nothing, and may
        /// be lost at any moment; see [redis.md](redis.md#redis-over-postgres)
        cache: Option<RedisUrl> = none,
            shown_text(
                |text| RedisUrl::from_str(text).map(Some),
                |cache| cache.as_ref().map(RedisUrl::to_string),
            )
            .compared_by(|cache| cache.as_ref().map(|cache| cache.expose().to_owned()))
            .at_start(),
            "redis://cache.internal";
        /// with a Postgres: a small file of this gateway alone, in which it keeps its last
        /// acknowledged writes, so that it notices at its start that the database was restored while
        /// it was stopped; see [operations.md](operations.md#restoring-a-backup). Where the variable
        /// `STATE_DIRECTORY` is set, as systemd does, the default is `high-water` in there
        high_water_file: Option<PathBuf> = none, new_file().at_start(), "high-water";
        /// where request bodies over `body_memory_bytes_max` are written while they are buffered, in
        /// files without a name. Not on the disk of an embedded store, which takes no new keys when
        /// that is full: a start warns if bodies could take half of what is free there
        spill_directory: Option<PathBuf>
            = words "the system's directory for temporary files: `TMPDIR`, or `/tmp`",
            directory().at_start(),
            "/var/tmp";
        /// who is asking, see [principals.md](principals.md): `digest:FIELD`, `cookie:NAME`,
        /// `header:FIELD`, `jwt:CLAIM`, `forward-auth:URL` or `none`; or a list, of which the first
        /// says who is asking and the others divide that caller's records. Two principals never
        /// share a record
        principal: PrincipalSources = is "digest:authorization",
            texts(principals::sources, |sources| Some(sources.to_string()))
                .compared_by(|sources| Some(sources.expose())),
            "[\"digest:authorization\", \"header:stripe-account\"]";
        /// exact names of header fields that identify nobody, or `query:NAME` for a query parameter,
        /// besides [those that are known to](principals.md#anonymous-requests). A guarded request
        /// without a credential and with any other field gets 400 `principal-missing`
        anonymous_fields: Vec<AnonymousField> = none,
            texts(|value, _| parse_texts("x-tenant-hint", AnonymousField::from_str, value), list),
            "[\"x-tenant-hint\"]";
        /// sets apart the keys of services that share a store. Changing it forgets every key
        namespace: String = is "default", text(checks::namespace), "payments";
        /// addresses of peers, or ranges of them, whose `Forwarded` and `X-Forwarded-*` are believed
        /// and added to, and who may name the caller where the principal is `header:NAME`; those of
        /// others are replaced or taken off
        trusted_proxies: Vec<Network> = none, value(Kind::List, networks, list),
            "[\"10.0.0.7\", \"fd00::/8\"]";
    }
    and {
        /// How its token is verified, where the source is `jwt`.
        jwt: Option<Jwt>,
        /// How the other service is asked, where the source is `forward-auth`.
        forward_auth: Option<ForwardAuth>,
        /// How webhooks that come in are verified, where the source is `standard-webhooks`.
        standard_webhooks: Option<StandardWebhooks>,
        /// The service behind.
        upstream: Upstream,
        /// What the gateway shows to clients, if it speaks TLS with them.
        tls: Option<Tls>,
        /// How long anybody may take.
        timeouts: Timeouts,
        /// How much of anything there may be.
        limits: Limits,
        /// How to stop.
        drain: Drain,
        /// Who is told of unknown outcomes.
        on_unknown: Option<OnUnknown>,
        /// What each route promises: the first that matches counts. After the last stands,
        /// unwritten, one for every path.
        routes: Vec<Route>,
        /// Where messages are published.
        relays: Vec<Relay>,
        /// What that last one promises.
        defaults: hapax::Policy,
        /// Whom it asks: see [`Route::probe`].
        probe: Option<http::uri::PathAndQuery>,
    }
}

settings! {
    /// The service behind the gateway.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Upstream {
        /// scheme, host and port of the service. No path: requests keep theirs. Also as `--upstream`
        url: http::Uri = flagged, text(upstream_url), "http://127.0.0.1:3000";
        /// `auto`: over TLS what both prefer, else HTTP/1.1; `http1`; `http2`, without TLS by prior
        /// knowledge
        protocol: Protocol = is "auto",
            choice(&["auto", "http1", "http2"], Protocol::from_str, |protocol| {
                Some(protocol.word().to_owned())
            }),
            "http2";
        /// authorities in PEM that are believed besides the system's. For `https`
        ca_file: Option<PathBuf> = none, file(), "ca.pem";
        /// connections that may be open to it. A request that finds none free within `connect` was
        /// never dispatched. A quarter of them, rounded up, is for guarded requests alone
        connections_max: usize = is "1024", count(1, 1_000_000), "64";
        /// of these, connections that the unguarded requests and tunnels of one client address may
        /// use at the same time; one that finds none free within `connect` gets 503 `upstream-busy`.
        /// Over HTTP/2, streams, and half of those that the service takes. Behind a load balancer
        /// that is not in `trusted_proxies` all clients have one address
        unguarded_per_peer_max: Option<usize> = words "half of `connections_max`",
            count(1, 1_000_000), "64";
        /// tunnels (WebSocket) at the same time, of which one client address may have half; over it
        /// 503 `upstream-busy`, at once
        tunnels_max: Option<usize> = words "half of `connections_max`", count(1, 1_000_000), "100";
        /// how long an unused connection is kept
        idle_max: Duration = is "60s", up_to_a_day(), "30s";
        /// how long a connection may have been unused for a guarded request. Keep it shorter than
        /// the service's own patience (gunicorn 2 s, Node 5 s): a service that closes as the request
        /// is sent leaves an unknown. `0s` takes a fresh connection each time
        reuse_max: Duration = is "1s", up_to_a_day(), "500ms";
    }
}

settings! {
    /// What the gateway shows to clients. Both in PEM.
    #[derive(Clone, Debug)]
    pub struct Tls {
        /// the certificate, and those that vouch for it
        certificate: PathBuf = required, file(), "certificate.pem";
        /// its private key
        key: PathBuf = required, file(), "key.pem";
    }
}

settings! {
    /// How long anybody may take.
    #[derive(Clone, Copy, Debug)]
    pub struct Timeouts {
        /// from a client's connection to its first byte
        first_byte: Duration = is "10s", timeout(), "15s";
        /// from beginning to agree on TLS to having agreed
        handshake: Duration = is "10s", timeout(), "15s";
        /// from the first byte of a request's head to its last
        header: Duration = is "10s", timeout(), "15s";
        /// from one request to the next on the same connection
        keep_alive: Duration = is "75s", timeout(), "15s";
        /// from one bit of progress to the next, of a client that sends a body or takes an answer
        stall: Duration = is "20s", timeout(), "15s";
        /// from wanting a connection to the upstream to having it, TLS included. Past it nothing was
        /// dispatched, and a retry is safe
        connect: Duration = is "5s", timeout(), "15s";
        // Longer than the longest attempt: one that is given up at five minutes may still end, and
        // resolve its record.
        /// from the last byte of a request to the head of the answer, and from one part of the
        /// answer to the next. Past it the outcome is unknown
        answer: Duration = is "10m", timeout(), "15s";
        // Longer than the pings of WebSocket libraries are apart, which is a minute at most as a
        // rule.
        /// from one byte through a tunnel (WebSocket), either way, to the next. Past it the tunnel
        /// is closed
        tunnel_idle: Duration = is "5m", timeout(), "15s";
    }
}

settings! {
    /// How much of anything there may be.
    #[derive(Clone, Copy, Debug)]
    pub struct Limits {
        /// connections of clients
        connections_max: usize = is "20000", count(1, 1_000_000), "5000";
        /// of these, such as have not sent a byte; over it the oldest is closed
        silent_connections_max: usize
            = usual "4096" "4096, or `connections_max` if that is less",
            count(1, 1_000_000), "1000";
        // Under the first, hyper has no room to read into; over the second, a head alone would be a
        // way to fill the memory.
        /// bytes of a request's head; 8 KiB to 1 MiB
        header_bytes_max: usize = is "32KiB", size(8 << 10, 1 << 20), "16KiB";
        /// fields of a request's head
        header_fields_max: usize = is "100", count(1, 10_000), "50";
        /// streams of one HTTP/2 connection
        streams_max: u32 = is "128", count(1, 10_000), "32";
        /// attempts at the same time; a new key over it gets 429 `too-many-keys`
        attempts_in_flight_max: usize = is "10000", count(1, 1_000_000).at_start(), "500";
        /// *at least* so many bytes a second from or to a client, on the average of each `stall`; 0
        /// for any
        rate_min: u64 = is "128", size(0, 1 << 30), "1KiB";
        /// live records of one principal; a new key over it gets 429 `quota-reached`, replays stay
        /// free
        records_per_principal_max: Option<u64> = none, count(1, 1_000_000_000), "100000";
        /// bytes of kept answers of one principal; a new key over it gets 429 `quota-reached`,
        /// replays stay free
        bytes_per_principal_max: Option<u64> = none, size(1, 1 << 50), "64MiB";
        /// records in the store, of all nodes; the last tenth is for principals who have records. A
        /// new key over it gets 429 `quota-reached`, replays stay free
        records_max: u64 = is "10000000", count(10, 1_000_000_000), "1000000";
        /// of these, records kept for ten minutes because the service answered 401 or 403; over it,
        /// unknown callers of a client that made a hundredth of them get 429 `too-many-keys`
        refused_records_max: u64 = is "100000", count(1, 1_000_000_000), "10000";
        /// values that `velocity` counts at the same time, in memory; over it a new value is refused
        /// rather than an old one forgotten
        velocity_entries_max: usize = is "100000", count(1, 100_000_000).at_start(), "10000";
        /// bytes of guarded requests' bodies in memory; one that finds no room gets 503
        /// `buffer-full`, before it is read if it says its length
        buffered_memory_bytes_max: u64 = is "256MiB", size(0, 1 << 50).at_start(), "1GiB";
        /// the same for one client address: at least the largest `body_memory_bytes_max` of a route
        buffered_memory_bytes_per_peer_max: Option<u64>
            = words "a quarter of `buffered_memory_bytes_max`",
            size(0, 1 << 50).at_start(), "128MiB";
        /// bytes of guarded requests' bodies in `spill_directory`; over it 503 `buffer-full`
        /// likewise
        buffered_disk_bytes_max: u64 = is "4GiB", size(0, 1 << 50).at_start(), "16GiB";
        /// the same for one client address: at least the largest `body_bytes_max` of a route
        buffered_disk_bytes_per_peer_max: Option<u64>
            = words "a quarter of `buffered_disk_bytes_max`",
            size(0, 1 << 50).at_start(), "2GiB";
    }
}

settings! {
    /// How to stop.
    #[derive(Clone, Copy, Debug)]
    pub struct Drain {
        /// from turning readiness off to taking no more connections: as long as load balancers take
        /// to notice
        notice: Duration = is "2s", up_to_a_day(), "15s";
        /// how long attempts may take to end after that, before they are held as unknown
        deadline: Duration = is "30s", up_to_a_day(), "1m";
    }
}

macro_rules! defaults_as_declared {
    ($($Struct:ident)*) => {$(
        impl Default for $Struct {
            fn default() -> Self {
                Self::read(None)
            }
        }
    )*};
}
defaults_as_declared!(Config Upstream Timeouts Limits Drain);
