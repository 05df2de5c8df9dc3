//! A load balancer with a common misconfiguration: it sends a request again if it gets no answer in
//! time.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use crate::requests::{Tally, send};

/// Shorter than the service's slowest answer. That is the misconfiguration to show.
const PATIENCE: Duration = Duration::from_millis(400);

/// How often it sends a request before it answers 504.
const TRIES: u32 = 2;

/// A load balancer that runs until it is dropped.
pub(crate) struct Balancer {
    address: SocketAddr,
    _accepting: AbortOnDropHandle<()>,
}

impl Balancer {
    /// Listens on a free port and forwards all requests to `behind`.
    pub(crate) async fn start(behind: SocketAddr, tally: Arc<Tally>) -> std::io::Result<Balancer> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let accepting = tokio::spawn(async move {
            loop {
                if let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(converse(stream, behind, tally.clone()));
                }
            }
        });
        Ok(Balancer {
            address,
            _accepting: AbortOnDropHandle::new(accepting),
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn converse(stream: TcpStream, behind: SocketAddr, tally: Arc<Tally>) {
    let pass_on = service_fn(move |request| pass_on(request, behind, tally.clone()));
    // A customer who closes the connection is not an error.
    drop(
        hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), pass_on)
            .await,
    );
}

async fn pass_on(
    request: Request<Incoming>,
    behind: SocketAddr,
    tally: Arc<Tally>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    for sent_before in 0..TRIES {
        if sent_before > 0 {
            tally.sent.add();
        }
        let again = Request::from_parts(head.clone(), Full::new(body.clone()));
        if let Ok(Ok(answer)) = tokio::time::timeout(PATIENCE, send(behind, again)).await {
            return Ok(answer.map(Full::new));
        }
    }
    let mut gave_up = Response::default();
    *gave_up.status_mut() = StatusCode::GATEWAY_TIMEOUT;
    Ok(gave_up)
}
