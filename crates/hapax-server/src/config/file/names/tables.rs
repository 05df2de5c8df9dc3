//! The sections.

use super::Names;
use super::kind::Fallback::{Is, Nothing, Required, Words};
use super::kind::{Kind, Setting, TIMEOUT, UP_TO_A_DAY, count, size};
use super::policy::POLICY;
use super::principals::{FORWARD_AUTH, JWT};

/// In the order in which they are shown.
pub(crate) const ALL: [&Names; 10] = [
    &TOP,
    &JWT,
    &FORWARD_AUTH,
    &UPSTREAM,
    &TLS,
    &TIMEOUTS,
    &LIMITS,
    &DRAIN,
    &DEFAULTS,
    &ROUTES,
];

pub(crate) static TOP: Names = Names {
    section: "",
    header: "",
    about: "What stands before the first section. `--listen`, `--admin`, `--store` and `--principal` are the same as flags.",
    groups: &[TOP_SETTINGS, SECTIONS],
};

const TOP_SETTINGS: &[Setting] = &[
    Setting {
        name: "listen",
        kind: Kind::Text,
        fallback: Is("127.0.0.1:4000"),
        example: "0.0.0.0:8080",
        means: "where clients connect; port 0 takes a free one",
    },
    Setting {
        name: "admin",
        kind: Kind::Text,
        fallback: Is("127.0.0.1:4001"),
        example: "off",
        means: "where operators ask for health, readiness, metrics and keys, see [admin.md](admin.md); beyond loopback only with `admin_token`; `off` for nowhere",
    },
    Setting {
        name: "admin_token",
        kind: Kind::Secret {
            file: "admin_token_file",
        },
        fallback: Nothing,
        example: "a-token-of-16-bytes-or-more",
        means: "what operators present as a bearer token, 16 bytes or more. Without it whoever reaches the admin listener is one",
    },
    Setting {
        name: "settle_token",
        kind: Kind::Secret {
            file: "settle_token_file",
        },
        fallback: Nothing,
        example: "another-token-of-16-bytes-or-more",
        means: "what the service's own reconciliation job presents, which may settle what is unknown and nothing else",
    },
    Setting {
        name: "access_log",
        kind: Kind::Choice(&["all", "notable", "off"]),
        fallback: Is("notable"),
        example: "all",
        means: "which requests have a line in the [access log](operations.md#the-access-log): `all`; `notable`, all but those that were passed on without a guard and \
                answered by the service with less than 500; `off`, none",
    },
    Setting {
        name: "store",
        kind: Kind::Text,
        fallback: Is("sqlite:hapax.db"),
        example: "postgres://hapax@db.internal/hapax",
        means: "`sqlite:FILE`, see [store.md](store.md); `postgres://USER@HOST/DATABASE` for several nodes, see [postgres.md](postgres.md); `memory:` forgets \
                everything when the program ends",
    },
    Setting {
        name: "high_water_file",
        kind: Kind::Path,
        fallback: Nothing,
        example: "high-water",
        means: "with a Postgres: a small file of this gateway alone, in which it keeps its last acknowledged writes, so that it notices at its start that the \
                database was restored while it was stopped; see [operations.md](operations.md#restoring-a-backup). Where the variable `STATE_DIRECTORY` is set, as systemd \
                does, the default is `high-water` in there",
    },
    Setting {
        name: "spill_directory",
        kind: Kind::Path,
        fallback: Words("the system's directory for temporary files: `TMPDIR`, or `/tmp`"),
        example: "/var/tmp",
        means: "where request bodies over `body_memory_bytes_max` are written while they are buffered, in files without a name. Not on the disk of an \
                embedded store, which takes no new keys when that is full: a start warns if bodies could take half of what is free there",
    },
    Setting {
        name: "principal",
        kind: Kind::TextOrList,
        fallback: Is("digest:authorization"),
        example: "[\"digest:authorization\", \"header:stripe-account\"]",
        means: "who is asking, see [principals.md](principals.md): `digest:FIELD`, `cookie:NAME`, `header:FIELD`, `jwt:CLAIM`, `forward-auth:URL` or `none`; or a list, of which \
                the first says who is asking and the others divide that caller's records. Two principals never share a record",
    },
    Setting {
        name: "anonymous_fields",
        kind: Kind::TextOrList,
        fallback: Nothing,
        example: "[\"x-tenant-hint\"]",
        means: "exact names of header fields that identify nobody, or `query:NAME` for a query parameter, besides [those that are known to](principals.md#anonymous-requests). \
                A guarded request without a credential and with any other field gets 400 `principal-missing`",
    },
    Setting {
        name: "namespace",
        kind: Kind::Text,
        fallback: Is("default"),
        example: "payments",
        means: "sets apart the keys of services that share a store. Changing it forgets every key",
    },
    Setting {
        name: "trusted_proxies",
        kind: Kind::List,
        fallback: Nothing,
        example: "[\"10.0.0.7\", \"fd00::/8\"]",
        means: "addresses of peers, or ranges of them, whose `Forwarded` and `X-Forwarded-*` are believed and added to, and who may name the caller where the \
                principal is `header:NAME`; those of others are replaced or taken off",
    },
];

const SECTIONS: &[Setting] = &[
    section(&JWT, Nothing),
    section(&FORWARD_AUTH, Nothing),
    section(&UPSTREAM, Required),
    section(&TLS, Nothing),
    section(&TIMEOUTS, Nothing),
    section(&LIMITS, Nothing),
    section(&DRAIN, Nothing),
    section(&DEFAULTS, Nothing),
    Setting {
        name: ROUTES.section,
        kind: Kind::Sections(&ROUTES),
        fallback: Nothing,
        example: "",
        means: "",
    },
];

const fn section(names: &'static Names, fallback: super::Fallback) -> Setting {
    Setting {
        name: names.section,
        kind: Kind::Section(names),
        fallback,
        example: "",
        means: "",
    }
}

pub(crate) static UPSTREAM: Names = Names {
    section: "upstream",
    header: "[upstream]",
    about: "The service behind the gateway.",
    groups: &[&[
        Setting {
            name: "url",
            kind: Kind::Text,
            fallback: Required,
            example: "http://127.0.0.1:3000",
            means: "scheme, host and port of the service. No path: requests keep theirs. Also as `--upstream`",
        },
        Setting {
            name: "protocol",
            kind: Kind::Choice(&["auto", "http1", "http2"]),
            fallback: Is("auto"),
            example: "http2",
            means: "`auto`: over TLS what both prefer, else HTTP/1.1; `http1`; `http2`, without TLS by prior knowledge",
        },
        Setting {
            name: "ca_file",
            kind: Kind::Path,
            fallback: Nothing,
            example: "ca.pem",
            means: "authorities in PEM that are believed besides the system's. For `https`",
        },
        Setting {
            name: "connections_max",
            kind: count(1, 1_000_000),
            fallback: Is("1024"),
            example: "64",
            means: "connections that may be open to it. A request that finds none free within `connect` was never dispatched. A quarter of them, rounded \
                    up, is for guarded requests alone",
        },
        Setting {
            name: "unguarded_per_peer_max",
            kind: count(1, 1_000_000),
            fallback: Words("half of `connections_max`"),
            example: "64",
            means: "of these, connections that the unguarded requests and tunnels of one client address may use at the same time; one that finds none free within \
                    `connect` gets 503 `upstream-busy`. Over HTTP/2, streams, and half of those that the service takes. Behind a load balancer that is not in \
                    `trusted_proxies` all clients have one address",
        },
        Setting {
            name: "tunnels_max",
            kind: count(1, 1_000_000),
            fallback: Words("half of `connections_max`"),
            example: "100",
            means: "tunnels (WebSocket) at the same time, of which one client address may have half; over it 503 `upstream-busy`, at once",
        },
        Setting {
            name: "idle_max",
            kind: UP_TO_A_DAY,
            fallback: Is("60s"),
            example: "30s",
            means: "how long an unused connection is kept",
        },
        Setting {
            name: "reuse_max",
            kind: UP_TO_A_DAY,
            fallback: Is("1s"),
            example: "500ms",
            means: "how long a connection may have been unused for a guarded request. Keep it shorter than the service's own patience \
                    (gunicorn 2 s, Node 5 s): a service that closes as the request is sent leaves an unknown. `0s` takes a fresh connection each time",
        },
    ]],
};

pub(crate) static TLS: Names = Names {
    section: "tls",
    header: "[tls]",
    about: "With this section clients speak TLS with the gateway; without it they do not. Both files are PEM.",
    groups: &[&[
        Setting {
            name: "certificate",
            kind: Kind::Path,
            fallback: Required,
            example: "certificate.pem",
            means: "the certificate, and those that vouch for it",
        },
        Setting {
            name: "key",
            kind: Kind::Path,
            fallback: Required,
            example: "key.pem",
            means: "its private key",
        },
    ]],
};

pub(crate) static TIMEOUTS: Names = Names {
    section: "timeouts",
    header: "[timeouts]",
    about: "How long anybody may take: more than nothing, and at most a day.",
    groups: &[&[
        timeout(
            "first_byte",
            "10s",
            "from a client's connection to its first byte",
        ),
        timeout(
            "handshake",
            "10s",
            "from beginning to agree on TLS to having agreed",
        ),
        timeout(
            "header",
            "10s",
            "from the first byte of a request's head to its last",
        ),
        timeout(
            "keep_alive",
            "75s",
            "from one request to the next on the same connection",
        ),
        timeout(
            "stall",
            "20s",
            "from one bit of progress to the next, of a client that sends a body or takes an answer",
        ),
        timeout(
            "connect",
            "5s",
            "from wanting a connection to the upstream to having it, TLS included. Past it nothing was dispatched, and a retry is safe",
        ),
        timeout(
            "answer",
            "10m",
            "from the last byte of a request to the head of the answer, and from one part of the answer to the next. Past it the outcome is unknown",
        ),
        timeout(
            "tunnel_idle",
            "5m",
            "from one byte through a tunnel (WebSocket), either way, to the next. Past it the tunnel is closed",
        ),
    ]],
};

const fn timeout(name: &'static str, default: &'static str, means: &'static str) -> Setting {
    Setting {
        name,
        kind: TIMEOUT,
        fallback: Is(default),
        example: "15s",
        means,
    }
}

pub(crate) static LIMITS: Names = Names {
    section: "limits",
    header: "[limits]",
    about: "How much of anything there may be. Over a limit the new request is refused; a live record is never evicted.",
    groups: &[&[
        Setting {
            name: "connections_max",
            kind: count(1, 1_000_000),
            fallback: Is("20000"),
            example: "5000",
            means: "connections of clients",
        },
        Setting {
            name: "silent_connections_max",
            kind: count(1, 1_000_000),
            fallback: Words("4096, or `connections_max` if that is less"),
            example: "1000",
            means: "of these, such as have not sent a byte; over it the oldest is closed",
        },
        // Under the first, hyper has no room to read into; over the second, a head alone would be a
        // way to fill the memory.
        Setting {
            name: "header_bytes_max",
            kind: size(8 << 10, 1 << 20),
            fallback: Is("32KiB"),
            example: "16KiB",
            means: "bytes of a request's head; 8 KiB to 1 MiB",
        },
        Setting {
            name: "header_fields_max",
            kind: count(1, 10_000),
            fallback: Is("100"),
            example: "50",
            means: "fields of a request's head",
        },
        Setting {
            name: "streams_max",
            kind: count(1, 10_000),
            fallback: Is("128"),
            example: "32",
            means: "streams of one HTTP/2 connection",
        },
        Setting {
            name: "attempts_max",
            kind: count(1, 1_000_000),
            fallback: Is("10000"),
            example: "500",
            means: "attempts at the same time; a new key over it gets 429 `too-many-keys`",
        },
        Setting {
            name: "rate_min",
            kind: size(0, 1 << 30),
            fallback: Is("128"),
            example: "1KiB",
            means: "*at least* so many bytes a second from or to a client, on the average of each `stall`; 0 for any",
        },
        Setting {
            name: "records_per_principal_max",
            kind: count(1, 1_000_000_000),
            fallback: Nothing,
            example: "100000",
            means: "live records of one principal; a new key over it gets 429 `quota-reached`, replays stay free",
        },
        Setting {
            name: "bytes_per_principal_max",
            kind: size(1, 1 << 50),
            fallback: Nothing,
            example: "64MiB",
            means: "bytes of kept answers of one principal; a new key over it gets 429 `quota-reached`, replays stay free",
        },
        Setting {
            name: "records_max",
            kind: count(10, 1_000_000_000),
            fallback: Is("10000000"),
            example: "1000000",
            means: "records in the store, of all nodes; the last tenth is for principals who have records. A new key over it gets 429 `quota-reached`, replays stay free",
        },
        Setting {
            name: "refused_records_max",
            kind: count(1, 1_000_000_000),
            fallback: Is("100000"),
            example: "10000",
            means: "of these, records kept for ten minutes because the service answered 401 or 403; over it, unknown callers of a client that made a hundredth of them get 429 `too-many-keys`",
        },
        Setting {
            name: "velocity_entries_max",
            kind: count(1, 100_000_000),
            fallback: Is("100000"),
            example: "10000",
            means: "values that `velocity` counts at the same time, in memory; over it a new value is refused rather than an old one forgotten",
        },
        Setting {
            name: "buffered_memory_bytes_max",
            kind: size(0, 1 << 50),
            fallback: Is("256MiB"),
            example: "1GiB",
            means: "bytes of guarded requests' bodies in memory; one that finds no room gets 503 `buffer-full`, before it is read if it says its length",
        },
        Setting {
            name: "buffered_memory_bytes_per_peer_max",
            kind: size(0, 1 << 50),
            fallback: Words("a quarter of `buffered_memory_bytes_max`"),
            example: "128MiB",
            means: "the same for one client address: at least the largest `body_memory_bytes_max` of a route",
        },
        Setting {
            name: "buffered_disk_bytes_max",
            kind: size(0, 1 << 50),
            fallback: Is("4GiB"),
            example: "16GiB",
            means: "bytes of guarded requests' bodies in `spill_directory`; over it 503 `buffer-full` likewise",
        },
        Setting {
            name: "buffered_disk_bytes_per_peer_max",
            kind: size(0, 1 << 50),
            fallback: Words("a quarter of `buffered_disk_bytes_max`"),
            example: "2GiB",
            means: "the same for one client address: at least the largest `body_bytes_max` of a route",
        },
    ]],
};

pub(crate) static DRAIN: Names = Names {
    section: "drain",
    header: "[drain]",
    about: "What SIGTERM or SIGINT begins. A second one ends the program at once, with exit code 130.",
    groups: &[&[
        Setting {
            name: "notice",
            kind: UP_TO_A_DAY,
            fallback: Is("2s"),
            example: "15s",
            means: "from turning readiness off to taking no more connections: as long as load balancers take to notice",
        },
        Setting {
            name: "deadline",
            kind: UP_TO_A_DAY,
            fallback: Is("30s"),
            example: "1m",
            means: "how long attempts may take to end after that, before they are held as unknown",
        },
    ]],
};

pub(crate) static DEFAULTS: Names = Names {
    section: "defaults",
    header: "[defaults]",
    about: "What every route says that does not say otherwise, and the unwritten one after the last too: all settings of `[[routes]]` \
            but `name`, `method`, `path` and `principal`.",
    groups: &[POLICY],
};

pub(crate) static ROUTES: Names = Names {
    section: "routes",
    header: "[[routes]]",
    about: "Which requests, and what they are promised. The first route that matches counts. After the last stands, unwritten, one for every \
            path with what `[defaults]` says: POST and PATCH with a key are guarded. A route that no request can reach is refused.",
    groups: &[WHICH, POLICY],
};

const WHICH: &[Setting] = &[
    Setting {
        name: "name",
        kind: Kind::Text,
        fallback: Words("`method` and `path`"),
        example: "charges",
        means: "what metrics, `/.well-known/idempotency` and `hapax keys list --route` call it: letters, digits, `.`, `_` and `-`",
    },
    Setting {
        name: "method",
        kind: Kind::TextOrList,
        fallback: Words("all, of which POST and PATCH are guarded"),
        example: "POST",
        means: "a method or a list of them. One that is named is guarded, `PUT` for example",
    },
    Setting {
        name: "path",
        kind: Kind::Text,
        fallback: Required,
        example: "/v1/charges/{id}",
        means: "segments as they are, `{name}` or `*` for any one segment, and a last `**` for any rest. Compared as sent, without decoding",
    },
    Setting {
        name: "principal",
        kind: Kind::TextOrList,
        fallback: Words("the `principal` before the first section"),
        example: "cookie:session",
        means: "who is asking on this route, as the setting of the same name before the first section says it for all; see [principals.md](principals.md#per-route)",
    },
];
