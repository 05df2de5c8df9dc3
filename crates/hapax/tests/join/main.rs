//! Effects and records that commit together: every driver on its real database, checked against the
//! table of effects.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod drivers;
mod ends;
mod guarded;
mod in_transaction;
mod inbox;
#[path = "../inbox/place.rs"]
#[allow(dead_code, reason = "the tests of the inbox use more of it")]
mod inbox_place;
mod kills;
mod lost;
mod place;
mod refused;
mod script;
mod service;
#[path = "../inbox/story.rs"]
mod story;
mod trace;
mod world;
mod zombie;
