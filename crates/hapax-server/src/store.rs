//! Opens a store in a database or a Redis.

use std::path::PathBuf;

use hapax::store::{postgres, redis};
use hapax::{Postgres, Redis};

use crate::config::{PostgresUrl, RedisUrl};

/// Why a database or a Redis cannot be used as a store.
#[derive(Debug)]
pub(crate) struct NotOpened {
    /// What is wrong with it, and what to do.
    pub(crate) reason: String,
    /// It is there, and has to be prepared or permitted first.
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
    let opened = match postgres::Options::new(url.expose()) {
        Ok(options) => {
            Postgres::open_with(postgres::Options {
                high_water_file,
                ..options
            })
            .await
        }
        Err(error) => Err(error.into()),
    };
    Ok(opened?)
}

/// Opens a Postgres for copying it, even if it is out of use.
pub(crate) async fn postgres_mover(url: &PostgresUrl) -> Result<postgres::Mover, NotOpened> {
    let opened = match postgres::ConnectOptions::parse(url.expose()) {
        Ok(connection) => postgres::Mover::open(&connection).await,
        Err(error) => Err(error.into()),
    };
    Ok(opened?)
}

impl From<postgres::OpenError> for NotOpened {
    fn from(error: postgres::OpenError) -> NotOpened {
        use postgres::OpenError::{Connect, Unusable};
        NotOpened {
            is_unfit: !matches!(error, Connect(_) | Unusable { .. }),
            reason: error.to_string(),
        }
    }
}

/// Opens a Redis, for looking at it or for serving: `replicas` of it must confirm each write.
pub(crate) async fn redis(url: &RedisUrl, replicas: u32) -> Result<Redis, NotOpened> {
    let mut options = redis_options(url)?;
    options.replicas = replicas;
    Ok(Redis::open(options).await?)
}

/// Opens a Redis for copying it, even if it is out of use.
pub(crate) async fn redis_mover(url: &RedisUrl) -> Result<redis::Mover, NotOpened> {
    Ok(redis::Mover::open(redis_options(url)?).await?)
}

fn redis_options(url: &RedisUrl) -> Result<redis::Options, NotOpened> {
    let options = redis::Options::best_effort(url.expose());
    Ok(options.map_err(redis::OpenError::from)?)
}

impl From<redis::OpenError> for NotOpened {
    fn from(error: redis::OpenError) -> NotOpened {
        match error {
            // It names the server, which may be another than the one at the address.
            redis::OpenError::Connect { source, .. } => NotOpened {
                is_unfit: false,
                reason: source.to_string(),
            },
            error => NotOpened {
                is_unfit: true,
                reason: error.to_string(),
            },
        }
    }
}

/// The high-water file of a gateway whose configuration names none: in systemd's state directory,
/// if there is one.
pub(crate) fn high_water_file() -> Option<PathBuf> {
    let directories = std::env::var_os("STATE_DIRECTORY")?;
    let first = std::env::split_paths(&directories).next()?;
    Some(first.join("high-water"))
}
