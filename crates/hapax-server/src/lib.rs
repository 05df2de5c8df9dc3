//! The `hapax` program: a gateway in front of any HTTP service, and the commands around it.
//!
//! [`gateway`] is the library's layer around a proxying service; `relay` publishes messages to
//! a [`destination`]; [`config`] is their configuration; [`admin`] is the API for operators; [`telemetry`] has logs, metrics and traces; [`cli`] has the
//! commands, a file for each.
//!
//! This is a library as well as a program, so that tests and the demo can run the gateway within
//! their own process.

pub mod admin;
pub mod cli;
pub mod config;
mod credentials;
pub mod destination;
mod escape;
pub mod gateway;
mod publishers;
mod relay;
mod store;
pub mod telemetry;
pub mod version;
