//! The configuration: how it is read, the error messages for mistakes in it, and the commands that
//! show it.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod commands;
mod environment;
mod files;
mod fuzz;
#[path = "../harness/mod.rs"]
mod harness;
mod mistakes;
mod openapi;
mod reading;
mod schema;
mod secrets;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use hapax_server::config::file::{self, Loaded, Overrides};
use hapax_server::config::{Config, ConfigError};
use tempfile::TempDir;

/// A directory with the files that the configurations name.
fn directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("certificate.pem", ""),
        ("key.pem", ""),
        ("ca.pem", ""),
        ("token", "0123456789abcdef\n"),
        ("empty", "\n"),
        ("short", "hunter2\n"),
    ] {
        fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

fn load(directory: &Path, text: &str, overrides: &Overrides) -> Result<Loaded, ConfigError> {
    let path = directory.join("hapax.toml");
    fs::write(&path, text).unwrap();
    file::load(Some(&path), overrides)
}

fn upstream() -> Overrides {
    Overrides {
        upstream: Some("http://127.0.0.1:3000".parse().unwrap()),
        ..Overrides::default()
    }
}

fn good(text: &str) -> Config {
    load(directory().path(), text, &upstream())
        .unwrap_or_else(|error| panic!("{error}"))
        .config
}

/// A configuration from variables only.
fn of_variables(variables: &[(&str, &str)]) -> Result<Loaded, ConfigError> {
    let environment = variables
        .iter()
        .map(|(name, value)| (*name, *value))
        .collect();
    file::load(
        None,
        &Overrides {
            environment,
            ..upstream()
        },
    )
}

fn documentation() -> String {
    fs::read_to_string("../../docs/configuration.md").unwrap()
}

/// The complete example file of the documentation.
fn example() -> String {
    let documentation = documentation();
    let (_, rest) = documentation.split_once("```toml\n").unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

/// Runs the program. Returns its exit code, standard output and standard error.
fn hapax(directory: &Path, args: &[&str], variables: &[(&str, &str)]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("HAPAX_"))
    {
        command.env_remove(name);
    }
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .args(args)
        .envs(variables.iter().copied())
        .current_dir(directory)
        .output()
        .unwrap();
    (
        status.code().unwrap_or(-1),
        String::from_utf8(stdout).unwrap(),
        String::from_utf8(stderr).unwrap(),
    )
}
