//! Sends one request on its own connection, and counts the results of all requests.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

/// The error of a request that got no answer. It does not tell whether the request had an effect.
pub(crate) type Lost = Box<dyn std::error::Error + Send + Sync>;

/// Sends the request and waits for the whole answer. Dropping the future closes the connection.
pub(crate) async fn send(
    address: SocketAddr,
    request: Request<Full<Bytes>>,
) -> Result<Response<Bytes>, Lost> {
    let stream = TcpStream::connect(address).await?;
    // The port of a dead service may be assigned to the very socket that connects to it. That
    // socket would then talk to itself.
    if stream.local_addr()? == address {
        return Err("nobody listens there".into());
    }
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let (head, body) = sender.send_request(request).await?.into_parts();
    Ok(Response::from_parts(head, body.collect().await?.to_bytes()))
}

/// Counters that all tasks of a storm share.
#[derive(Default)]
pub(crate) struct Tally {
    /// Requests, including those that the balancer sent again.
    pub(crate) sent: Count,
    /// Answers that are marked as replays.
    pub(crate) replayed: Count,
    /// Requests that were told that the same request is in flight.
    pub(crate) told_to_wait: Count,
    /// Orders whose card the bank declined.
    pub(crate) refused: Count,
    /// Orders whose customer was told that the outcome is unknown.
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
