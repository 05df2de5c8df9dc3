//! `hapax store`: operations on a store as a whole.

mod backup;
mod check;
mod copy;

use super::Exit;

/// Back up, check or copy a store.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Backup(backup::Args),
    Check(check::Args),
    Copy(copy::Args),
}

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    match &args.command {
        Command::Backup(args) => backup::run(args),
        Command::Check(args) => check::run(args),
        Command::Copy(args) => copy::run(args),
    }
}
