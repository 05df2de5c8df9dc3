//! The admin listener: accepts connections and serves them within limits.
//!
//! It is separate from the gateway's listener, because it must answer when that one is full, and
//! because its clients may not be operators.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tower_service::Service;

use super::caller::Peer;
use crate::telemetry::{Listener, Metrics};

const HEAD_BYTES_MAX: usize = 32 << 10;
const FIELDS_MAX: usize = 100;
/// The pause after an accept error: time for file descriptors to become free.
const BREATH: Duration = Duration::from_millis(50);

/// Limits on the clients of the admin listener.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Concurrent connections. Operators, probes and a scraper need few.
    pub connections_max: usize,
    /// From one answer, or from connecting, to the last byte of the next request's head.
    pub head_longest: Duration,
    /// The longest life of a connection: a client that reads its answer byte by byte loses it in
    /// the end.
    pub connection_longest: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections_max: 512,
            head_longest: Duration::from_secs(10),
            connection_longest: Duration::from_secs(5 * 60),
        }
    }
}

/// Serves until it is dropped.
pub async fn serve(
    socket: TcpListener,
    router: Router,
    metrics: Metrics,
    limits: Limits,
) -> Infallible {
    let room = Arc::new(Semaphore::new(limits.connections_max));
    loop {
        let Ok((stream, peer)) = socket.accept().await else {
            tokio::time::sleep(BREATH).await;
            continue;
        };
        let Ok(place) = room.clone().try_acquire_owned() else {
            metrics.connection_refused("admin_too_many");
            continue;
        };
        let (router, counted) = (router.clone(), metrics.connected(Listener::Admin));
        tokio::spawn(async move {
            let _held = (place, counted);
            let _ = tokio::time::timeout(
                limits.connection_longest,
                attend(stream, peer, router, limits),
            )
            .await;
        });
    }
}

/// Serves one connection. Its errors are the client's concern and are ignored.
async fn attend(stream: TcpStream, peer: SocketAddr, router: Router, limits: Limits) {
    let _ = stream.set_nodelay(true);
    let service =
        hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
            let mut request: Request = request.map(axum::body::Body::new);
            request.extensions_mut().insert(Peer(peer));
            router.clone().call(request)
        });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_longest)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(FIELDS_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let _ = connection.await;
}
