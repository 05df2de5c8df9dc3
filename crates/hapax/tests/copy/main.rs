//! Copying a store: no record is lost, no effect runs twice, and never do both stores serve.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod ends;
mod filled;
mod killed;
mod racing;
mod refused;
mod round;
