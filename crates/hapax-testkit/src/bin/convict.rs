//! Plants known bugs in the production code, one at a time, and runs the suites against each: a bug
//! that no test detects fails the run.
//!
//! ```text
//! ./check planted_bugs                 every third bug; the next commit tries other ones
//! BUGS=all ./check planted_bugs        all bugs
//! BUGS="BUG…" ./check planted_bugs     these bugs
//! ```
//!
//! `HAPAX_FEATURES` holds the features that `./check` builds everything with: with others, each
//! dependency would be compiled a second time.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use hapax_core::planted::{BUGS, FLOW, POSTGRES, REDIS};
use hapax_testkit::servers;

/// A test binary by its name, which no other package has, and its arguments, such as a part of the
/// names of the tests to run.
type Choice = (&'static str, &'static [&'static str]);

/// The suites, quick ones first: the first that detects a bug convicts it. The suites do not know
/// about planted bugs.
const SUITES: &[Choice] = &[("memory", &[]), ("once", &[])];

/// The suites for bugs in the Postgres store. All run concurrently: they mostly wait for their
/// server, and the first failure is enough. Random histories find these bugs much sooner than the
/// cases of the contract.
const POSTGRES_SUITES: &[Choice] = &[(
    "postgres",
    &[
        "--test-threads=8",
        "two_calls::",
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

/// The suites for bugs in the Redis store and in the tier.
const REDIS_SUITES: &[Choice] = &[(
    "redis",
    &[
        "--test-threads=8",
        "contract::on_redis::",
        "contract::fences",
        "contract::what_takes",
        "server::",
        "tier::a_",
        "tier::an",
        "tier::what",
    ],
)];

/// The suites for bugs in consumers of messages.
const FLOW_SUITES: &[Choice] = &[
    ("inbox", &["--test-threads=8"]),
    ("consume", &["--test-threads=8"]),
];

/// A suite that takes longer hangs, which also convicts.
const SUITE_TIME_MAX: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let chosen = match choose(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(chosen) => chosen,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let bugs = chosen.into_iter();
    let (postgres, others): (Vec<_>, Vec<_>) = bugs.partition(|name| name.starts_with(POSTGRES));
    let (redis, others): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|name| name.starts_with(REDIS));
    let (flow, others): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|name| name.starts_with(FLOW));
    let tried = try_bugs(SUITES, &others).and_then(|mut acquitted| {
        if postgres.is_empty() || has_postgres() {
            acquitted.extend(try_bugs(POSTGRES_SUITES, &postgres)?);
        } else {
            skip(&postgres, "PostgreSQL");
        }
        if redis.is_empty() || has_redis() && has_postgres() {
            acquitted.extend(try_bugs(REDIS_SUITES, &redis)?);
        } else {
            skip(&redis, "Redis, or no PostgreSQL,");
        }
        if flow.is_empty() || has_postgres() {
            acquitted.extend(try_bugs(FLOW_SUITES, &flow)?);
        } else {
            skip(&flow, "PostgreSQL");
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

/// The bugs that the arguments name: by name, as `--part 2/3` every third one from the second on, or
/// all.
fn choose(arguments: &[String]) -> Result<Vec<&'static str>, String> {
    let names = BUGS.iter().map(|(name, _)| *name);
    if let [option, part] = arguments
        && option == "--part"
    {
        let parsed = part.split_once('/').and_then(|(part, parts)| {
            let (part, parts) = (part.parse::<usize>().ok()?, parts.parse::<usize>().ok()?);
            (1..=parts).contains(&part).then_some((part, parts))
        });
        let (part, parts) =
            parsed.ok_or_else(|| format!("no part is called {part:?}: write 2/3"))?;
        println!("part {part} of {parts} of the planted bugs");
        return Ok(names.skip(part - 1).step_by(parts).collect());
    }
    let known: Vec<_> = names.collect();
    if let Some(unknown) = arguments
        .iter()
        .find(|name| !known.contains(&name.as_str()))
    {
        return Err(format!(
            "no bug is called {unknown:?}; the bugs are {known:?}"
        ));
    }
    let is_chosen = |name: &&str| arguments.is_empty() || arguments.iter().any(|one| one == name);
    Ok(known.into_iter().filter(is_chosen).collect())
}

/// Whether PostgreSQL is available. Prints `SKIPPED` if not.
fn has_postgres() -> bool {
    servers::Postgres::start().is_some()
}

/// Whether Redis is available. Prints `SKIPPED` if not.
fn has_redis() -> bool {
    servers::Redis::start(&[]).is_some()
}

fn skip(bugs: &[&str], server: &str) {
    for bug in bugs {
        println!("{bug:>30}  SKIPPED: there is no {server} here to plant it in");
    }
}

/// Why the run has no meaningful verdict.
struct Void(String);

/// Tries each of these bugs, prints a row of the table for each, and returns those that no suite
/// detected.
fn try_bugs<'a>(choices: &[Choice], bugs: &[&'a str]) -> Result<Vec<&'a str>, Void> {
    if bugs.is_empty() {
        return Ok(Vec::new());
    }
    let suites = build(choices)?;
    // All suites must pass without a bug; otherwise a conviction would mean nothing.
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

/// A test binary with the bugs compiled in, and its arguments.
struct Suite {
    name: String,
    executable: PathBuf,
    arguments: &'static [&'static str],
}

struct Conviction {
    suite: String,
    /// The first test that failed, or another kind of failure.
    by: String,
}

/// Builds the suites with the bugs compiled in.
fn build(choices: &[Choice]) -> Result<Vec<Suite>, Void> {
    let messages = compile(choices)?;
    let suite = |(name, arguments): &Choice| {
        let executable = executable(&messages, name)
            .ok_or_else(|| Void(format!("cargo built no suite {name}")))?;
        Ok(Suite {
            name: (*name).to_owned(),
            executable,
            arguments,
        })
    };
    choices.iter().map(suite).collect()
}

/// The messages of cargo while it builds the test binaries.
fn compile(choices: &[Choice]) -> Result<String, Void> {
    let features = std::env::var("HAPAX_FEATURES")
        .map_err(|_| Void("HAPAX_FEATURES is not set: run ./check planted_bugs".to_owned()))?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args([
        "test",
        "--no-run",
        "--message-format=json",
        "--workspace",
        "--locked",
    ]);
    command
        .args(["--features", &format!("{features},hapax/planted")])
        .args(choices.iter().flat_map(|(name, _)| ["--test", name]));
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Void(format!("cargo does not start: {error}")))?;
    if !output.status.success() {
        return Err(Void("the suites do not build".to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The path of the test binary `name` in cargo's messages.
fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    let of_suite = format!("\"kind\":[\"test\"],\"crate_types\":[\"bin\"],\"name\":\"{name}\"");
    let mut found = messages.lines().filter(|line| line.contains(&of_suite));
    let message = found.next()?;
    assert!(found.next().is_none(), "two suites are called {name}");
    let (_, rest) = message.split_once("\"executable\":\"")?;
    Some(rest.split('"').next()?.into())
}

impl Suite {
    /// Runs the suite with this bug active, or with none, until a test fails.
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
        // One failure is enough. Servers that the suite has started end with it.
        let _ = child.kill();
        let _ = child.wait();
        by.map(|by| Conviction {
            suite: self.name.clone(),
            by,
        })
    }
}

/// The lines of an output, as they arrive.
fn lines(output: impl Read + Send + 'static) -> Receiver<String> {
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        // The receiver may be gone.
        BufReader::new(output)
            .lines()
            .map_while(Result::ok)
            .try_for_each(|line| send.send(line))
    });
    lines
}
