//! `hapax inbox`: shows messages that consumers have not applied, and lets operators change them.

mod change;
mod consumers;
mod parked;
mod show;

use hapax_flow::inbox::InboxError;

use super::Exit;

/// List and show messages that were parked instead of applied, have them tried again or skip them;
/// show consumers.
///
/// Looks into the database that the consumers' receipts are in: a Postgres, or the SQLite file of a
/// service.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Consumers(consumers::Args),
    Parked(parked::Args),
    Show(show::Args),
    Retry(change::RetryArgs),
    Skip(change::SkipArgs),
}

pub(super) fn run(args: Args) -> Result<(), Exit> {
    super::block_on(async {
        match args.command {
            Command::Consumers(args) => consumers::run(&args).await,
            Command::Parked(args) => parked::run(&args).await,
            Command::Show(args) => show::run(&args).await,
            Command::Retry(args) => change::retry(&args).await,
            Command::Skip(args) => change::skip(&args).await,
        }
    })?
}

/// Why an inbox did not do what it was asked, with the exit code.
fn exit(error: InboxError) -> Exit {
    match error {
        InboxError::TooOld => Exit::failed(format!(
            "{error}\n  look whether its effect is there: if it is not, say so with --was-not-applied; if it is, skip the message"
        )),
        InboxError::Unavailable(_) => Exit::unreachable(error),
        InboxError::Refused(_) => Exit::usage(error),
        _ => Exit::failed(error),
    }
}
