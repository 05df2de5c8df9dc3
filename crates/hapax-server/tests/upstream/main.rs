//! The gateway before services that misbehave on the wire.

mod bench;
mod bodies;
mod client;
mod faults;
mod reuse;
mod review;
mod servers;
mod shares;
mod streaming;
mod surplus;
mod upgrade;
mod wire;
