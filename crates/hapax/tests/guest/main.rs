//! Records as guests in the user's own SQLite file: the contract, joining transactions, company in
//! the file, and what a file can be.

mod company;
mod contract;
mod crash;
mod file;
mod forget;
mod join;
mod shop;
