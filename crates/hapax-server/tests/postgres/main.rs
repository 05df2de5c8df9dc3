//! The program on a real Postgres, private to these tests: what is typed, and what is said and
//! done.

mod check;
mod copy;
#[allow(dead_code, reason = "other test binaries use the rest")]
#[path = "../operators/fixture.rs"]
mod fixture;
mod keys;
mod migrate;
#[allow(dead_code, reason = "other test binaries use the rest")]
#[path = "../packaging/program.rs"]
mod program;
mod serve;
mod watch;

use std::process::Command;

use fixture::{Said, said};
use hapax_testkit::servers::Postgres;

/// Runs the program to its end. Of the `PG*` variables none is meant for it.
fn hapax(args: &[&str]) -> Said {
    hapax_with(args, &[])
}

fn hapax_with(args: &[&str], variables: &[(&str, &str)]) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
    let variables = variables.iter().copied();
    said(
        command
            .args(args)
            .env("USER", "ada")
            .env("PGCONNECT_TIMEOUT", "2")
            .envs(variables)
            .output()
            .expect("it runs"),
    )
}

/// A new database that is prepared.
fn migrated(postgres: &Postgres) -> String {
    let url = postgres.database();
    let said = hapax(&["migrate", "--store", &url]);
    assert_eq!(said.code, 0, "{}", said.stderr);
    url
}

/// The last part of a URL.
fn database(url: &str) -> &str {
    url.rsplit('/').next().expect("a database")
}

/// The same database, as somebody else.
fn as_role(url: &str, role: &str) -> String {
    url.replace("postgres@", &format!("{role}@"))
}

/// An address at which nobody listens.
fn nowhere() -> String {
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    format!("postgres://postgres@127.0.0.1:{port}/hapax")
}
