//! What is measured, once it runs.

use std::time::Duration;

use uuid::Uuid;

use crate::Error;
use crate::client::{Connection, Request};
use crate::directory::Directory;

use super::process::Process;

/// Where orders go.
pub(super) const ORDERS: &str = "/v1/charges";

/// From accepting connections to serving: Restate's partitions have to find their leaders first,
/// workers have to come up.
pub(super) const SERVES_WITHIN: Duration = Duration::from_secs(30);

/// A server that accepts orders.
pub(super) struct Server {
    /// The one whose processor time counts.
    pub(super) process: Process,
    /// What it needs behind it instead of the upstream that the others share.
    pub(super) service: Option<Process>,
    pub(super) address: String,
    pub(super) order: Request,
    pub(super) without_key: Request,
    /// Goes when nobody uses it any more.
    pub(super) _directory: Option<Directory>,
}

impl Server {
    /// Whether one key has one answer, and another key another. Somebody who keeps no answers would
    /// be fast for no reason.
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

/// One request on a connection of its own; the body of the answer.
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
