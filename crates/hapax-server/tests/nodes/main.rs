//! Several gateways on one Postgres: killed at every named point behind a load balancer that
//! retries failed requests, stopped past their leases, with wrong clocks, with ten thousand waiting
//! requests, and without their database.
//!
//! The verdict comes from a ledger in the upstream, which no kill affects. Each test prints how
//! many of its faults landed, and fails if none did. Without PostgreSQL, HAProxy or libfaketime, a
//! test prints that it was skipped.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod caller;
mod clocks;
#[path = "../harness/mod.rs"]
mod harness;
mod hunter;
mod kill;
mod outage;
mod point;
mod sluice;
mod waiters;
mod zombies;

use std::net::SocketAddr;

use harness::Program;

/// The program on a shared database, with these lines of `[defaults]`.
fn serve(
    store: &str,
    upstream: SocketAddr,
    defaults: &str,
    environment: &[(String, String)],
) -> Program {
    let settings = format!(
        "listen = \"127.0.0.1:0\"\nadmin = \"off\"\nstore = \"{store}\"\nprincipal = \"none\"\n\
         [upstream]\nurl = \"http://{upstream}\"\n[defaults]\n{defaults}\n"
    );
    let directory = tempfile::tempdir().unwrap();
    let mut command = harness::serve_command(directory.path(), &settings);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    Program::serve(&mut command).keep(directory)
}
