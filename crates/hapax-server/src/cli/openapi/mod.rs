//! `hapax openapi`: routes out of a description of an API, and what the gateway adds to an API into
//! its description.

mod document;
mod export;
mod import;
mod operation;

use super::Exit;

/// Make routes of an OpenAPI document, or add to one what the gateway does.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Import(import::Args),
    Export(Box<export::Args>),
}

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    match &args.command {
        Command::Import(args) => import::run(args),
        Command::Export(args) => export::run(args),
    }
}
