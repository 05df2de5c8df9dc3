//! The listener: takes connections, finds out what they speak, and serves them. Each step has its limit in time and number.

mod serve;
mod silent;
mod sniff;
mod streams;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::silent::Silent;
use self::sniff::{Rewound, Spoken, sniff};
use super::forward::Client;
use super::stack::{self, Stack};
use super::stream::Stream;
use super::wire;
use crate::config::{Config, Tls};
use crate::telemetry;

/// After an error of accepting that is not the client's, such as no file descriptors being left: time for some to come free.
const BREATH: Duration = Duration::from_millis(50);

/// Bytes of an answer that the system holds without having sent them.
#[cfg(target_os = "linux")]
const UNSENT_BYTES_MAX: u32 = 128 << 10;

/// What serves the clients.
pub(crate) struct Listener {
    socket: TcpListener,
    shared: Arc<Shared>,
    connections: TaskTracker,
}

/// What all connections share.
struct Shared {
    stack: Arc<Stack>,
    config: Arc<Config>,
    wire: wire::Settings,
    tls: Option<TlsAcceptor>,
    room: Arc<Semaphore>,
    silent: Silent,
    /// No more requests: connections end with the answer they owe.
    closing: CancellationToken,
}

impl Listener {
    pub(crate) fn new(socket: TcpListener, stack: Arc<Stack>, config: Arc<Config>, tls: Option<TlsAcceptor>) -> Listener {
        let shared = Shared {
            stack,
            wire: wire::Settings::new(&config.timeouts, &config.limits, stack::sensitive_fields(&config)),
            tls,
            room: Arc::new(Semaphore::new(config.limits.connections_max)),
            silent: Silent::new(config.limits.silent_connections_max),
            closing: CancellationToken::new(),
            config,
        };
        Listener { socket, shared: Arc::new(shared), connections: TaskTracker::new() }
    }

    /// Ends intake, and with it, in time, every connection.
    pub(crate) fn closing(&self) -> CancellationToken {
        self.shared.closing.clone()
    }

    /// The connections there are.
    pub(crate) fn connections(&self) -> TaskTracker {
        self.connections.clone()
    }

    /// Takes connections until it is told to close.
    pub(crate) async fn run(self) {
        loop {
            let accepted = tokio::select! {
                accepted = self.socket.accept() => accepted,
                () = self.shared.closing.cancelled() => break,
            };
            match accepted {
                Ok((socket, address)) => self.admit(socket, address),
                Err(error) if is_the_clients(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "no connection can be accepted at the moment");
                    tokio::time::sleep(BREATH).await;
                }
            }
        }
        self.connections.close();
    }

    fn admit(&self, socket: TcpStream, address: SocketAddr) {
        let metrics = self.shared.stack.metrics();
        let Ok(room) = self.shared.room.clone().try_acquire_owned() else {
            metrics.connection_refused("too_many");
            return;
        };
        let (shared, counted) = (self.shared.clone(), metrics.connected(telemetry::Listener::Gateway));
        self.connections.spawn(async move {
            let _held = (room, counted);
            shared.attend(socket, address).await;
        });
    }
}

impl Shared {
    /// One connection, from its first byte to its last.
    async fn attend(self: Arc<Self>, socket: TcpStream, address: SocketAddr) {
        prepare(&socket);
        let metrics = self.stack.metrics();
        if !self.speaks_up(&socket).await {
            metrics.connection_refused("silent");
            return;
        }
        let Some(mut stream) = self.agree(socket).await else {
            metrics.connection_refused("handshake");
            return;
        };
        let client = Client::new(address.ip(), stream.is_tls(), &self.config.trusted_proxies);
        // Boxed: a connection that says nothing should cost no more than its socket.
        match timeout(self.config.timeouts.header, sniff(&mut stream)).await {
            Ok(Ok((Spoken::Http1, sniffed))) => Box::pin(serve::http1(self, stream, sniffed, client)).await,
            Ok(Ok((Spoken::Http2, sniffed))) => Box::pin(serve::http2(self, Rewound::new(sniffed, stream), client)).await,
            _ => metrics.connection_refused("silent"),
        }
    }

    /// Whether the client sends a first byte in time, and before too many others are as silent.
    async fn speaks_up(&self, socket: &TcpStream) -> bool {
        let ((place, evicted), mut byte) = (self.silent.enter(), [0; 1]);
        let spoken = tokio::select! {
            // Not `readable`, which is true of every new socket until somebody has tried.
            peeked = timeout(self.config.timeouts.first_byte, socket.peek(&mut byte)) => matches!(peeked, Ok(Ok(1))),
            _ = evicted => false,
            () = self.closing.cancelled() => false,
        };
        drop(place);
        spoken
    }

    async fn agree(&self, socket: TcpStream) -> Option<Stream> {
        let Some(tls) = &self.tls else { return Some(Stream::Plain(socket)) };
        let agreeing = Box::pin(tls.accept(socket));
        let stream = timeout(self.config.timeouts.handshake, agreeing).await.ok()?.ok()?;
        Some(Stream::Tls(Box::new(stream.into())))
    }
}

/// Sends at once, and is told as soon as the client has taken a little: only so can a slow one be told from one that takes nothing. What
/// the system does not know, it does without.
fn prepare(socket: &TcpStream) {
    let _ = socket.set_nodelay(true);
    #[cfg(target_os = "linux")]
    let _ = socket2::SockRef::from(socket).set_tcp_notsent_lowat(UNSENT_BYTES_MAX);
}

/// A client that was gone before it was served.
fn is_the_clients(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused)
}

/// TLS as the configuration says.
pub(crate) fn acceptor(tls: &Tls) -> Result<TlsAcceptor, String> {
    let bad =
        |setting: &str, path: &std::path::Path, error: &dyn std::fmt::Display| format!("tls.{setting} {}: {error}", path.display());
    let certificates = CertificateDer::pem_file_iter(&tls.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| bad("certificate", &tls.certificate, &error))?;
    if certificates.is_empty() {
        return Err(bad("certificate", &tls.certificate, &"there is no certificate in it: it should hold PEM blocks"));
    }
    let key = PrivateKeyDer::from_pem_file(&tls.key).map_err(|error| bad("key", &tls.key, &error))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(|error| bad("key", &tls.key, &error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
