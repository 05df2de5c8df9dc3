//! The Redis store and the tier on private servers: the contract, and what these stores add.

mod contract;
mod copies;
mod history;
mod place;
mod server;
mod tier;
mod wakes;
