//! The stores that copies read from and write to, of every kind.

use std::path::PathBuf;
use std::sync::Arc;

use hapax::core::{Memory, Store, Transfer};
use hapax::store::copy::{self, Copied, CopyError, End, Step};
use hapax::store::postgres::{ConnectOptions, Mover, schema};
use hapax::{Postgres, Sqlite};
use hapax_testkit::servers;
use tempfile::TempDir;

/// A store that can be opened repeatedly, by a copy or by a node.
pub enum Place {
    Memory(Arc<Memory>),
    Sqlite(PathBuf),
    Postgres(String),
}

/// The kinds of stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Memory,
    Sqlite,
    Postgres,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Memory, Kind::Sqlite, Kind::Postgres];
}

/// Creates stores, in a directory that lives as long as the test.
pub struct World {
    directory: TempDir,
}

impl World {
    pub fn new() -> World {
        World {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    /// An empty store of this kind with its own name. `None`, after printing why, if there is no
    /// Postgres server.
    pub async fn place(&self, kind: Kind, name: &str) -> Option<Place> {
        match kind {
            Kind::Memory => Some(Place::Memory(Arc::new(hapax::store::memory()))),
            Kind::Sqlite => Some(Place::Sqlite(self.directory.path().join(name))),
            Kind::Postgres => {
                let url = servers::Postgres::shared()?.database();
                let connection = ConnectOptions::parse(&url).unwrap();
                schema::migrate(&connection, &schema::migrations(), |_| {})
                    .await
                    .unwrap();
                Some(Place::Postgres(url))
            }
        }
    }
}

impl Place {
    /// The address by which a child process finds the store; [`Place::at`] is the reverse.
    pub fn url(&self) -> String {
        match self {
            Place::Memory(_) => "memory:".to_owned(),
            Place::Sqlite(path) => format!("sqlite:{}", path.display()),
            Place::Postgres(url) => url.clone(),
        }
    }

    pub fn at(url: &str) -> Place {
        match url.split_once(':').unwrap() {
            ("sqlite", path) => Place::Sqlite(path.into()),
            ("postgres", _) => Place::Postgres(url.to_owned()),
            _ => panic!("no place for another process: {url}"),
        }
    }

    pub async fn open_to_copy(&self) -> Arc<dyn Transfer> {
        match self {
            Place::Memory(memory) => memory.clone(),
            Place::Sqlite(path) => Arc::new(Sqlite::open_to_copy(path).await.unwrap()),
            Place::Postgres(url) => Arc::new(
                Mover::open(&ConnectOptions::parse(url).unwrap())
                    .await
                    .unwrap(),
            ),
        }
    }

    /// Opens the store as a node would. The error is the text of the open error.
    pub async fn open(&self) -> Result<Arc<dyn Store>, String> {
        match self {
            Place::Memory(memory) => Ok(memory.clone()),
            Place::Sqlite(path) => match Sqlite::open(path).await {
                Ok(store) => Ok(Arc::new(store)),
                Err(error) => Err(error.to_string()),
            },
            Place::Postgres(url) => match Postgres::open(url).await {
                Ok(store) => Ok(Arc::new(store)),
                Err(error) => Err(error.to_string()),
            },
        }
    }
}

/// Copies one store into the other.
pub async fn copy(from: &Place, to: &Place) -> Result<Copied, CopyError> {
    copy_told(from, to, |_| {}).await
}

pub async fn copy_told(
    from: &Place,
    to: &Place,
    told: impl FnMut(Step),
) -> Result<Copied, CopyError> {
    let (source, target) = (from.open_to_copy().await, to.open_to_copy().await);
    let (from_name, to_name) = (from.url(), to.url());
    copy::copy(
        End::new(&from_name, &*source),
        End::new(&to_name, &*target),
        told,
    )
    .await
}

pub async fn give_up(from: &Place, to: &Place) -> Result<(), CopyError> {
    let (source, target) = (from.open_to_copy().await, to.open_to_copy().await);
    let (from_name, to_name) = (from.url(), to.url());
    copy::give_up(End::new(&from_name, &*source), End::new(&to_name, &*target)).await
}
