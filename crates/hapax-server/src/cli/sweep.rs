//! `hapax sweep`: removes what has expired from a Postgres store that no gateway uses.

use std::path::PathBuf;

use hapax::Postgres;
use hapax::core::store::{Store, Swept};
use serde_json::json;

use super::secret_flags::StoreFlag;
use super::{Exit, text};
use crate::config::{PostgresUrl, StoreUrl};

/// Remove what has expired from a Postgres store, once: for those who call hapax.start and run no
/// gateway.
///
/// A running gateway sweeps its store every second. Without one, run this from cron, every few
/// minutes: answers are removed in the two hours after they have expired, or a day later. The role
/// needs what `hapax migrate --role` grants.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The database: postgres://USER@HOST/DATABASE; what it leaves out, the PG* variables say
    /// [default: what the configuration or HAPAX__STORE says]
    #[arg(long, value_name = "URL", value_parser = StoreFlag::parse)]
    store: Option<StoreFlag>,
    /// The configuration that names the database
    #[arg(long, value_name = "FILE", conflicts_with = "store")]
    config: Option<PathBuf>,
    /// Say what was done as JSON
    #[arg(long)]
    json: bool,
}

/// Records in one round.
const ROUND: usize = 4096;
/// A round looks at 32 MiB of records at most. A run has at least the first number of rounds, so that
/// it looks at half a gigabyte even if it finds nothing, and at most the second.
const ROUNDS_MIN: usize = 16;
const ROUNDS_MAX: usize = 10_000;

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    let url = args.database()?;
    let swept = super::block_on(async {
        let store = crate::store::postgres(&url).await?;
        sweep(&store).await
    })??;
    text::emit(&match args.json {
        true => format!("{}\n", text::json(&document(&url, swept).to_string())),
        false => format!(
            "{url}: removed {} records, {} answers and {} entries of the audit log; {} attempts are lost\n",
            swept.removed, swept.buried, swept.unlogged, swept.lost
        ),
    });
    Ok(())
}

async fn sweep(store: &Postgres) -> Result<Swept, Exit> {
    let mut all = Swept::default();
    for round in 0..ROUNDS_MAX {
        let swept = store.sweep(ROUND).await.map_err(Exit::unreachable)?;
        if round >= ROUNDS_MIN && swept == Swept::default() {
            break;
        }
        all.lost += swept.lost;
        all.buried += swept.buried;
        all.removed += swept.removed;
        all.unlogged += swept.unlogged;
    }
    Ok(all)
}

fn document(url: &PostgresUrl, swept: Swept) -> serde_json::Value {
    json!({
        "store": url.to_string(),
        "removed": swept.removed,
        "answers": swept.buried,
        "log_entries": swept.unlogged,
        "lost": swept.lost,
    })
}

impl Args {
    fn database(&self) -> Result<PostgresUrl, Exit> {
        match StoreFlag::chosen(self.store.as_ref(), self.config.as_deref())? {
            StoreUrl::Postgres(url) => Ok(url),
            StoreUrl::Redis(url) => Err(Exit::usage(format!(
                "{url} needs no sweep from outside: what has expired leaves a Redis by itself, and the processes that use it do the rest"
            ))),
            StoreUrl::Sqlite(_) | StoreUrl::Memory => Err(Exit::usage(
                "only a Postgres is swept from outside: the process that has another store open sweeps it itself",
            )),
        }
    }
}
