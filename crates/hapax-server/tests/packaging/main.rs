//! The files shipped with the program: completions, manual, unit, image, package, dashboards,
//! alerts. Each is tested with the tool that reads it; if that tool is missing, the test prints so
//! and checks nothing.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod alerts;
mod backup;
mod dashboard;
mod deb;
#[path = "../harness/mod.rs"]
mod harness;
mod health;
mod image;
#[path = "../operators/like.rs"]
mod like;
mod man;
mod pages;
mod promql;
mod shells;
mod tools;
mod unit;
mod version;
