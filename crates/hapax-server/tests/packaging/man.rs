//! The manual, as `man` shows it.

use std::path::Path;
use std::process::Command;

use super::harness::{hapax, words};
use super::tools::{ended, needed, ran};

fn pages() -> (tempfile::TempDir, Vec<std::path::PathBuf>) {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("man1");
    ran(hapax().args(["man".as_ref(), "--out".as_ref(), out.as_os_str()]));
    let mut pages: Vec<_> = std::fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    pages.sort();
    (directory, pages)
}

#[test]
fn there_is_a_page_for_every_command_and_none_for_hidden_ones() {
    let (_directory, pages) = pages();
    let names: Vec<_> = pages
        .iter()
        .map(|page| page.file_name().unwrap().to_str().unwrap())
        .collect();
    for wanted in [
        "hapax.1",
        "hapax-serve.1",
        "hapax-keys.1",
        "hapax-keys-settle.1",
        "hapax-store-backup.1",
        "hapax-health.1",
    ] {
        assert!(names.contains(&wanted), "{wanted} in {names:?}");
    }
    assert!(
        !names.iter().any(|name| name.contains("demo-service")),
        "{names:?}"
    );
    // Each command in the help has its page.
    let help = ran(hapax().arg("--help"));
    let listed = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty());
    // Continuation lines are indented further.
    let named = listed
        .filter_map(|line| line.strip_prefix("  "))
        .filter(|line| !line.starts_with(' '));
    for command in named.filter_map(|line| line.split_whitespace().next()) {
        assert!(
            names.contains(&format!("hapax-{command}.1").as_str()),
            "no page for {command}"
        );
    }
}

#[test]
fn every_page_is_shown_without_a_warning() {
    let Some(man) = needed("man") else {
        return;
    };
    let (_directory, pages) = pages();
    for page in &pages {
        let mut command = Command::new(&man);
        command
            .args(words("--warnings=all --encoding=UTF-8 --local-file"))
            .arg(page)
            .env("MANWIDTH", "80")
            .env("LC_ALL", "C.UTF-8");
        let (is_well, shown) = ended(&mut command);
        assert!(
            is_well && !shown.contains("warning"),
            "{}: {shown}",
            page.display()
        );
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "SEE ALSO"] {
            assert!(
                shown.lines().any(|line| line == section),
                "{}: no {section}",
                page.display()
            );
        }
    }
}

#[test]
fn a_page_is_printed_by_the_words_of_its_command() {
    assert!(ran(hapax().args(words("man keys settle"))).contains("hapax\\-keys\\-settle"));
    let (is_well, said) = ended(hapax().args(words("man keys sttle")));
    assert!(
        !is_well
            && said
                .contains("`hapax keys` has no command `sttle`: it has list, show, settle, forget"),
        "{said}"
    );
    let (is_well, said) = ended(hapax().args(words("man --out /proc/nowhere")));
    assert!(!is_well && said.contains("choose another --out"), "{said}");
    assert!(!Path::new("/proc/nowhere").exists());
}
