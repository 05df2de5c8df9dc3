//! Tells the program which commit it was built from: `hapax --version` is the first thing anybody
//! asks after an incident.
//!
//! From `HAPAX_COMMIT` and `HAPAX_COMMIT_DATE` if they are set (images are built without `.git`),
//! else from git, else from what cargo wrote into the package. A source tree without any of these
//! builds as well, and says `unknown`.

use std::env;
use std::path::Path;
use std::process::Command;

/// As many digits as people quote.
const DIGITS: usize = 7;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=HAPAX_COMMIT");
    println!("cargo::rerun-if-env-changed=HAPAX_COMMIT_DATE");
    let (commit, date) = given()
        .or_else(of_git)
        .or_else(of_package)
        .unwrap_or_else(|| ("unknown".to_owned(), None));
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let later = if is_followed() { "" } else { " or later" };
    let long = match &date {
        Some(date) => format!("{version} (commit {commit}{later}, {date})"),
        None => format!("{version} (commit {commit})"),
    };
    println!("cargo::rustc-env=HAPAX_BUILD_COMMIT={commit}");
    println!(
        "cargo::rustc-env=HAPAX_BUILD_DATE={}",
        date.as_deref().unwrap_or("undated")
    );
    println!("cargo::rustc-env=HAPAX_BUILD_VERSION={long}");
}

/// Whether each commit builds anew. What is built while working on it does not: linking every test
/// again takes minutes, and nobody runs that.
fn is_followed() -> bool {
    env::var("PROFILE").is_ok_and(|profile| profile == "release")
        || env::var("HAPAX_COMMIT").is_ok()
}

fn given() -> Option<(String, Option<String>)> {
    let commit = said(env::var("HAPAX_COMMIT").ok()?)?;
    Some((
        commit.chars().take(DIGITS).collect(),
        env::var("HAPAX_COMMIT_DATE").ok().and_then(said),
    ))
}

fn of_git() -> Option<(String, Option<String>)> {
    // The log of HEAD grows with each commit and each checkout. Where nobody keeps it, HEAD and
    // what it points to change instead.
    let head = git(&["symbolic-ref", "--quiet", "HEAD"]).unwrap_or_default();
    for path in ["logs/HEAD", "HEAD", &head, "packed-refs"]
        .into_iter()
        .filter(|_| is_followed())
    {
        // A path that is not there would count as changed at every build.
        if let Some(file) = git(&["rev-parse", "--git-path", path])
            .filter(|file| !path.is_empty() && Path::new(file).is_file())
        {
            println!("cargo::rerun-if-changed={file}");
        }
    }
    // Somebody else's repository may lie around an unpacked source tree: only one that keeps this
    // file speaks for it.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    let line = git(&[
        "log",
        "-1",
        &format!("--abbrev={DIGITS}"),
        "--format=%h %cs",
    ])?;
    let (commit, date) = line.split_once(' ')?;
    Some((commit.to_owned(), Some(date.to_owned())))
}

/// A package made by `cargo package` has no repository, but a note of where it came from.
fn of_package() -> Option<(String, Option<String>)> {
    let note = std::fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, rest) = note.split_once("\"sha1\"")?;
    let commit: String = rest
        .chars()
        .skip_while(|c| !c.is_ascii_hexdigit())
        .take(DIGITS)
        .collect();
    said(commit).map(|commit| (commit, None))
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(args)
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

fn said(text: String) -> Option<String> {
    let is_plain = !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    is_plain.then_some(text)
}
