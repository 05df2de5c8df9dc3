//! Shared parts that need the server: its program, its settings, and a service that charges.
//! Everything else is in `hapax_testkit::harness`.

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

/// The built program.
pub fn hapax() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
    command.stdin(Stdio::null());
    command
}

/// The words of a command line; words in single quotes may contain spaces.
pub fn words(line: &str) -> Vec<&str> {
    let pieces = line.split('\'').enumerate();
    let words = pieces.flat_map(|(number, piece)| match number % 2 {
        0 => piece.split_whitespace().collect(),
        _ => vec![piece],
    });
    words.collect()
}

/// The exit code and output of a finished program.
pub struct Said {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Said {
    /// Checks the exit code.
    #[track_caller]
    pub fn assert_code(&self, code: i32) {
        assert_eq!(self.code, code, "{}{}", self.stdout, self.stderr);
    }

    /// Checks the exit code and the number of printed lines.
    #[track_caller]
    pub fn assert_lines(&self, code: i32, count: usize) {
        self.assert_code(code);
        assert_eq!(self.stdout.lines().count(), count, "{}", self.stdout);
    }

    /// Checks that the standard error contains `what`.
    #[track_caller]
    pub fn assert_told(&self, what: &str) {
        assert!(self.stderr.contains(what), "{}", self.stderr);
    }

    /// Checks that the standard output contains `what`.
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
    // The program may end without reading its input.
    let _ = child.stdin.take().expect("piped").write_all(input);
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("what is printed is text");
    Said {
        code: output.status.code().expect("it exits"),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// `hapax serve` with these settings, written to a file in this directory.
pub fn serve_command(directory: &Path, settings: &str) -> Command {
    let file = directory.join("hapax.toml");
    replace(&file, settings);
    let mut command = hapax();
    command.args(words("serve --log text --config")).arg(file);
    command
}

/// The arguments of every `hapax serve` without a file.
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

/// A gateway for tests that do not depend on the principal. `before` are settings before the first
/// section.
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

/// Like [`serve_command`], started in its own directory.
pub fn serve(settings: &str) -> Program {
    let directory = tempfile::tempdir().unwrap();
    Program::serve(&mut serve_command(directory.path(), settings)).keep(directory)
}

/// Replaces a file atomically, as an editor does: a reader must not find half of it.
pub fn replace(path: &Path, text: &str) {
    let aside = path.with_extension("new");
    std::fs::write(&aside, text).unwrap();
    std::fs::rename(aside, path).unwrap();
}

/// The settings of a gateway in this process: any free port, no admin listener, a store in memory,
/// and no drain notice for a load balancer.
pub fn config(upstream: SocketAddr) -> Config {
    let mut config = Config::new(format!("http://{upstream}").parse().unwrap());
    config.listen = ([127, 0, 0, 1], 0).into();
    config.admin = None;
    config.store = StoreUrl::Memory;
    config.drain.notice = Duration::ZERO;
    config
}

/// A new database on this server, migrated as an operator would do it. Returns its URL.
pub fn migrated(server: &Postgres) -> String {
    let url = server.database();
    let said = said(hapax().args(["migrate", "--store", &url]));
    assert_eq!(said.code, 0, "{}", said.stderr);
    url
}

/// The name of the database in a URL.
pub fn database_name(url: &str) -> &str {
    url.rsplit_once('/').expect("a URL").1
}

/// The value of this series, a name with labels, in the gateway's metrics.
pub fn metric(metrics: &str, series: &str) -> f64 {
    let found = metrics
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
    found.unwrap_or_else(|| panic!("no {series} in\n{metrics}"))
}
