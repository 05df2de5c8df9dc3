//! The Postgres store on real, private servers that fail. The tests count effects themselves and
//! never ask Hapax. Every test prints how many of its faults landed; a run in which none did proves
//! nothing, and fails.

mod alarm;
mod clock;
mod cuts;
mod kills;
mod lost;
mod promotions;
mod restored;
mod ring;
mod shop;
mod subject;
mod traps;
mod two_calls;
mod versions;
mod watched;
mod week;
mod world;
