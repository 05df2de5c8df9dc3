//! Principals, through the real gateway over real sockets: no caller gets another's answer, nor its
//! own without its credential.
//!
//! `world.rs` is a gateway with an upstream that keeps its own ledger; `issuer.rs` makes valid and
//! invalid tokens.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod anonymous;
mod canary;
mod client;
mod cookies;
mod forged;
mod forward_auth;
#[path = "../harness/mod.rs"]
mod harness;
mod issuer;
mod lists;
mod rotation;
mod routes;
mod secrets;
mod shadow;
mod sources;
mod spoof;
mod tokens;
mod webhooks;
mod world;
