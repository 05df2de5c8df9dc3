//! The version that the built program reports.

use std::process::Command;

use super::harness::{hapax, words};
use super::tools::{ended, ran, root};

#[test]
fn the_version_names_the_commit_and_its_day() {
    let short = ran(hapax().arg("-V"));
    assert_eq!(short, format!("hapax {}\n", env!("CARGO_PKG_VERSION")));
    let long = ran(hapax().arg("--version"));
    let (version, rest) = long
        .trim_end()
        .split_once(" (commit ")
        .unwrap_or_else(|| panic!("{long}"));
    assert_eq!(version, short.trim_end());
    let rest = rest.trim_end_matches(')');
    let (commit, date) = rest.split_once(", ").unwrap_or((rest, ""));
    // A development build is not rebuilt for each commit, and adds "or later".
    let commit = commit.trim_end_matches(" or later");
    // In a repository the commit must exist there; elsewhere it is unknown.
    let (is_repository, known) = ended(
        Command::new("git")
            .args(["cat-file", "-t", commit])
            .current_dir(root()),
    );
    let is_tracked = ended(
        Command::new("git")
            .args(words("ls-files --error-unmatch build.rs"))
            .current_dir(env!("CARGO_MANIFEST_DIR")),
    )
    .0;
    if is_tracked {
        assert!(is_repository && known == "commit\n", "{long}");
        assert_eq!(date.len(), "2026-11-15".len(), "{long}");
    } else {
        assert_eq!(long.trim_end(), format!("{version} (commit unknown)"));
    }
}
