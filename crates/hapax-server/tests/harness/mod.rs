//! What the suites share of the server: its program, its settings, and a service that charges.
//! Everything that needs nothing of the server is in `hapax_testkit::harness`.

#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "shared by all suites, of which each needs a part"
)]

pub mod charges;
pub mod install;
pub mod node;

use std::io::Write;
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

/// The words of a command line, of which those in single quotes may hold spaces.
pub fn words(line: &str) -> Vec<&str> {
    let pieces = line.split('\'').enumerate();
    let words = pieces.flat_map(|(number, piece)| match number % 2 {
        0 => piece.split_whitespace().collect(),
        _ => vec![piece],
    });
    words.collect()
}

/// What the program said, run to its end.
pub struct Said {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Said {
    /// Whether it ended with this code.
    #[track_caller]
    pub fn assert_code(&self, code: i32) {
        assert_eq!(self.code, code, "{}{}", self.stdout, self.stderr);
    }

    /// Whether it ended with this code, having printed so many lines.
    #[track_caller]
    pub fn assert_lines(&self, code: i32, count: usize) {
        self.assert_code(code);
        assert_eq!(self.stdout.lines().count(), count, "{}", self.stdout);
    }

    /// Whether this is on its standard error.
    #[track_caller]
    pub fn assert_told(&self, what: &str) {
        assert!(self.stderr.contains(what), "{}", self.stderr);
    }

    /// Whether this is on its standard output.
    #[track_caller]
    pub fn assert_printed(&self, what: &str) {
        assert!(self.stdout.contains(what), "{}{}", self.stdout, self.stderr);
    }
}

/// Runs a command to its end.
pub fn said(command: &mut Command) -> Said {
    said_to(command, b"")
}

/// The same with this on its standard input.
pub fn said_to(command: &mut Command, input: &[u8]) -> Said {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = piped.stderr(Stdio::piped()).spawn().expect("it runs");
    // It may end without reading.
    let _ = child.stdin.take().expect("piped").write_all(input);
    let output = child.wait_with_output().expect("it ends");
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
    command.args(words("serve --log text --config")).arg(file);
    command
}

/// What every `hapax serve` without a file is told.
pub const SERVE: [&str; 7] = [
    "serve",
    "--listen",
    "127.0.0.1:0",
    "--admin",
    "127.0.0.1:0",
    "--log",
    "text",
];

/// A gateway on this store, in front of this upstream.
pub fn serve_on(store: &str, upstream: SocketAddr) -> Program {
    let upstream = format!("http://{upstream}");
    let args = ["--store", store, "--upstream", &upstream];
    Program::serve(hapax().args(SERVE).args(args))
}

/// A gateway for tests of what a request is, and not of who sends it. `before` are settings that
/// stand before the first section.
pub fn serve_anybody(upstream: SocketAddr, before: &str, settings: &str) -> Program {
    let settings = format!(
        "listen = \"127.0.0.1:0\"\nadmin = \"off\"\nstore = \"sqlite:hapax.db\"\n\
         anonymous_fields = [\"a\", \"x\", \"x-hop\", \"idempotent-replayed\", \"sec-websocket-key\", \
         \"sec-websocket-version\"]\n{before}[upstream]\nurl = \"http://{upstream}\"\n{settings}"
    );
    let directory = tempfile::tempdir().unwrap();
    let mut command = serve_command(directory.path(), &settings);
    Program::serve(command.env("HAPAX_LOG", "error")).keep(directory)
}

/// The same as [`serve_command`], started in a directory of its own.
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
