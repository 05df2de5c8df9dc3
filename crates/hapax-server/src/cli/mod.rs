//! What a person types: a file for each command.

mod demo;
mod fingerprint;
mod keys;
mod serve;
mod text;

use std::fmt;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Makes retries harmless: one effect per Idempotency-Key.
#[derive(Parser)]
#[command(name = "hapax", version, arg_required_else_help = true, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(serve::Args),
    Demo(demo::Args),
    #[command(hide = true)]
    DemoService(demo::service::Args),
    Keys(keys::Args),
    Fingerprint(fingerprint::Args),
}

/// How a command ends when it does not end well: what to say on standard error, and the exit code.
#[derive(Debug)]
pub(crate) struct Exit {
    code: u8,
    message: String,
}

impl Exit {
    /// The check failed, or what was asked for could not be done.
    pub(crate) fn failed(message: impl fmt::Display) -> Exit {
        Exit { code: 1, message: message.to_string() }
    }

    /// Usage or configuration.
    pub(crate) fn usage(message: impl fmt::Display) -> Exit {
        Exit { code: 2, message: message.to_string() }
    }

    /// Could not connect.
    pub(crate) fn unreachable(message: impl fmt::Display) -> Exit {
        Exit { code: 3, message: message.to_string() }
    }
}

/// The whole program: parses, runs, and turns the end into an exit code.
pub fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Serve(args) => serve::run(args),
        Command::Demo(args) => demo::run(&args),
        Command::DemoService(args) => demo::service::run(&args),
        Command::Keys(args) => keys::run(args),
        Command::Fingerprint(args) => fingerprint::run(&args),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(Exit { code, message }) => {
            eprintln!("hapax: {message}");
            ExitCode::from(code)
        }
    }
}
