//! `hapax keys`: shows records, and lets operators change them.

pub(super) mod change;
pub(super) mod client;
mod direct;
mod filter;
mod forget;
pub(super) mod format;
mod list;
mod log;
mod newest;
mod settle;
mod show;
pub(super) mod source;
mod table;
mod targets;
mod watch;

use super::Exit;

/// List and show keys, settle those whose outcome is unknown, forget answers.
///
/// Asks a running gateway (--admin), or looks into a store (--store): a file, or a Postgres or
/// Redis that gateways may be using. Without either: the gateway at http://127.0.0.1:4001, and if
/// nobody is there, the file hapax.db. Which one it was is said on standard error.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    List(list::Args),
    Show(show::Args),
    Settle(settle::Args),
    Forget(forget::Args),
    Log(log::Args),
}

pub(super) fn run(args: Args) -> Result<(), Exit> {
    super::block_on(async {
        match args.command {
            Command::List(args) => list::run(&args).await,
            Command::Show(args) => show::run(&args).await,
            Command::Settle(args) => settle::run(&args).await,
            Command::Forget(args) => forget::run(&args).await,
            Command::Log(args) => log::run(&args).await,
        }
    })?
}
