//! Plants known bugs in the production path, one at a time, and runs the suite against each: a bug that no test notices fails the run.
//!
//! ```text
//! cargo run -p hapax-testkit --bin convict [BUG…]
//! ```

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use hapax_core::planted::BUGS;

/// The suites, quick ones first: the first that notices a bug convicts it. None of them knows that bugs are planted.
const SUITES: &[(&str, &[&str])] =
    &[("hapax-testkit", &["memory"]), ("hapax", &["once", "layer", "outcomes", "rejections", "axum", "sqlite"])];

/// A suite that takes longer hangs, which convicts as well.
const SUITE_TIME_MAX: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let chosen: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = chosen.iter().find(|name| BUGS.iter().all(|(bug, _)| bug != name)) {
        let names: Vec<_> = BUGS.iter().map(|(name, _)| *name).collect();
        eprintln!("no bug is called {unknown:?}; the bugs are {names:?}");
        return ExitCode::from(2);
    }
    let suites = match build() {
        Ok(suites) => suites,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    // Without a bug all is well; else a conviction would mean nothing.
    if let Some(Conviction { suite, tests }) = suites.iter().find_map(|suite| suite.try_bug(None)) {
        eprintln!("without any bug, {suite} fails: {tests:?}");
        return ExitCode::FAILURE;
    }
    let bugs = BUGS.iter().map(|(name, _)| *name).filter(|name| chosen.is_empty() || chosen.iter().any(|chosen| chosen == name));
    let acquitted: Vec<_> =
        bugs.filter(|bug| !report(bug, suites.iter().find_map(|suite| suite.try_bug(Some(bug))).as_ref())).collect();
    if acquitted.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("nobody noticed: {acquitted:?}");
    ExitCode::FAILURE
}

/// Prints a row of the table; says whether the bug was convicted.
fn report(bug: &str, conviction: Option<&Conviction>) -> bool {
    match conviction {
        None => println!("{bug:>24}  NOT NOTICED"),
        Some(Conviction { suite, tests }) => {
            let more = tests.len().saturating_sub(1);
            let more = if more == 0 { String::new() } else { format!(" (and {more} more)") };
            println!("{bug:>24}  {suite}: {}{more}", tests.first().map_or("hangs", String::as_str));
        }
    }
    conviction.is_some()
}

/// A test binary with the bugs compiled in.
struct Suite {
    name: String,
    executable: PathBuf,
}

struct Conviction {
    suite: String,
    tests: Vec<String>,
}

/// Builds the suites with the bugs compiled in.
fn build() -> Result<Vec<Suite>, String> {
    let mut suites = Vec::new();
    for (package, names) in SUITES {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["test", "--no-run", "--message-format=json", "--all-features", "--package", package]);
        command.args(["--features", "hapax-core/planted"]).args(names.iter().flat_map(|name| ["--test", name]));
        let output = command.stderr(Stdio::inherit()).output().map_err(|error| format!("cargo does not start: {error}"))?;
        if !output.status.success() {
            return Err(format!("the suites of {package} do not build"));
        }
        let messages = String::from_utf8_lossy(&output.stdout).into_owned();
        for name in *names {
            let executable = executable(&messages, name).ok_or_else(|| format!("cargo built no suite {name}"))?;
            suites.push(Suite { name: format!("{package}::{name}"), executable });
        }
    }
    Ok(suites)
}

/// Where cargo says it put the test binary `name`.
fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    let message = messages
        .lines()
        .find(|line| line.contains(&format!("\"kind\":[\"test\"],\"crate_types\":[\"bin\"],\"name\":\"{name}\"")))?;
    let (_, rest) = message.split_once("\"executable\":\"")?;
    Some(rest.split('"').next()?.into())
}

impl Suite {
    /// Runs the suite with this bug alive, or none; the tests that failed, if any did.
    fn try_bug(&self, bug: Option<&str>) -> Option<Conviction> {
        let mut command = Command::new(&self.executable);
        command.env_remove("HAPAX_PLANTED").envs(bug.map(|bug| ("HAPAX_PLANTED", bug))).env("RUST_BACKTRACE", "0");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).stdin(Stdio::null()).spawn().expect("a suite starts");
        let mut stdout = child.stdout.take().expect("piped");
        let output = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stdout.read_to_string(&mut text);
            text
        });
        let deadline = Instant::now() + SUITE_TIME_MAX;
        let status = loop {
            match child.try_wait().expect("a suite can be waited for") {
                None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
                None => {
                    let _ = child.kill();
                    let _ = child.wait();
                    break None;
                }
                status => break status,
            }
        };
        if status.is_some_and(|status| status.success()) {
            return None;
        }
        let output = output.join().unwrap_or_default();
        let failed = output.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
        Some(Conviction { suite: self.name.clone(), tests: failed.map(str::to_owned).collect() })
    }
}
