//! `hapax outbox`: shows messages that are not published, and lets operators change them.

mod change;
mod list;
pub(super) mod place;
mod readers;
mod show;
pub(super) mod table;
mod watch;

use super::Exit;

/// List and show messages that are set aside, send them again or skip them; show readers, start and
/// remove them.
///
/// Looks into the database that the messages are in: a Postgres, or the SQLite file of a service.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Readers(readers::Args),
    List(list::Args),
    Show(show::Args),
    Retry(change::RetryArgs),
    Skip(change::SkipArgs),
}

pub(super) fn run(args: Args) -> Result<(), Exit> {
    super::block_on(async {
        match args.command {
            Command::Readers(args) => readers::run(&args).await,
            Command::List(args) => list::run(&args).await,
            Command::Show(args) => show::run(&args).await,
            Command::Retry(args) => change::retry(&args).await,
            Command::Skip(args) => change::skip(&args).await,
        }
    })?
}
