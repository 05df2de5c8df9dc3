//! A gateway, and a service behind it that counts what reaches it.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use hapax_server::config::{Config, Drain, Protocol, StoreUrl};
use hapax_server::gateway::{Gateway, StartError};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::client::{Asked, Client, Got};

/// What reached the upstream.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) headers: HeaderMap,
    pub(crate) trailers: HeaderMap,
}

/// A service that does something with every request, and says which it was.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    _accepting: AbortOnDropHandle<()>,
}

impl Upstream {
    pub(crate) async fn start(protocol: Protocol) -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, seen) = (listener.local_addr().unwrap(), Arc::new(Mutex::default()));
        let accepting = tokio::spawn(accept(listener, protocol, seen.clone()));
        Upstream {
            address,
            seen,
            _accepting: AbortOnDropHandle::new(accepting),
        }
    }

    /// How many requests have had their effect.
    pub(crate) fn effects(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    pub(crate) fn all(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn last(&self) -> Seen {
        self.all().pop().expect("something has arrived")
    }
}

async fn accept(listener: TcpListener, protocol: Protocol, seen: Arc<Mutex<Vec<Seen>>>) {
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let seen = seen.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| act(request, seen.clone()));
            let io = TokioIo::new(socket);
            // How a connection ends is seen at its other end.
            match protocol {
                Protocol::Http2 => {
                    drop(
                        hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                            .serve_connection(io, service)
                            .await,
                    );
                }
                _ => drop(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(io, service)
                        .await,
                ),
            }
        });
    }
}

async fn act(
    request: Request<Incoming>,
    seen: Arc<Mutex<Vec<Seen>>>,
) -> io::Result<Response<Full<Bytes>>> {
    let (parts, body) = request.into_parts();
    let trailers = body
        .collect()
        .await
        .ok()
        .and_then(|body| body.trailers().cloned())
        .unwrap_or_default();
    let mut seen = seen.lock().unwrap();
    let is_forged = parts
        .headers
        .get("authorization")
        .is_some_and(|token| token.as_bytes().starts_with(b"Bearer forged"));
    if is_forged {
        return Ok(Response::builder()
            .status(401)
            .body(Full::from("who are you?\n"))
            .unwrap());
    }
    seen.push(Seen {
        headers: parts.headers,
        trailers,
    });
    if parts.uri.path() == "/break-off" {
        return Err(io::Error::other("as told"));
    }
    let canary = format!("canary-{}", uuid::Uuid::new_v4().simple());
    let answer = Response::builder()
        .status(201)
        .header("x-canary", &canary)
        .body(Full::from(format!("{{\"id\":\"{canary}\"}}\n")));
    Ok(answer.unwrap())
}

/// A gateway before such a service.
pub(crate) struct World {
    pub(crate) upstream: Upstream,
    gateway: Gateway,
    pub(crate) directory: TempDir,
}

impl World {
    pub(crate) async fn start(settle: impl FnOnce(&mut Config, &Path)) -> World {
        World::try_start(Protocol::Http1, settle).await.unwrap()
    }

    pub(crate) async fn try_start(
        protocol: Protocol,
        settle: impl FnOnce(&mut Config, &Path),
    ) -> Result<World, StartError> {
        let (upstream, directory) = (
            Upstream::start(protocol).await,
            tempfile::tempdir().unwrap(),
        );
        let mut config = Config::new(format!("http://{}", upstream.address).parse().unwrap());
        config.listen = "127.0.0.1:0".parse().unwrap();
        config.admin = Some("127.0.0.1:0".parse().unwrap());
        config.store = StoreUrl::Memory;
        config.upstream.protocol = protocol;
        config.drain = Drain {
            notice: Duration::ZERO,
            deadline: Duration::ZERO,
        };
        settle(&mut config, directory.path());
        Ok(World {
            upstream,
            gateway: Gateway::start(config).await?,
            directory,
        })
    }

    pub(crate) fn client(&self, is_http2: bool) -> Client {
        Client::new(self.gateway.address(), is_http2)
    }

    pub(crate) async fn send(&self, is_http2: bool, request: Asked) -> Got {
        self.client(is_http2).send(request).await
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.gateway.address()
    }

    /// What operators are told.
    pub(crate) async fn ask(&self, target: &str) -> String {
        let admin = Client::new(self.gateway.admin().unwrap(), false);
        admin
            .send(Request::get(target).body(crate::client::empty()).unwrap())
            .await
            .text()
    }

    /// What the gateway counts under this name and reason.
    pub(crate) async fn counted(&self, metric: &str) -> u64 {
        let metrics = self.ask("/metrics").await;
        let lines = metrics.lines().filter_map(|line| line.strip_prefix(metric));
        lines
            .filter_map(|rest| rest.trim().parse::<u64>().ok())
            .sum()
    }

    /// How many records the gateway's store has.
    pub(crate) async fn records(&self) -> u64 {
        self.counted("hapax_sqlite_records ").await
    }

    pub(crate) async fn end(self) {
        self.gateway.drain().await;
    }
}
