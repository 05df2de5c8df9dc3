//! The `hapax` program: a gateway in front of any HTTP service, and the commands around it.
//!
//! [`gateway`] is the library's own layer around a service that proxies; [`config`] says what it is
//! to do; [`admin`] is what operators ask; [`telemetry`] is what it tells; [`cli`] is what a person
//! types, a file for each command.
//!
//! A library as well as a program, so that tests and the demo can run the gateway in a process of
//! their own.

pub mod admin;
pub mod cli;
pub mod config;
mod credentials;
mod escape;
pub mod gateway;
mod store;
pub mod telemetry;
pub mod version;
