//! Messages that have their effect once: receipts in the transaction of the effect, by SQL and
//! from Rust, checked against a table of effects.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod parked;
mod place;
mod receive;
mod rights;
mod rust;
mod slots;
mod story;
mod versions;
mod window;
