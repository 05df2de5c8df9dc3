//! A gateway that is operated: given another configuration while it works, asked what it does, told
//! to only watch.

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
mod world;
