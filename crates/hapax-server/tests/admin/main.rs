//! The admin listener of a gateway that has handled real traffic: who may ask, what it answers to
//! whom, and what a job of the upstream can settle there.

#![allow(unreachable_pub, reason = "modules of one test binary")]

#[path = "../operators/fixture.rs"]
#[allow(dead_code, reason = "the tests of the command use the rest")]
mod fixture;
#[path = "../harness/mod.rs"]
mod harness;
mod hurt;
mod job;
mod limits;
mod log;
mod openapi;
mod race;
mod schemathesis;
mod tokens;
mod watch;
mod world;
