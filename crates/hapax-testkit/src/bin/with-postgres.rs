//! Runs a command with a private PostgreSQL server, whose empty database is in `DATABASE_URL`, and
//! ends as the command does. The server goes with it.
//!
//! ```text
//! cargo run -p hapax-testkit --bin with-postgres -- COMMAND [ARGUMENT…]
//! ```

use std::process::{Command, ExitCode};

use hapax_testkit::servers::Postgres;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let Some(program) = arguments.next() else {
        eprintln!("usage: with-postgres COMMAND [ARGUMENT…]");
        return ExitCode::from(2);
    };
    // It has said so itself.
    let Some(postgres) = Postgres::start() else {
        return ExitCode::SUCCESS;
    };
    let mut command = Command::new(&program);
    command
        .args(arguments)
        .env("DATABASE_URL", postgres.database());
    match command.status() {
        Ok(status) => ExitCode::from(
            status
                .code()
                .and_then(|code| code.try_into().ok())
                .unwrap_or(1),
        ),
        Err(error) => {
            eprintln!("{} does not start: {error}", program.display());
            ExitCode::from(127)
        }
    }
}
