//! One request on a connection of its own, as a customer or a balancer sends it.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

/// What a request ends in when it does not end in an answer. Nobody can tell from it whether
/// anything happened.
pub(super) type Lost = Box<dyn std::error::Error + Send + Sync>;

/// Sends and waits for the whole answer. Whoever stops waiting hangs up.
pub(super) async fn send(
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
