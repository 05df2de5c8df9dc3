//! Opens a store that is elsewhere.

use hapax::Postgres;
use hapax::store::postgres::OpenError;

use crate::config::PostgresUrl;

/// Why a database is no store to us.
#[derive(Debug)]
pub(crate) struct NotOpened {
    /// What is wrong with it, and what to do.
    pub(crate) reason: String,
    /// It is there, and has to be prepared or allowed first.
    pub(crate) is_unfit: bool,
}

/// Opens a Postgres that `hapax migrate` has prepared.
pub(crate) async fn postgres(url: &PostgresUrl) -> Result<Postgres, NotOpened> {
    Postgres::open(url.expose()).await.map_err(|error| NotOpened {
        is_unfit: !matches!(error, OpenError::Connect(_) | OpenError::Unusable { .. }),
        reason: error.to_string(),
    })
}
