//! The Postgres store on a private server: the contract, and what this store adds.

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
mod two_calls;
