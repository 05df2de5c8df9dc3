//! Every configuration mistake with its error message.

use std::fs;

use hapax_server::config::Environment;
use hapax_server::config::file::Overrides;

use crate::{directory, load, upstream};

/// Cases and their messages: a title after `####`, the file, `----`, and its message, with file
/// names as they were given.
const MISTAKES: &str = "tests/configuration/mistakes.txt";

#[test]
fn every_mistake_is_told_with_its_line_and_what_to_write() {
    let directory = directory();
    let told = |text: &str, overrides: &Overrides| match load(directory.path(), text, overrides) {
        Ok(_) => "ACCEPTED".to_owned(),
        Err(error) => error
            .to_string()
            .replace(&format!("{}/", directory.path().display()), ""),
    };
    let cases = fs::read_to_string(MISTAKES).unwrap();
    let mut actual = String::new();
    let mut count = 0;
    for case in cases.split("#### ").skip(1) {
        let (title, rest) = case.split_once('\n').unwrap();
        let (text, _) = rest.split_once("----\n").unwrap();
        let mut overrides = if title.contains("without --upstream") {
            Overrides::default()
        } else {
            upstream()
        };
        overrides.environment = variables(text);
        let told = told(text, &overrides);
        assert!(!told.contains("hunter2"), "a secret is shown:\n{told}");
        assert!(
            told.contains(": ") && told != "ACCEPTED",
            "{title} is not refused:\n{told}"
        );
        actual += &format!("#### {title}\n{text}----\n{told}\n\n");
        count += 1;
    }
    hapax_testkit::report!("{count} mistakes, each told");
    assert!(count >= 150, "only {count} cases were found");
    if std::env::var_os("HAPAX_BLESS").is_some() {
        fs::write(MISTAKES, &actual).unwrap();
    }
    for (expected, actual) in fs::read_to_string(MISTAKES)
        .unwrap()
        .split("#### ")
        .zip(actual.split("#### "))
    {
        assert_eq!(
            actual, expected,
            "HAPAX_BLESS=1 writes the new messages down"
        );
    }
}

/// Variables are in lines before the file that begin with `# $ `, which are comments to the file.
fn variables(text: &str) -> Environment {
    text.lines()
        .filter_map(|line| line.strip_prefix("# $ ")?.split_once('='))
        .collect()
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    use hapax_server::config::file;
    use std::path::Path;
    let error = file::read(Path::new("/nowhere/hapax.toml"))
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "could not read the configuration /nowhere/hapax.toml: No such file or directory (os error 2)"
    );
    let directory = directory();
    fs::write(directory.path().join("hapax.toml"), b"listen = \"\xff\"").unwrap();
    let error = file::read(&directory.path().join("hapax.toml"))
        .unwrap_err()
        .to_string();
    assert!(
        error.ends_with("hapax.toml: stream did not contain valid UTF-8"),
        "{error}"
    );
}
