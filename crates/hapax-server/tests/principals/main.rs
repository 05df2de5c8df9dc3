//! Who is asking, through the real gateway over real sockets: nobody gets another's answer, nor
//! their own without showing who they are.
//!
//! `program.rs` is the program itself; `world.rs` is a gateway with an upstream that keeps its own
//! ledger; `client.rs` speaks with it in HTTP/1.1 and HTTP/2; `issuer.rs` makes tokens, good and
//! bad; `service.rs` is a service to be asked: for keys, or for who is asking.

mod anonymous;
mod canary;
mod client;
mod cookies;
mod forged;
mod forward_auth;
mod issuer;
mod lists;
mod program;
mod rotation;
mod routes;
mod secrets;
mod service;
mod shadow;
mod sources;
mod spoof;
mod tokens;
mod world;
