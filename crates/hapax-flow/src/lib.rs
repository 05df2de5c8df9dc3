//! Moves messages from the outbox to where they are read.
//!
//! [`outbox`] is where messages come from, [`publish`] where they go, and [`relay`] what moves them.
//! [`consume`] is the other end: it applies each message once, and [`inbox`] is what operators see of
//! it.

pub mod consume;
pub mod inbox;
mod kafka;
mod nats;
pub mod outbox;
pub mod publish;
mod rabbitmq;
mod redis;
pub mod relay;
mod tls;
