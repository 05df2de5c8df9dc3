//! Effects and records that commit together: every driver on its real database, checked against the
//! table of effects.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod drivers;
mod ends;
mod guarded;
mod in_transaction;
mod kills;
mod lost;
mod place;
mod refused;
mod script;
mod service;
mod world;
mod zombie;
