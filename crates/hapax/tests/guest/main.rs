//! Records as guests in the user's own SQLite file: the contract, joining transactions, other users
//! of the file, and the states of a file.

mod company;
mod contract;
mod crash;
mod file;
mod forget;
mod join;
mod shop;
