//! Plants known bugs in the production path, one at a time, and runs the suite against each: a bug
//! that no test notices fails the run.
//!
//! ```text
//! cargo run -p hapax-testkit --bin convict [BUG…]
//! ```

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use hapax_core::planted::{BUGS, POSTGRES};
use hapax_testkit::servers;

/// A test binary by its package and name, and what it is told: a part of the names of the tests to
/// run, for instance.
type Choice = (&'static str, &'static str, &'static [&'static str]);

/// The suites, quick ones first: the first that notices a bug convicts it. None of them knows that
/// bugs are planted.
const SUITES: &[Choice] = &[("hapax-contract", "memory", &[]), ("hapax", "once", &[])];

/// The same for bugs in the Postgres store. All at once: mostly they wait for their server, and the
/// first that fails is enough. Histories tell what the contract, case by case, would tell much
/// later.
const POSTGRES_SUITES: &[Choice] = &[(
    "hapax",
    "postgres",
    &[
        "--test-threads=8",
        "contract::what_takes",
        "crash::",
        "history::",
        "join::",
        "lanes::",
        "nodes::",
        "replies::",
        "ring::",
        "standby::",
    ],
)];

/// A suite that takes longer hangs, which convicts as well.
const SUITE_TIME_MAX: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let chosen: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = chosen
        .iter()
        .find(|name| BUGS.iter().all(|(bug, _)| bug != name))
    {
        let names: Vec<_> = BUGS.iter().map(|(name, _)| *name).collect();
        eprintln!("no bug is called {unknown:?}; the bugs are {names:?}");
        return ExitCode::from(2);
    }
    let bugs = BUGS
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| chosen.is_empty() || chosen.iter().any(|chosen| chosen == name));
    let (postgres, others): (Vec<_>, Vec<_>) = bugs.partition(|name| name.starts_with(POSTGRES));
    let tried = try_bugs(SUITES, &others).and_then(|mut acquitted| {
        if postgres.is_empty() || has_postgres() {
            acquitted.extend(try_bugs(POSTGRES_SUITES, &postgres)?);
        } else {
            postgres.iter().for_each(|bug| {
                println!("{bug:>30}  SKIPPED: there is no PostgreSQL here to plant it in");
            });
        }
        Ok(acquitted)
    });
    match tried {
        Ok(acquitted) if acquitted.is_empty() => ExitCode::SUCCESS,
        Ok(acquitted) => {
            eprintln!("nobody noticed: {acquitted:?}");
            ExitCode::FAILURE
        }
        Err(Void(message)) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

/// Says so loudly if there is none.
fn has_postgres() -> bool {
    servers::Postgres::start().is_some()
}

/// Why no verdict would mean anything.
struct Void(String);

/// Tries each of these bugs, prints a row of the table for each, and returns those that no suite
/// noticed.
fn try_bugs<'a>(choices: &[Choice], bugs: &[&'a str]) -> Result<Vec<&'a str>, Void> {
    if bugs.is_empty() {
        return Ok(Vec::new());
    }
    let suites = build(choices)?;
    // Without a bug all is well; else a conviction would mean nothing.
    if let Some(Conviction { suite, by }) = suites.iter().find_map(|suite| suite.try_bug(None)) {
        return Err(Void(format!("without any bug, {suite} fails: {by}")));
    }
    let mut acquitted = Vec::new();
    for bug in bugs {
        match suites.iter().find_map(|suite| suite.try_bug(Some(bug))) {
            Some(Conviction { suite, by }) => println!("{bug:>30}  {suite}: {by}"),
            None => {
                println!("{bug:>30}  NOT NOTICED");
                acquitted.push(*bug);
            }
        }
    }
    Ok(acquitted)
}

/// A test binary with the bugs compiled in, and what it is told.
struct Suite {
    name: String,
    executable: PathBuf,
    arguments: &'static [&'static str],
}

struct Conviction {
    suite: String,
    /// The first test that failed, or how else it went wrong.
    by: String,
}

/// Builds the suites with the bugs compiled in.
fn build(choices: &[Choice]) -> Result<Vec<Suite>, Void> {
    let mut suites = Vec::new();
    for of_package in choices.chunk_by(|(a, ..), (b, ..)| a == b) {
        let package = of_package[0].0;
        let messages = compile(package, of_package)?;
        for (_, name, arguments) in of_package {
            let executable = executable(&messages, name)
                .ok_or_else(|| Void(format!("cargo built no suite {name}")))?;
            suites.push(Suite {
                name: format!("{package}::{name}"),
                executable,
                arguments,
            });
        }
    }
    Ok(suites)
}

/// What cargo says while it builds test binaries of one package.
fn compile(package: &str, choices: &[Choice]) -> Result<String, Void> {
    let mut names: Vec<_> = choices.iter().map(|(_, name, _)| *name).collect();
    names.dedup();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args([
        "test",
        "--no-run",
        "--message-format=json",
        "--all-features",
        "--package",
        package,
    ]);
    command
        .args(["--features", "hapax-core/planted"])
        .args(names.iter().flat_map(|name| ["--test", name]));
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Void(format!("cargo does not start: {error}")))?;
    if !output.status.success() {
        return Err(Void(format!("the suites of {package} do not build")));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Where cargo says it put the test binary `name`.
fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    let message = messages.lines().find(|line| {
        line.contains(&format!(
            "\"kind\":[\"test\"],\"crate_types\":[\"bin\"],\"name\":\"{name}\""
        ))
    })?;
    let (_, rest) = message.split_once("\"executable\":\"")?;
    Some(rest.split('"').next()?.into())
}

impl Suite {
    /// Runs the suite with this bug alive, or none, until a test fails.
    fn try_bug(&self, bug: Option<&str>) -> Option<Conviction> {
        let mut command = Command::new(&self.executable);
        command
            .args(self.arguments)
            .env_remove("HAPAX_PLANTED")
            .envs(bug.map(|bug| ("HAPAX_PLANTED", bug)))
            .env("RUST_BACKTRACE", "0");
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .stdin(Stdio::null())
            .spawn()
            .expect("a suite starts");
        let lines = lines(child.stdout.take().expect("piped"));
        let deadline = Instant::now() + SUITE_TIME_MAX;
        let by = loop {
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.starts_with("test result: ok") => break None,
                Ok(line) => match line
                    .strip_prefix("test ")
                    .and_then(|line| line.strip_suffix(" ... FAILED"))
                {
                    Some(test) => break Some(test.to_owned()),
                    None => continue,
                },
                Err(RecvTimeoutError::Timeout) => break Some("hangs".to_owned()),
                Err(RecvTimeoutError::Disconnected) => break Some("ends early".to_owned()),
            }
        };
        // One failure is enough. Whatever it has started ends with it.
        let _ = child.kill();
        let _ = child.wait();
        by.map(|by| Conviction {
            suite: self.name.clone(),
            by,
        })
    }
}

/// The lines of an output, as they come.
fn lines(output: impl Read + Send + 'static) -> Receiver<String> {
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        // Nobody may want to know any more.
        BufReader::new(output)
            .lines()
            .map_while(Result::ok)
            .try_for_each(|line| send.send(line))
    });
    lines
}
