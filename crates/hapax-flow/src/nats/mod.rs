//! Servers of NATS, as the publisher and the source reach them.

mod connection;
mod servers;

pub use servers::{NatsCredentials, NatsError, NatsServers};

pub(crate) use connection::{Answer, ApiError, Connection, Unanswered};
pub(crate) use servers::Server;

/// Whether a stream or a consumer can have this name: it stands in the subjects of the API.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains([' ', '.', '*', '>', '/', '\\'])
}
