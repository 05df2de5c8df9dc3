//! The outbox and the relay on a private PostgreSQL server, and in a SQLite file.
//!
//! What was published is compared with what the writers themselves know of their commits, and with
//! the rows of their effects; never with what the outbox says of itself.

mod emit;
mod failures;
mod kafka;
mod naive;
mod outage;
mod place;
mod sqlite;
mod storm;
mod traps;
mod volume;
