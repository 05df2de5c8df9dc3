//! One request on a connection of its own, and the counts of what came of all of them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

/// What a request ends in when it does not end in an answer. Nobody can tell from it whether
/// anything happened.
pub(crate) type Lost = Box<dyn std::error::Error + Send + Sync>;

/// Sends and waits for the whole answer. Whoever stops waiting hangs up.
pub(crate) async fn send(
    address: SocketAddr,
    request: Request<Full<Bytes>>,
) -> Result<Response<Bytes>, Lost> {
    let stream = TcpStream::connect(address).await?;
    // A dead service's port may be given to the very socket that calls it, which then talks to
    // itself.
    if stream.local_addr()? == address {
        return Err("nobody listens there".into());
    }
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let (head, body) = sender.send_request(request).await?.into_parts();
    Ok(Response::from_parts(head, body.collect().await?.to_bytes()))
}

/// Counters that everybody in a storm adds to.
#[derive(Default)]
pub(crate) struct Tally {
    /// Requests, those that the balancer sent again included.
    pub(crate) sent: Count,
    /// Answers that said they were sent before.
    pub(crate) replayed: Count,
    /// Requests that were told that the same one is being worked on.
    pub(crate) told_to_wait: Count,
    /// Orders whose card the bank declined.
    pub(crate) refused: Count,
    /// Orders of which a customer was told that nobody knows.
    pub(crate) held: Count,
}

/// One counter.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
