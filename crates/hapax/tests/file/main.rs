//! The store's file: reopening, damage, the limits of its log and size, copies, and other processes
//! that open it.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod audit;
mod backup;
mod bounds;
mod damage;
mod erasure;
mod owners;
mod reopen;
mod shop;
