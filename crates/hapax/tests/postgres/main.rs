//! The Postgres store, held to the contract and to what it adds, on a private server.

mod company;
mod contract;
mod counts;
mod crash;
mod history;
mod join;
mod lanes;
mod nodes;
mod place;
mod replies;
mod ring;
mod schema;
mod standby;
mod surroundings;
mod table;
