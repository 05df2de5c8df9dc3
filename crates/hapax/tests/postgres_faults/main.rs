//! The store for many nodes under servers that fail: real ones, private to these tests. What had an
//! effect is counted by the tests themselves and never by Hapax. Every test says how many of its
//! faults landed; a run in which none did proves nothing, and fails.

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
mod versions;
mod watched;
mod week;
mod world;
