//! The gateway before services that misbehave on the wire.

mod bench;
mod client;
mod faults;
mod reuse;
mod review;
mod servers;
mod streaming;
mod upgrade;
