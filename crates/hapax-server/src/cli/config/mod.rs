//! `hapax config`: inspects a configuration without starting a gateway.

mod check;
mod explain;
mod print;
mod schema;

use super::Exit;

/// Check, show and explain a configuration.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Check(check::Args),
    Print(print::Args),
    Explain(explain::Args),
    Schema(schema::Args),
}

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    match &args.command {
        Command::Check(args) => check::run(args),
        Command::Print(args) => print::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Schema(args) => schema::run(args),
    }
}
