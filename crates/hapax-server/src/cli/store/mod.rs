//! `hapax store`: what is done to a store file as a whole.

mod backup;

use super::Exit;

/// Looks after a store file as a whole.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Backup(backup::Args),
}

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    match &args.command {
        Command::Backup(args) => backup::run(args),
    }
}
