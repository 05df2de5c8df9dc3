//! Idle connections that are kept open.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::Error;
use crate::client::{Connection, Request};

/// Idle connections, closed when dropped. Each has received one answer: a gateway may refuse
/// connections that never send a request.
pub(super) struct Held {
    /// How many connections the server closed and this client opened again.
    reopened: Arc<AtomicUsize>,
    tasks: JoinSet<Result<(), Error>>,
}

impl Held {
    pub(super) async fn open(
        address: &str,
        request: &Request,
        connections: usize,
    ) -> Result<Held, Error> {
        let mut held = Held {
            reopened: Arc::default(),
            tasks: JoinSet::new(),
        };
        for _ in 0..connections {
            let connection = opened(address, request).await?;
            held.tasks.spawn(hold(
                connection,
                address.to_owned(),
                request.clone(),
                held.reopened.clone(),
            ));
        }
        Ok(held)
    }

    /// How many connections have been opened again so far. An error if one could not be opened.
    pub(super) fn reopened(&mut self) -> Result<usize, Error> {
        match self.tasks.try_join_next() {
            Some(ended) => Err(ended?
                .err()
                .unwrap_or_else(|| "an idle connection was given up".into())),
            None => Ok(self.reopened.load(Ordering::Relaxed)),
        }
    }
}

async fn opened(address: &str, request: &Request) -> Result<Connection, Error> {
    let mut connection = Connection::open(address, request.clone()).await?;
    connection.exchange(Uuid::new_v4()).await?;
    Ok(connection)
}

/// Waits until the server closes the connection and opens another, forever.
async fn hold(
    mut connection: Connection,
    address: String,
    request: Request,
    reopened: Arc<AtomicUsize>,
) -> Result<(), Error> {
    loop {
        let mut stream = connection.into_stream();
        while stream.read(&mut [0; 64]).await.is_ok_and(|read| read > 0) {}
        drop(stream);
        connection = opened(&address, &request).await?;
        reopened.fetch_add(1, Ordering::Relaxed);
    }
}
