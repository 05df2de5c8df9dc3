//! The gateway in a process of its own, killed at every named point and stopped under load; clients
//! that hang up at every byte; a store whose disk is full. Judged by a ledger in the upstream,
//! where nothing that is killed can reach it.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod bench;
mod client;
mod gateway;
mod hangup;
mod kill;
mod program;
mod random;
mod round;
mod sockets;
mod store;
mod streams;
mod term;
mod upstream;
