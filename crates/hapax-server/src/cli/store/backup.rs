//! `hapax store backup`

use std::path::PathBuf;

use hapax::store::sqlite::{BackupError, View};

use crate::cli::secret_flags::StoreFlag;
use crate::cli::{Exit, text};
use crate::config::StoreUrl;

/// Copy a store file, whether or not a gateway is using it.
///
/// The copy is a store of its own, has every key and answer that was acknowledged before the
/// command began, and never overwrites a file. Run it as the user whom the store belongs to.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The store to copy
    #[arg(long, value_name = "sqlite:FILE", default_value = "sqlite:hapax.db", value_parser = StoreFlag::parse)]
    store: StoreFlag,
    /// The file to make: a new one
    #[arg(value_name = "FILE")]
    to: PathBuf,
    /// Say what was done as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    let from = match args.store.store()? {
        StoreUrl::Sqlite(from) => from,
        StoreUrl::Postgres(url) => {
            return Err(Exit::usage(format!(
                "{url} is backed up with Postgres' own tools: base backups with archived WAL (pg_basebackup, pgBackRest, Barman) lose nothing that was acknowledged; a pg_dump has what was there when it began, and whatever came after runs again. See docs/postgres.md"
            )));
        }
        StoreUrl::Redis(url) => {
            return Err(Exit::usage(format!(
                "{url} is backed up with Redis' own tools: its append-only file, or BGSAVE and a copy of the dump. A backup has what was there when it was made: after a restore, whatever came later runs again. To keep what is there now, copy it: `hapax store copy` with the gateways stopped"
            )));
        }
        StoreUrl::Memory => {
            return Err(Exit::usage(
                "memory: is gone with its process, and cannot be copied: give --store sqlite:FILE",
            ));
        }
    };
    let view = View::open(&from)
        .map_err(|error| Exit::unreachable(format!("could not open the store: {error}")))?;
    let copied = view.backup(&args.to).map_err(|error| match error {
        BackupError::Exists { .. } => Exit::usage(error),
        _ => Exit::failed(with_cause(&error)),
    })?;
    let at = httpdate::fmt_http_date(copied.at.to_system_time());
    text::emit(&match args.json {
        true => {
            let path = args.to.display().to_string();
            format!(
                "{}\n",
                text::json(
                    &serde_json::json!({ "path": path, "bytes": copied.bytes, "at": at })
                        .to_string()
                )
            )
        }
        false => format!(
            "{} bytes in {}: the store as of {at}\n",
            copied.bytes,
            args.to.display()
        ),
    });
    Ok(())
}

fn with_cause(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", with_cause(cause)),
        None => error.to_string(),
    }
}
