//! Webhooks against real servers on the loopback interface.

mod addresses;
mod connections;
mod failures;
mod order;
mod readers;
mod tls;
mod verdicts;
mod world;
