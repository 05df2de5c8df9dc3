//! The cells of the table: what is measured, and the targets.

use uuid::Uuid;

use crate::Error;
use crate::client::Keys;
use crate::redis::Fsync;

use super::restate::Setting;

/// The number of keys to replay for [`Traffic::Few`].
const FEW: usize = 1_000;
/// The least number of keys to replay for [`Traffic::Many`]: their answers exceed the 64 MiB that
/// the gateway keeps in memory.
const MANY: usize = 200_000;
/// The number of keys for [`Traffic::FirstTime`], and how many of them warm the node up. The
/// measurement ends when there are no more.
const FIRST_TIME: usize = 100_000;
const FIRST_TIME_WARM_UP: usize = 10_000;

/// The systems to measure. In each repetition each is started once, in this order, for all its
/// cells.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Peer {
    Nginx,
    HapaxMemory,
    HapaxSqlite,
    HapaxPostgres,
    HapaxRedis(Fsync),
    /// Redis over Postgres.
    HapaxTier,
    /// Two nodes on one store: the first runs the keys, the second is measured.
    HapaxSecond(Shared),
    AxumIdempotent,
    Dbos,
    Restate(Setting),
}

/// A store that nodes can share.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Shared {
    Postgres,
    Redis,
    /// Redis over Postgres.
    Tier,
}

impl Peer {
    pub(super) fn is_hapax(self) -> bool {
        matches!(
            self,
            Peer::HapaxMemory
                | Peer::HapaxSqlite
                | Peer::HapaxPostgres
                | Peer::HapaxRedis(_)
                | Peer::HapaxTier
                | Peer::HapaxSecond(_)
        )
    }

    pub(super) fn is_restate(self) -> bool {
        matches!(self, Peer::Restate(_))
    }

    /// Whether it keeps its answers in Postgres.
    pub(super) fn is_on_postgres(self) -> bool {
        matches!(
            self,
            Peer::HapaxPostgres
                | Peer::HapaxTier
                | Peer::HapaxSecond(Shared::Postgres | Shared::Tier)
                | Peer::AxumIdempotent
                | Peer::Dbos
        )
    }

    /// Whether it keeps answers, or copies of them, in Redis.
    pub(super) fn is_on_redis(self) -> bool {
        matches!(
            self,
            Peer::HapaxRedis(_) | Peer::HapaxTier | Peer::HapaxSecond(Shared::Redis | Shared::Tier)
        )
    }

    /// Whether it answers by itself, without the upstream.
    pub(super) fn has_own_service(self) -> bool {
        matches!(
            self,
            Peer::AxumIdempotent | Peer::Dbos | Peer::Restate(Setting::Installed)
        )
    }
}

pub(super) const PEERS: [Peer; 14] = [
    Peer::Nginx,
    Peer::HapaxMemory,
    Peer::HapaxSqlite,
    Peer::HapaxPostgres,
    Peer::HapaxRedis(Fsync::Everysec),
    Peer::HapaxRedis(Fsync::Always),
    Peer::HapaxTier,
    Peer::HapaxSecond(Shared::Postgres),
    Peer::HapaxSecond(Shared::Redis),
    Peer::HapaxSecond(Shared::Tier),
    Peer::AxumIdempotent,
    Peer::Dbos,
    Peer::Restate(Setting::Installed),
    Peer::Restate(Setting::Tuned),
];

/// The requests to send.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Traffic {
    WithoutKey,
    Fresh,
    /// A few keys repeatedly: all their answers are in memory.
    Few,
    /// Many keys in random order: more answers than memory holds.
    Many,
    /// Each key once, to a node that has not seen it before: another one has run it.
    FirstTime,
}

impl Traffic {
    /// How many keys must have been answered before.
    pub(super) fn known(self) -> usize {
        match self {
            Traffic::WithoutKey | Traffic::Fresh => 0,
            Traffic::Few => FEW,
            Traffic::Many => MANY,
            Traffic::FirstTime => FIRST_TIME,
        }
    }

    /// The keys to send, out of those that were answered before.
    pub(super) fn keys(self, made: &[Uuid]) -> Keys {
        match self {
            Traffic::WithoutKey | Traffic::Fresh => Keys::Fresh,
            Traffic::Few => Keys::last(made, FEW),
            Traffic::Many => Keys::Again(in_no_order(made)),
            Traffic::FirstTime => Keys::Once(made[FIRST_TIME_WARM_UP.min(made.len())..].to_vec()),
        }
    }

    /// The keys to send before, while nothing is measured.
    pub(super) fn keys_to_warm_up(self, made: &[Uuid]) -> Keys {
        match self {
            Traffic::FirstTime => Keys::Once(made[..FIRST_TIME_WARM_UP.min(made.len())].to_vec()),
            _ => self.keys(made),
        }
    }

    /// Whether the keys were answered before.
    pub(super) fn replays(self) -> bool {
        matches!(self, Traffic::Few | Traffic::Many | Traffic::FirstTime)
    }
}

/// Sorts the keys. They are random, so their sorted order is unrelated to the order in which they
/// were stored.
fn in_no_order(keys: &[Uuid]) -> Vec<Uuid> {
    let mut keys = keys.to_vec();
    keys.sort_unstable();
    keys
}

/// One row of the table.
#[derive(Clone, Copy)]
pub(super) struct Cell {
    /// The name for `--only`.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) peer: Peer,
    pub(super) connections: usize,
    pub(super) traffic: Traffic,
    /// The least rate, as a share of nginx's.
    pub(super) of_nginx_min: Option<f64>,
    /// The largest p99, as a multiple of nginx's.
    pub(super) p99_max: Option<f64>,
}

const fn cell(
    name: &'static str,
    title: &'static str,
    peer: Peer,
    connections: usize,
    traffic: Traffic,
) -> Cell {
    Cell {
        name,
        title,
        peer,
        connections,
        traffic,
        of_nginx_min: None,
        p99_max: None,
    }
}

impl Cell {
    const fn at_least(self, of_nginx_min: f64) -> Cell {
        Cell {
            of_nginx_min: Some(of_nginx_min),
            ..self
        }
    }

    const fn p99_at_most(self, p99_max: f64) -> Cell {
        Cell {
            p99_max: Some(p99_max),
            ..self
        }
    }
}

const INSTALLED: Peer = Peer::Restate(Setting::Installed);
const TUNED: Peer = Peer::Restate(Setting::Tuned);

pub(super) static CELLS: [Cell; 27] = [
    cell(
        "nginx",
        "nginx, plain proxy",
        Peer::Nginx,
        64,
        Traffic::Fresh,
    ),
    cell(
        "nginx-256",
        "nginx, plain proxy",
        Peer::Nginx,
        256,
        Traffic::Fresh,
    ),
    cell(
        "unguarded",
        "hapax, no key",
        Peer::HapaxMemory,
        64,
        Traffic::WithoutKey,
    )
    .at_least(0.9),
    cell(
        "memory",
        "hapax in memory, fresh keys",
        Peer::HapaxMemory,
        64,
        Traffic::Fresh,
    ),
    cell(
        "sqlite",
        "hapax on SQLite, fresh keys",
        Peer::HapaxSqlite,
        64,
        Traffic::Fresh,
    )
    .at_least(0.45)
    .p99_at_most(3.0),
    cell(
        "sqlite-256",
        "hapax on SQLite, fresh keys",
        Peer::HapaxSqlite,
        256,
        Traffic::Fresh,
    )
    .at_least(0.55)
    .p99_at_most(3.0),
    cell(
        "replays",
        "hapax on SQLite, replays of few keys",
        Peer::HapaxSqlite,
        64,
        Traffic::Few,
    )
    .at_least(1.4),
    cell(
        "replays-many",
        "hapax on SQLite, replays of many keys",
        Peer::HapaxSqlite,
        64,
        Traffic::Many,
    ),
    cell(
        "postgres",
        "hapax on Postgres, fresh keys",
        Peer::HapaxPostgres,
        64,
        Traffic::Fresh,
    )
    .at_least(0.37),
    cell(
        "postgres-256",
        "hapax on Postgres, fresh keys",
        Peer::HapaxPostgres,
        256,
        Traffic::Fresh,
    ),
    cell(
        "redis",
        "hapax on Redis, everysec, fresh keys",
        Peer::HapaxRedis(Fsync::Everysec),
        64,
        Traffic::Fresh,
    )
    .at_least(0.35),
    cell(
        "redis-256",
        "hapax on Redis, everysec, fresh keys",
        Peer::HapaxRedis(Fsync::Everysec),
        256,
        Traffic::Fresh,
    ),
    cell(
        "redis-replays",
        "hapax on Redis, replays of few keys",
        Peer::HapaxRedis(Fsync::Everysec),
        64,
        Traffic::Few,
    ),
    cell(
        "redis-always",
        "hapax on Redis, always, fresh keys",
        Peer::HapaxRedis(Fsync::Always),
        64,
        Traffic::Fresh,
    ),
    cell(
        "tier",
        "hapax on Redis over Postgres, fresh keys",
        Peer::HapaxTier,
        64,
        Traffic::Fresh,
    ),
    cell(
        "tier-replays",
        "hapax on Redis over Postgres, replays of few keys",
        Peer::HapaxTier,
        64,
        Traffic::Few,
    ),
    cell(
        "elsewhere-postgres",
        "hapax on Postgres, first replays on another node",
        Peer::HapaxSecond(Shared::Postgres),
        64,
        Traffic::FirstTime,
    ),
    cell(
        "elsewhere-redis",
        "hapax on Redis, first replays on another node",
        Peer::HapaxSecond(Shared::Redis),
        64,
        Traffic::FirstTime,
    ),
    cell(
        "elsewhere-tier",
        "hapax on Redis over Postgres, first replays on another node",
        Peer::HapaxSecond(Shared::Tier),
        64,
        Traffic::FirstTime,
    )
    .at_least(0.8),
    cell(
        "axum-idempotent",
        "axum-idempotent on Postgres, fresh keys",
        Peer::AxumIdempotent,
        64,
        Traffic::Fresh,
    ),
    cell(
        "dbos",
        "DBOS on Postgres, fresh keys",
        Peer::Dbos,
        64,
        Traffic::Fresh,
    ),
    cell(
        "restate",
        "Restate as installed, fresh keys",
        INSTALLED,
        64,
        Traffic::Fresh,
    ),
    cell(
        "restate-256",
        "Restate as installed, fresh keys",
        INSTALLED,
        256,
        Traffic::Fresh,
    ),
    cell(
        "restate-replays",
        "Restate as installed, replays of few keys",
        INSTALLED,
        64,
        Traffic::Few,
    ),
    cell(
        "restate-tuned",
        "Restate tuned, fresh keys",
        TUNED,
        64,
        Traffic::Fresh,
    ),
    cell(
        "restate-tuned-256",
        "Restate tuned, fresh keys",
        TUNED,
        256,
        Traffic::Fresh,
    ),
    cell(
        "restate-tuned-replays",
        "Restate tuned, replays of few keys",
        TUNED,
        64,
        Traffic::Few,
    ),
];

/// How many times the rate of the second cell the first should reach: on fresh keys, in one run.
pub(super) const TIMES: [(&str, &str, f64); 4] = [
    ("sqlite", "restate", 10.0),
    ("sqlite", "restate-tuned", 5.0),
    ("postgres", "axum-idempotent", 5.0),
    ("postgres", "dbos", 10.0),
];

/// The names of the rows on Postgres, for [`wanted`].
pub(super) const ON_POSTGRES: &str = "postgres,axum-idempotent,dbos";

/// The names of the rows on Redis and on Redis over Postgres, and of the one to compare them with.
pub(super) const ON_REDIS: &str = "redis,tier,elsewhere";

/// The cells whose names begin with one of these, and the nginx cells with the same number of
/// connections.
pub(super) fn wanted(names: &str) -> Result<Vec<&'static Cell>, Error> {
    let names: Vec<_> = names.split(',').filter(|name| !name.is_empty()).collect();
    let known = |name: &str| CELLS.iter().any(|cell| cell.name.starts_with(name));
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        let all: Vec<_> = CELLS.iter().map(|cell| cell.name).collect();
        return Err(format!(
            "no row's name begins with {unknown:?}: there are {}",
            all.join(", ")
        )
        .into());
    }
    let named =
        |cell: &Cell| names.is_empty() || names.iter().any(|name| cell.name.starts_with(name));
    let compared = |cell: &Cell| {
        CELLS
            .iter()
            .any(|other| other.connections == cell.connections && named(other))
    };
    Ok(CELLS
        .iter()
        .filter(|cell| named(cell) || cell.peer == Peer::Nginx && compared(cell))
        .collect())
}
