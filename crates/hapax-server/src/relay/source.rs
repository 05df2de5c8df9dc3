//! The outbox that messages come from.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hapax::store::postgres::ConnectOptions;
use hapax_flow::inbox::{self, PostgresInbox, SqliteInbox};
use hapax_flow::outbox::operate::Operators;
use hapax_flow::outbox::{OutboxError, PostgresOutbox, SqliteOutbox};
use hapax_flow::publish::Publisher;
use hapax_flow::relay::{Counts, Options, Progress, Relay};
use tokio_util::sync::CancellationToken;

use crate::config::StoreUrl;

/// A database with an outbox.
#[derive(Clone)]
pub(crate) enum Source {
    Postgres(Box<ConnectOptions>),
    /// The user's own file.
    Sqlite(PathBuf),
}

impl Source {
    /// The outbox of a store.
    ///
    /// # Errors
    ///
    /// If this store has none, with the reason.
    pub(crate) fn of(store: &StoreUrl) -> Result<Source, String> {
        match store {
            StoreUrl::Postgres(url) => ConnectOptions::parse(url.expose())
                .map(|options| Source::Postgres(Box::new(options)))
                .map_err(|error| error.to_string()),
            StoreUrl::Sqlite(path) => check_file(path).map(|()| Source::Sqlite(path.clone())),
            StoreUrl::Redis(_) | StoreUrl::Memory => Err(format!(
                "{store} has no outbox, because no transaction of yours commits there: messages are in a Postgres (postgres://USER@HOST/DATABASE), or in your service's own SQLite file (sqlite:FILE)"
            )),
        }
    }

    /// Refuses a file without an outbox. A database that has none yet may get one.
    ///
    /// # Errors
    ///
    /// If it is a file without one, with the reason.
    pub(crate) async fn check(&self) -> Result<(), String> {
        let Source::Sqlite(path) = self else {
            return Ok(());
        };
        match self.operators().readers().await {
            Err(error @ OutboxError::Unusable(_)) => {
                Err(format!("store: {}: {error}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// The operators' side of the outbox, over a connection of its own.
    pub(crate) fn operators(&self) -> Arc<dyn Operators> {
        match self {
            Source::Postgres(options) => Arc::new(PostgresOutbox::new((**options).clone())),
            Source::Sqlite(path) => Arc::new(SqliteOutbox::new(path)),
        }
    }

    /// The operators' side of the inbox in the same database.
    pub(crate) fn inbox(&self) -> Arc<dyn inbox::Operators> {
        match self {
            Source::Postgres(options) => Arc::new(PostgresInbox::new((**options).clone())),
            Source::Sqlite(path) => Arc::new(SqliteInbox::new(path)),
        }
    }

    /// A relay to this destination, over a connection of its own.
    pub(super) fn relay(&self, publisher: Arc<dyn Publisher>, options: Options) -> AnyRelay {
        match self {
            Source::Postgres(database) => AnyRelay::Postgres(Relay::to(
                PostgresOutbox::new((**database).clone()),
                publisher,
                options,
            )),
            Source::Sqlite(path) => {
                AnyRelay::Sqlite(Relay::to(SqliteOutbox::new(path), publisher, options))
            }
        }
    }
}

/// A relay from either kind of database.
pub(super) enum AnyRelay {
    Postgres(Relay<PostgresOutbox>),
    Sqlite(Relay<SqliteOutbox>),
}

impl AnyRelay {
    pub(super) async fn run(&self, stop: CancellationToken) {
        match self {
            AnyRelay::Postgres(relay) => relay.run(stop).await,
            AnyRelay::Sqlite(relay) => relay.run(stop).await,
        }
    }

    pub(super) async fn run_once_until(
        &self,
        stop: &CancellationToken,
    ) -> Result<Counts, OutboxError> {
        match self {
            AnyRelay::Postgres(relay) => relay.run_once_until(stop).await,
            AnyRelay::Sqlite(relay) => relay.run_once_until(stop).await,
        }
    }

    pub(super) fn progress(&self) -> Arc<Progress> {
        match self {
            AnyRelay::Postgres(relay) => relay.progress(),
            AnyRelay::Sqlite(relay) => relay.progress(),
        }
    }
}

/// Where the header of a SQLite file has the number of its application, and that of the embedded
/// store.
const APPLICATION_AT: u64 = 68;
const EMBEDDED_STORE: [u8; 4] = *b"Hapx";

/// Refuses a file that cannot have an outbox.
fn check_file(path: &Path) -> Result<(), String> {
    let shown = path.display();
    let opened = File::open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!(
            "there is no file {shown}: name the SQLite file of your service, which it has opened as a Guest"
        ),
        _ => format!("{shown} cannot be read: {error}"),
    });
    let mut application = [0; 4];
    let mut file = opened?;
    let read = file
        .seek(SeekFrom::Start(APPLICATION_AT))
        .and_then(|_| file.read_exact(&mut application));
    if read.is_ok() && application == EMBEDDED_STORE {
        return Err(format!(
            "{shown} is the embedded store of a gateway, which has no outbox, because no transaction of yours commits there: messages are in a Postgres (postgres://USER@HOST/DATABASE), or in your service's own SQLite file (sqlite:FILE)"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_file_of_the_embedded_store_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hapax.db");
        drop(hapax::Sqlite::open(&path).await.unwrap());
        let refused = Source::of(&StoreUrl::Sqlite(path)).err().unwrap();
        assert!(refused.contains("is the embedded store"), "{refused}");
    }

    #[test]
    fn what_has_no_outbox_is_refused_with_a_reason() {
        for (store, said) in [
            ("memory:", "memory: has no outbox"),
            ("redis://a", "has no outbox"),
            (
                "sqlite:/nowhere/shop.db",
                "there is no file /nowhere/shop.db",
            ),
        ] {
            let refused = Source::of(&store.parse().unwrap()).err().unwrap();
            assert!(refused.contains(said), "{refused}");
        }
    }
}
