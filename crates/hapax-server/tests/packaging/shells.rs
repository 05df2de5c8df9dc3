//! Shell completions, tested in the shells.

use std::process::Command;

use super::harness::{hapax, words};
use super::tools::{ended, needed, ran, run};

/// Sources the script and prints the completions of these words, as bash does on a tab.
const BASH: &str = r#"
set -e
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
COMP_LINE="$*"
COMP_POINT=${#COMP_LINE}
_hapax hapax "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}" || true
printf '%s\n' "${COMPREPLY[@]}"
"#;

fn script(directory: &std::path::Path, shell: &str) -> std::path::PathBuf {
    let path = directory.join(shell);
    std::fs::write(&path, ran(hapax().args(["completions", shell]))).unwrap();
    path
}

#[test]
fn bash_completes_commands_flags_and_values() {
    let Some(bash) = needed("bash") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let script = script(directory.path(), "bash");
    let completed = |words: &[&str]| {
        let said = ran(Command::new(&bash)
            .args(["--norc", "-c", BASH, "bash"])
            .arg(&script)
            .args(words));
        said.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(completed(&["hapax", "ke"]), ["keys"]);
    assert_eq!(completed(&["hapax", "keys", "sett"]), ["settle"]);
    assert_eq!(completed(&words("hapax serve --ups")), ["--upstream"]);
    assert_eq!(completed(&["hapax", "completions", "zs"]), ["zsh"]);
    assert!(
        !completed(&["hapax", ""])
            .iter()
            .any(|word| word == "demo-service"),
        "what is hidden stays hidden"
    );
}

#[test]
fn every_shell_gets_a_script_and_another_a_list() {
    let directory = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = std::fs::read_to_string(script(directory.path(), shell)).unwrap();
        assert!(
            script.contains("hapax") && script.contains("settle"),
            "{shell}"
        );
    }
    let (is_well, said) = ended(hapax().args(["completions", "tcsh"]));
    assert!(
        !is_well && said.contains("bash, elvish, fish, powershell, zsh"),
        "{said}"
    );
}

#[test]
fn zsh_and_fish_take_theirs() {
    let directory = tempfile::tempdir().unwrap();
    for (shell, check) in [("zsh", "-n"), ("fish", "--no-execute")] {
        if let Some(tool) = needed(shell) {
            run(
                &tool,
                [check.as_ref(), script(directory.path(), shell).as_os_str()],
            );
        }
    }
}
