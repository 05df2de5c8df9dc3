//! Opens a store that is elsewhere.

use std::path::PathBuf;

use hapax::Postgres;
use hapax::store::postgres::{OpenError, Options};

use crate::config::PostgresUrl;

/// Why a database is no store to us.
#[derive(Debug)]
pub(crate) struct NotOpened {
    /// What is wrong with it, and what to do.
    pub(crate) reason: String,
    /// It is there, and has to be prepared or allowed first.
    pub(crate) is_unfit: bool,
}

/// Opens a Postgres that `hapax migrate` has prepared, to look at it.
pub(crate) async fn postgres(url: &PostgresUrl) -> Result<Postgres, NotOpened> {
    postgres_with(url, None).await
}

/// Opens it to serve from it: `high_water_file` is where this node remembers its last writes.
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

/// The high-water file of a gateway whose configuration names none: in the directory that systemd
/// gives it, if it does.
pub(crate) fn high_water_file() -> Option<PathBuf> {
    let directories = std::env::var_os("STATE_DIRECTORY")?;
    let first = std::env::split_paths(&directories).next()?;
    Some(first.join("high-water"))
}
