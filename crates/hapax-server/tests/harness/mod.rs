//! What the suites share of the server: its program, its settings, and a service that charges.
//! Everything that needs nothing of the server is in `hapax_testkit::harness`.

#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "shared by all suites, of which each needs a part"
)]

pub mod charges;
pub mod node;

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use hapax_server::config::{Config, StoreUrl};
pub use hapax_testkit::harness::*;
use hapax_testkit::servers::Postgres;

/// The program that was built.
pub fn hapax() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
    command.stdin(Stdio::null());
    command
}

/// What the program said, run to its end.
pub struct Said {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a command to its end.
pub fn said(command: &mut Command) -> Said {
    let output = command.output().expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("what is printed is text");
    Said {
        code: output.status.code().expect("it exits"),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// `hapax serve` with these settings, which it reads from a file in this directory.
pub fn serve_command(directory: &Path, settings: &str) -> Command {
    let file = directory.join("hapax.toml");
    replace(&file, settings);
    let mut command = hapax();
    command
        .args(["serve", "--log", "text", "--config"])
        .arg(file);
    command
}

/// The same, started in a directory of its own.
pub fn serve(settings: &str) -> Program {
    let directory = tempfile::tempdir().unwrap();
    Program::serve(&mut serve_command(directory.path(), settings)).keep(directory)
}

/// Puts a file in place of another in one step, as an editor does: a reader must not find half of
/// it.
pub fn replace(path: &Path, text: &str) {
    let aside = path.with_extension("new");
    std::fs::write(&aside, text).unwrap();
    std::fs::rename(aside, path).unwrap();
}

/// The settings of a gateway in this process: any port, no operators, records in memory, and no
/// load balancer that has to notice its end.
pub fn config(upstream: SocketAddr) -> Config {
    let mut config = Config::new(format!("http://{upstream}").parse().unwrap());
    config.listen = ([127, 0, 0, 1], 0).into();
    config.admin = None;
    config.store = StoreUrl::Memory;
    config.drain.notice = Duration::ZERO;
    config
}

/// A new database on this server, prepared as an operator does it. Returns its URL.
pub fn migrated(server: &Postgres) -> String {
    let url = server.database();
    let said = said(hapax().args(["migrate", "--store", &url]));
    assert_eq!(said.code, 0, "{}", said.stderr);
    url
}

/// The name of a database, by its URL.
pub fn database_name(url: &str) -> &str {
    url.rsplit_once('/').expect("a URL").1
}

/// What the gateway has counted under this name and these labels, by its metrics.
pub fn metric(metrics: &str, series: &str) -> f64 {
    let found = metrics
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
    found.unwrap_or_else(|| panic!("no {series} in\n{metrics}"))
}
