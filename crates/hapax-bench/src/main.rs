//! Measures Hapax against its targets. `docs/benchmarks.md` says what each command measures, and
//! how.
//!
//! ```text
//! cargo run --release -p hapax-bench -- store
//! ```

mod bounds;
mod child;
mod client;
mod directory;
mod flags;
mod gateway;
mod http;
mod inbox;
mod instructions;
mod load;
mod outbox;
mod postgres;
mod redis;
mod report;
mod stats;
mod store;
mod transaction;
mod volume;

use std::process::ExitCode;

use self::flags::{Command, Flags};

/// An error that stops a measurement. A missed target does not: it is printed.
type Error = Box<dyn std::error::Error + Send + Sync>;

/// Commands without help text are internal: this program starts itself as a child under them.
const COMMANDS: &[Command] = &[
    store::COMMAND,
    volume::COMMAND,
    bounds::COMMAND,
    http::COMMAND,
    gateway::COMMAND,
    gateway::IDLE,
    postgres::COMMAND,
    redis::COMMAND,
    transaction::COMMAND,
    outbox::COMMAND,
    inbox::COMMAND,
    instructions::COMMAND,
    ALL,
    volume::OWN,
    volume::REOPEN,
    http::SERVE,
    gateway::UPSTREAM,
];

const ALL: Command = Command {
    name: "all",
    help: "store, volume, bounds and http at a modest scale, in about two minutes",
    flags: &[],
    run: all,
};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    let mut name = arguments.next().unwrap_or_default();
    if name == gateway::TIED {
        return gateway::tied(arguments);
    }
    if let Some(second) = arguments.next_if(|argument| !argument.starts_with('-')) {
        name = format!("{name} {second}");
    }
    let Some(command) = COMMANDS.iter().find(|command| command.name == name) else {
        eprintln!(
            "hapax-bench: no command is called {name:?}\n\n{}",
            flags::usage(COMMANDS)
        );
        return ExitCode::from(2);
    };
    let flags = match Flags::parse(command.flags, arguments) {
        Ok(flags) => flags,
        Err(error) => {
            eprintln!(
                "hapax-bench {name}: {error}\n\n{}",
                flags::usage(std::slice::from_ref(command))
            );
            return ExitCode::from(2);
        }
    };
    match (command.run)(&flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let causes = std::iter::successors(Some(&*error as &dyn std::error::Error), |error| {
                error.source()
            });
            eprintln!(
                "hapax-bench {name}: {}",
                causes
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join(": ")
            );
            ExitCode::FAILURE
        }
    }
}

fn all(_: &Flags) -> Result<(), Error> {
    let modest: &[(&Command, &[&str])] = &[
        (&store::COMMAND, &["--rounds", "3", "--seconds", "1"]),
        (
            &volume::COMMAND,
            &[
                "--keys", "100000", "--rounds", "3", "--pairs", "10000", "--expire", "20000",
            ],
        ),
        (&bounds::COMMAND, &["--seconds", "6", "--rounds", "1"]),
        (&http::COMMAND, &["--seconds", "2", "--rounds", "3"]),
    ];
    for (command, arguments) in modest {
        let flags = Flags::parse(command.flags, arguments.iter().map(ToString::to_string))?;
        (command.run)(&flags)?;
    }
    Ok(())
}

/// The runtime of a measurement: as many threads as the machine has, as in a service.
fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?)
}
