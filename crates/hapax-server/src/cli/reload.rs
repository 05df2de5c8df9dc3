//! `hapax reload`: makes a running gateway reload its configuration.

use std::path::PathBuf;

use super::keys::change::user_at_host;
use super::keys::client::Client;
use super::keys::source::{ADMIN, exit, token};
use super::{Exit, text};
use crate::admin::reload::{Changed, Reload};

/// Have a running gateway read its configuration again. A SIGHUP does the same, but cannot say what
/// came of it.
///
/// A configuration with a mistake, one that needs a restart, or one that would break a promise to
/// callers leaves everything as it is, and ends this command with 1.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The gateway whose admin listener is here
    #[arg(long, value_name = "URL", default_value = ADMIN)]
    admin: String,
    /// Where the gateway has one: a file with its `admin_token` [default: what HAPAX__ADMIN_TOKEN
    /// or HAPAX__ADMIN_TOKEN_FILE says]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Take it also if retries under way would not find their keys again, or what is held as
    /// unknown would run
    #[arg(long)]
    allow_scope_change: bool,
    /// Why, for whoever reads the log
    #[arg(
        long,
        value_name = "TEXT",
        required_if_eq("allow_scope_change", "true")
    )]
    reason: Option<String>,
    /// Who asks [default: user@host]
    #[arg(long, value_name = "WHO")]
    by: Option<String>,
}

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    let by = args.by.clone().unwrap_or_else(user_at_host);
    let reload = Reload {
        allow_scope_change: args.allow_scope_change,
        by,
        reason: args.reason.clone(),
    };
    let client =
        Client::new(&args.admin, token(args.token_file.as_deref())?).map_err(Exit::usage)?;
    let reloaded = super::block_on(client.reload(&reload))?.map_err(exit)?;
    let mut told: String = reloaded.changes.iter().map(line).collect();
    if told.is_empty() {
        told = "no setting changed; the files that they name were read again\n".to_owned();
    }
    text::emit(&told);
    Ok(())
}

fn line(Changed { setting, from, to }: &Changed) -> String {
    let shown = |value: &Option<String>| {
        value
            .as_deref()
            .map_or("nothing".to_owned(), |value| text::line(value).into_owned())
    };
    format!(
        "{}\t{} -> {}\n",
        text::line(setting),
        shown(from),
        shown(to)
    )
}
