//! The gateway in front of services that misbehave on the wire.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod bench;
mod bodies;
mod client;
mod faults;
#[path = "../harness/mod.rs"]
mod harness;
mod reuse;
mod review;
mod servers;
mod shares;
mod streaming;
mod surplus;
mod upgrade;
mod wire;
