//! The program's commands on a real Redis that is private to each test.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod cache;
mod check;
mod copy;
#[path = "../harness/mod.rs"]
mod harness;
mod keys;
mod outage;
mod refused;
mod serve;
mod tls;

use std::process::Command;

use hapax_testkit::origin::Origin;

use harness::{Program, SERVE, Said, said};

/// What makes a Redis keep every write that it has confirmed, also when it is killed.
const DURABLE: [(&str, &str); 2] = [("appendonly", "yes"), ("appendfsync", "always")];

/// Runs the program to its end.
fn hapax(args: &[&str]) -> Said {
    said(harness::hapax().args(args).env("USER", "ada"))
}

/// A gateway on this store.
fn gateway(url: &str, upstream: &Origin) -> Program {
    Program::serve(&mut serving(url, upstream))
}

/// The command of a gateway on this store. On a Redis it says that best effort is enough.
fn serving(url: &str, upstream: &Origin) -> Command {
    let upstream = format!("http://{}", upstream.address());
    let mut command = harness::hapax();
    command.args(SERVE);
    command.args(["--store", url, "--upstream", &upstream]);
    if url.starts_with("redis") {
        command.env("HAPAX__DURABILITY", "best-effort");
    }
    command
}

fn is_first(answer: &str) -> bool {
    answer.starts_with("HTTP/1.1 200") && !answer.contains("idempotent-replayed")
}

fn is_replay(answer: &str) -> bool {
    answer.starts_with("HTTP/1.1 200") && answer.contains("idempotent-replayed: true")
}
