//! A real service in its own process, killed with SIGKILL at every named point of an attempt, or
//! stopped with SIGSTOP past its lease. The verdict comes from a ledger outside Hapax.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod client;
mod kill;
mod service;
mod stop;
