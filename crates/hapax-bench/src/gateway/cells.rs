//! The cells of the table: what is measured, and the targets.

use uuid::Uuid;

use crate::Error;
use crate::client::Keys;

use super::restate::Setting;

/// The number of keys to replay for [`Traffic::Few`].
const FEW: usize = 1_000;
/// The least number of keys to replay for [`Traffic::Many`]: their answers exceed the 64 MiB that
/// the gateway keeps in memory.
const MANY: usize = 200_000;

/// The systems to measure. In each repetition each is started once, in this order, for all its
/// cells.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Peer {
    Nginx,
    HapaxMemory,
    HapaxSqlite,
    HapaxPostgres,
    AxumIdempotent,
    Dbos,
    Restate(Setting),
}

impl Peer {
    pub(super) fn is_hapax(self) -> bool {
        matches!(
            self,
            Peer::HapaxMemory | Peer::HapaxSqlite | Peer::HapaxPostgres
        )
    }

    pub(super) fn is_restate(self) -> bool {
        matches!(self, Peer::Restate(_))
    }

    /// Whether it keeps its answers in Postgres.
    pub(super) fn is_on_postgres(self) -> bool {
        matches!(
            self,
            Peer::HapaxPostgres | Peer::AxumIdempotent | Peer::Dbos
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

pub(super) const PEERS: [Peer; 8] = [
    Peer::Nginx,
    Peer::HapaxMemory,
    Peer::HapaxSqlite,
    Peer::HapaxPostgres,
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
}

impl Traffic {
    /// How many keys must have been answered before.
    pub(super) fn known(self) -> usize {
        match self {
            Traffic::WithoutKey | Traffic::Fresh => 0,
            Traffic::Few => FEW,
            Traffic::Many => MANY,
        }
    }

    /// The keys to send, out of those that were answered before.
    pub(super) fn keys(self, made: &[Uuid]) -> Keys {
        match self {
            Traffic::WithoutKey | Traffic::Fresh => Keys::Fresh,
            Traffic::Few => Keys::last(made, FEW),
            Traffic::Many => Keys::Again(in_no_order(made)),
        }
    }

    /// Whether the keys were answered before.
    pub(super) fn replays(self) -> bool {
        matches!(self, Traffic::Few | Traffic::Many)
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

pub(super) static CELLS: [Cell; 18] = [
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
