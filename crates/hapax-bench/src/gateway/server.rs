//! A handle to the running server under measurement.

use std::time::Duration;

use uuid::Uuid;

use crate::Error;
use crate::client::{Connection, Request};
use crate::directory::Directory;

use super::process::Process;

/// The path of orders.
pub(super) const ORDERS: &str = "/v1/charges";

/// The time from accepting connections to serving: Restate's partitions elect their leaders first,
/// and workers have to start.
pub(super) const SERVES_WITHIN: Duration = Duration::from_secs(30);

/// A server that accepts orders.
pub(super) struct Server {
    /// The process whose processor time counts.
    pub(super) process: Process,
    /// Its own service, if it does not use the shared upstream.
    pub(super) service: Option<Process>,
    pub(super) address: String,
    pub(super) order: Request,
    pub(super) without_key: Request,
    /// Removed when it is no longer used.
    pub(super) _directory: Option<Directory>,
}

impl Server {
    /// Checks that one key always has one answer, and another key another. A server that keeps no
    /// answers would be fast for the wrong reason.
    pub(super) async fn replays(&self, name: &str) -> Result<(), Error> {
        self.keeps_answers(name)
            .await
            .map_err(|error| format!("{error}; it said:\n{}", self.process.last_words()).into())
    }

    async fn keeps_answers(&self, name: &str) -> Result<(), Error> {
        let exchange = async |key| exchange(&self.address, &self.order, key, name).await;
        let [one, other] = [(); 2].map(|()| Uuid::new_v4());
        let (first, again) = (exchange(one).await?, exchange(one).await?);
        if first != again || first == exchange(other).await? {
            return Err(format!("{name} does not give each key one answer of its own").into());
        }
        Ok(())
    }
}

/// Sends one request on its own connection. Returns the body of the answer.
pub(super) async fn exchange(
    address: &str,
    request: &Request,
    key: Uuid,
    name: &str,
) -> Result<Vec<u8>, Error> {
    let mut connection = Connection::open(address, request.clone()).await?;
    let answer = tokio::time::timeout(SERVES_WITHIN, connection.exchange(key))
        .await
        .map_err(|_| format!("{name} does not answer"))??;
    Ok(answer.to_vec())
}
