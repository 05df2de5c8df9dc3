//! The operators' commands through the built program: on store files made with the library, and
//! against the admin router on a real port.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod admin;
mod docs;
mod file;
mod fingerprint;
mod fixture;
#[path = "../harness/mod.rs"]
mod harness;
mod like;
