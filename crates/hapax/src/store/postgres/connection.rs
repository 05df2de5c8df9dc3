//! A connection for the caller's own statements.

use tokio_postgres::Client;

use super::ConnectOptions;
use super::connect::{ConnectError, Connected, connect};

/// A connection of your own to the database of a store, made as the store makes its connections:
/// to the first host that accepts writes, with TLS and the password file as the options say.
pub struct Connection(Connected);

impl Connection {
    /// Connects, or explains why that failed.
    ///
    /// # Errors
    ///
    /// When no host can be reached, accepts writes and lets this role in.
    pub async fn open(options: &ConnectOptions) -> Result<Connection, ConnectError> {
        connect(options).await.map(Connection)
    }

    /// Sends statements.
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.0.closed.is_cancelled()
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}
