//! Copying a store: nothing is lost, nothing is done twice, and never do two of them serve.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod ends;
mod filled;
mod killed;
mod racing;
mod refused;
mod round;
