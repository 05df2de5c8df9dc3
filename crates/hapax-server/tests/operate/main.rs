//! Operating a gateway: reloads while it runs, its metrics and log, and shadow mode.

#![allow(unreachable_pub, reason = "modules of one test binary")]

#[path = "../harness/mod.rs"]
mod harness;
mod lines;
mod load;
mod logged;
mod metrics;
mod program;
mod rules;
mod service;
mod shadow;
mod unknown;
mod world;
