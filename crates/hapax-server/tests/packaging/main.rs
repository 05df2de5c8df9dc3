//! What is shipped around the program: completions, manual, unit, image, package, dashboards,
//! alerts. Each is tried with the tool that will read it; where that tool is not there, the test
//! says so and checks nothing.

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
