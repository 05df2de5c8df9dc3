//! The program's commands on a real Postgres that is private to these tests.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod check;
mod copy;
#[allow(dead_code, reason = "other test binaries use the rest")]
#[path = "../operators/fixture.rs"]
mod fixture;
#[path = "../harness/mod.rs"]
mod harness;
mod keys;
mod migrate;
mod serve;
mod watch;

pub use harness::migrated;
use harness::{Said, said};

/// Runs the program to its end, without the `PG*` variables of the environment.
fn hapax(args: &[&str]) -> Said {
    hapax_with(args, &[])
}

fn hapax_with(args: &[&str], variables: &[(&str, &str)]) -> Said {
    let variables = variables.iter().copied();
    let mut command = harness::hapax();
    let command = command.args(args).env("USER", "ada");
    said(command.env("PGCONNECT_TIMEOUT", "2").envs(variables))
}

/// The name of the database in a URL.
fn database(url: &str) -> &str {
    url.rsplit('/').next().expect("a database")
}

/// The URL of the same database for another role.
fn as_role(url: &str, role: &str) -> String {
    url.replace("postgres@", &format!("{role}@"))
}

/// An address without a listener.
fn nowhere() -> String {
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    format!("postgres://postgres@127.0.0.1:{port}/hapax")
}
