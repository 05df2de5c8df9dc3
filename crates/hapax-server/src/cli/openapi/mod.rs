//! `hapax openapi`: derives routes from the description of an API.

mod document;
mod import;
mod operation;

use super::Exit;

/// Make routes of an OpenAPI document.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Import(import::Args),
}

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    let Command::Import(args) = &args.command;
    import::run(args)
}
