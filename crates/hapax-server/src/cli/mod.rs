//! The command line: one file for each command.

mod completions;
mod config;
mod config_flags;
mod demo;
mod fingerprint;
mod health;
mod inbox;
mod keys;
mod log_flag;
mod man;
mod migrate;
mod openapi;
mod outbox;
mod relay;
mod reload;
mod secret_flags;
mod serve;
mod signals;
mod store;
mod sweep;
mod text;
mod watch;

use std::fmt;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::store::NotOpened;
use crate::version;

/// Make HTTP retries safe: one effect for each Idempotency-Key.
#[derive(Parser)]
#[command(name = "hapax", version = version::SHORT, long_version = version::LONG, arg_required_else_help = true, disable_help_subcommand = true)]
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
    Reload(reload::Args),
    Keys(keys::Args),
    Relay(relay::Args),
    Outbox(outbox::Args),
    Inbox(inbox::Args),
    Config(config::Args),
    Openapi(openapi::Args),
    Fingerprint(fingerprint::Args),
    Store(store::Args),
    Migrate(migrate::Args),
    Sweep(sweep::Args),
    Health(health::Args),
    Completions(completions::Args),
    Man(man::Args),
}

/// How a command ends unsuccessfully: the message for standard error, and the exit code.
#[derive(Debug)]
pub(crate) struct Exit {
    code: u8,
    message: String,
}

impl Exit {
    /// The check failed, or the request could not be done.
    pub(crate) fn failed(message: impl fmt::Display) -> Exit {
        Exit {
            code: 1,
            message: message.to_string(),
        }
    }

    /// A mistake in the usage or the configuration.
    pub(crate) fn usage(message: impl fmt::Display) -> Exit {
        Exit {
            code: 2,
            message: message.to_string(),
        }
    }

    /// The user interrupted the command.
    pub(crate) fn interrupted(message: impl fmt::Display) -> Exit {
        Exit {
            code: 130,
            message: message.to_string(),
        }
    }

    /// The connection failed.
    pub(crate) fn unreachable(message: impl fmt::Display) -> Exit {
        Exit {
            code: 3,
            message: message.to_string(),
        }
    }

    pub(crate) fn is_unreachable(&self) -> bool {
        self.code == 3
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}

/// Runs a command on its own single-threaded runtime.
fn block_on<T>(command: impl Future<Output = T>) -> Result<T, Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => Ok(runtime.block_on(command)),
        Err(error) => Err(Exit::failed(format!(
            "the system gave no resources to run on: {error}"
        ))),
    }
}

/// For a command that cannot continue without its store.
impl From<NotOpened> for Exit {
    fn from(error: NotOpened) -> Exit {
        let said = format!("could not open the store: {}", error.reason);
        if error.is_unfit {
            Exit::usage(said)
        } else {
            Exit::unreachable(said)
        }
    }
}

/// The whole program: parses, runs, and turns the result into an exit code.
pub fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Serve(args) => serve::run(args),
        Command::Demo(args) => demo::run(&args),
        Command::DemoService(args) => demo::service::run(&args).map_err(Exit::from),
        Command::Reload(args) => reload::run(&args),
        Command::Keys(args) => keys::run(args),
        Command::Relay(args) => relay::run(&args),
        Command::Outbox(args) => outbox::run(args),
        Command::Inbox(args) => inbox::run(args),
        Command::Config(args) => config::run(&args),
        Command::Openapi(args) => openapi::run(&args),
        Command::Fingerprint(args) => fingerprint::run(&args),
        Command::Store(args) => store::run(&args),
        Command::Migrate(args) => migrate::run(&args),
        Command::Sweep(args) => sweep::run(&args),
        Command::Health(args) => health::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(Exit { code, message }) => {
            // The message is empty if the log has it already.
            if !message.is_empty() {
                eprintln!("hapax: {message}");
            }
            ExitCode::from(code)
        }
    }
}
