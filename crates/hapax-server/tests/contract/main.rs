//! The HTTP contract through the real gateway: every row of `docs/http.md` over real sockets, in
//! HTTP/1.1 and HTTP/2, plain and over TLS.
//!
//! `matrix.rs` asks every row in all four ways and prints the table; `rows/` are the rows;
//! `world.rs` is the gateway of one cell, with an upstream behind it that keeps its own count of
//! effects. `HAPAX_BLESS=1` rewrites the snapshots.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod client;
mod disk;
mod fields;
#[path = "../harness/mod.rs"]
mod harness;
mod matrix;
mod operators;
mod replays;
mod rows;
mod snapshot;
mod upstream;
mod upstream_tls;
mod world;
