//! The store's file: what is in it after it was opened again, what a damaged one does, how long its
//! log and how large it may grow, copies of it, and who else may come near it.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod audit;
mod backup;
mod bounds;
mod damage;
mod erasure;
mod owners;
mod reopen;
mod shop;
