//! The program on a real Postgres, private to these tests: what is typed, and what is said and
//! done.

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

/// Runs the program to its end. Of the `PG*` variables none is meant for it.
fn hapax(args: &[&str]) -> Said {
    hapax_with(args, &[])
}

fn hapax_with(args: &[&str], variables: &[(&str, &str)]) -> Said {
    let variables = variables.iter().copied();
    let mut command = harness::hapax();
    let command = command.args(args).env("USER", "ada");
    said(command.env("PGCONNECT_TIMEOUT", "2").envs(variables))
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
