//! Opens a store in a database.

use std::path::PathBuf;

use hapax::Postgres;
use hapax::store::postgres::{OpenError, Options};

use crate::config::PostgresUrl;

/// Why a database cannot be used as a store.
#[derive(Debug)]
pub(crate) struct NotOpened {
    /// What is wrong with it, and what to do.
    pub(crate) reason: String,
    /// The database exists, and has to be prepared or permitted first.
    pub(crate) is_unfit: bool,
}

/// Opens a Postgres that `hapax migrate` has prepared, for looking at it.
pub(crate) async fn postgres(url: &PostgresUrl) -> Result<Postgres, NotOpened> {
    postgres_with(url, None).await
}

/// Opens a Postgres for serving: `high_water_file` is where this node remembers its last writes.
pub(crate) async fn postgres_with(
    url: &PostgresUrl,
    high_water_file: Option<PathBuf>,
) -> Result<Postgres, NotOpened> {
    let opened = match Options::new(url.expose()) {
        Ok(options) => {
            Postgres::open_with(Options {
                high_water_file,
                ..options
            })
            .await
        }
        Err(error) => Err(error.into()),
    };
    opened.map_err(|error| NotOpened {
        is_unfit: !matches!(error, OpenError::Connect(_) | OpenError::Unusable { .. }),
        reason: error.to_string(),
    })
}

/// The high-water file of a gateway whose configuration names none: in systemd's state directory,
/// if there is one.
pub(crate) fn high_water_file() -> Option<PathBuf> {
    let directories = std::env::var_os("STATE_DIRECTORY")?;
    let first = std::env::split_paths(&directories).next()?;
    Some(first.join("high-water"))
}
