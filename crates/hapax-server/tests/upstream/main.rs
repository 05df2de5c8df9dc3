//! The gateway before services that misbehave on the wire.

mod bench;
mod bodies;
mod client;
mod faults;
#[path = "../hostile/frames.rs"]
#[allow(dead_code, reason = "the hostile suite needs more of it")]
mod frames;
mod reuse;
mod review;
mod servers;
mod shares;
mod streaming;
mod surplus;
mod upgrade;
mod wire;
