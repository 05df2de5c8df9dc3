//! The tools on this machine, and the files of this project.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use hapax_testkit::skipped;

/// The root of the project.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// A file of the project, as text.
pub fn text(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A YAML file of the project with one document.
pub fn yaml(path: &str) -> serde_json::Value {
    serde_saphyr::from_str(&text(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The documents of a YAML file of the project.
pub fn documents(path: &str) -> Vec<serde_json::Value> {
    let read = |document| {
        serde_saphyr::from_str(document).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    text(path).split("\n---\n").map(read).collect()
}

/// The path of a tool, if it is on the search path or among those that `./check needs` put beside
/// the build.
pub fn tool(name: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("tools");
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into(), beside])
        .map(|at| at.join(name))
        .find(|at| at.is_file())
}

/// The tool; `None`, after printing that the test is skipped, if it is missing.
pub fn needed(name: &str) -> Option<PathBuf> {
    let found = tool(name);
    if found.is_none() {
        skipped(format_args!("there is no {name} here"));
    }
    found
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs a command to its end and checks that it succeeded. Returns both outputs.
#[track_caller]
pub fn ran(command: &mut Command) -> String {
    let (is_well, said) = ended(command);
    assert!(is_well, "{command:?} did not end well:\n{said}");
    said
}

/// Runs a command to its end. Returns whether it succeeded, and both outputs.
pub fn ended(command: &mut Command) -> (bool, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    (
        status.success(),
        format!(
            "{}{}",
            String::from_utf8_lossy(&stdout),
            String::from_utf8_lossy(&stderr)
        ),
    )
}

/// Runs a tool with these arguments.
#[track_caller]
pub fn run<A: AsRef<OsStr>>(tool: &Path, args: impl IntoIterator<Item = A>) -> String {
    ran(Command::new(tool).args(args))
}
