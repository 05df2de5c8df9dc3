//! Consuming messages: each changes the database once, however often it is delivered.
//!
//! A [`Source`] delivers messages at least once.

mod source;

pub use source::{Delivery, Incoming, Retention, Source};
