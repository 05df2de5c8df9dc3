//! The listener: accepts connections, detects their protocol, and serves them. Each step is limited
//! in time and number.

mod connection;
mod serve;
mod silent;
mod sniff;
mod streams;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::connection::Connection;
use self::silent::Silent;
use self::sniff::{Rewound, Spoken, sniff};
use super::runtime::Live;
use super::stream::Stream;
use crate::config::{Config, Tls};
use crate::telemetry::{self, Metrics};

/// The pause after an accept error that the client did not cause, such as running out of file
/// descriptors. It gives others time to free resources.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Bytes of an answer that the kernel may hold unsent.
#[cfg(target_os = "linux")]
const UNSENT_BYTES_MAX: u32 = 128 << 10;

/// Accepts and serves clients.
pub(crate) struct Listener {
    socket: TcpListener,
    shared: Arc<Shared>,
    connections: TaskTracker,
}

/// State shared by all connections.
struct Shared {
    live: Arc<ArcSwap<Live>>,
    metrics: Metrics,
    /// The number of open connections.
    open: Arc<AtomicUsize>,
    silent: Silent,
    /// Cancelled on shutdown: connections take no more requests, and end after the answers still
    /// owed.
    closing: CancellationToken,
}

/// Counts a connection as open until dropped.
struct Room(Arc<AtomicUsize>);

impl Drop for Room {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Listener {
    /// Serves by the configuration that is live when a connection or a request comes.
    pub(crate) fn new(socket: TcpListener, live: Arc<ArcSwap<Live>>, metrics: Metrics) -> Listener {
        let (open, silent, closing) = (Arc::default(), Silent::default(), CancellationToken::new());
        let shared = Shared {
            live,
            metrics,
            open,
            silent,
            closing,
        };
        Listener {
            socket,
            shared: Arc::new(shared),
            connections: TaskTracker::new(),
        }
    }

    /// The token that stops accepting connections; open connections then end one by one.
    pub(crate) fn closing(&self) -> CancellationToken {
        self.shared.closing.clone()
    }

    /// The tasks of the open connections.
    pub(crate) fn connections(&self) -> TaskTracker {
        self.connections.clone()
    }

    /// Accepts connections until `closing` is cancelled.
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
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        self.connections.close();
    }

    fn admit(&self, socket: TcpStream, address: SocketAddr) {
        let metrics = &self.shared.metrics;
        let Some(room) = self.shared.room() else {
            metrics.connection_refused("too_many");
            return;
        };
        let (shared, counted) = (
            self.shared.clone(),
            metrics.connected(telemetry::Listener::Gateway),
        );
        self.connections.spawn(async move {
            let _held = (room, counted);
            shared.attend(socket, address).await;
        });
    }
}

impl Shared {
    /// Counts one more connection, if the limit of the live configuration permits it.
    fn room(&self) -> Option<Room> {
        let room = Room(self.open.clone());
        let open = self.open.fetch_add(1, Ordering::Relaxed);
        (open < self.live.load().config.limits.connections_max).then_some(room)
    }

    /// Serves one connection from its first byte to its last.
    async fn attend(self: Arc<Self>, socket: TcpStream, address: SocketAddr) {
        prepare(&socket);
        let config = self.live.load().config.clone();
        if !self.speaks_up(&socket, &config).await {
            self.metrics.connection_refused("silent");
            return;
        }
        let Some(mut stream) = self.agree(socket, &config).await else {
            self.metrics.connection_refused("handshake");
            return;
        };
        // Boxed: a connection that sends nothing should cost no more than its socket.
        match timeout(config.timeouts.header, sniff(&mut stream)).await {
            Ok(Ok((Spoken::Http1, sniffed))) => {
                let connection = Connection::new(self, address.ip(), stream.is_tls());
                Box::pin(serve::http1(connection, stream, sniffed)).await;
            }
            Ok(Ok((Spoken::Http2, sniffed))) => {
                let connection = Connection::new(self, address.ip(), stream.is_tls());
                Box::pin(serve::http2(connection, Rewound::new(sniffed, stream))).await;
            }
            _ => self.metrics.connection_refused("silent"),
        }
    }

    /// Whether the client sends a first byte in time, and before too many newer connections are
    /// silent too.
    async fn speaks_up(&self, socket: &TcpStream, config: &Config) -> bool {
        let ((place, evicted), mut byte) = (
            self.silent.enter(config.limits.silent_connections_max),
            [0; 1],
        );
        let spoken = tokio::select! {
            // Not `readable`, which returns true for every new socket until a read was tried.
            peeked = timeout(config.timeouts.first_byte, socket.peek(&mut byte)) => matches!(peeked, Ok(Ok(1))),
            _ = evicted => false,
            () = self.closing.cancelled() => false,
        };
        drop(place);
        spoken
    }

    async fn agree(&self, socket: TcpStream, config: &Config) -> Option<Stream> {
        // Uses the live certificate, which may be newer than the connection.
        let Some(tls) = self.live.load().tls.clone() else {
            return Some(Stream::Plain(socket));
        };
        let agreeing = Box::pin(tls.accept(socket));
        let stream = timeout(config.timeouts.handshake, agreeing)
            .await
            .ok()?
            .ok()?;
        Some(Stream::Tls(Box::new(stream.into())))
    }
}

/// Sends at once, and reports writability as soon as the client has read a little: this
/// distinguishes a slow client from one that reads nothing. Options that the system does not
/// support are skipped.
fn prepare(socket: &TcpStream) {
    let _ = socket.set_nodelay(true);
    #[cfg(target_os = "linux")]
    let _ = socket2::SockRef::from(socket).set_tcp_notsent_lowat(UNSENT_BYTES_MAX);
}

/// Whether the client caused the error, by leaving before it was served.
fn is_the_clients(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}

/// Sets up TLS from the configuration.
pub(crate) fn acceptor(tls: &Tls) -> Result<TlsAcceptor, String> {
    let bad = |setting: &str, path: &std::path::Path, error: &dyn std::fmt::Display| {
        format!("tls.{setting} {}: {error}", path.display())
    };
    let certificates = CertificateDer::pem_file_iter(&tls.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| bad("certificate", &tls.certificate, &error))?;
    if certificates.is_empty() {
        return Err(bad(
            "certificate",
            &tls.certificate,
            &"there is no certificate in it: it should hold PEM blocks",
        ));
    }
    let key =
        PrivateKeyDer::from_pem_file(&tls.key).map_err(|error| bad("key", &tls.key, &error))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(|error| match error {
            rustls::Error::InvalidCertificate(_) => bad("certificate", &tls.certificate, &error),
            rustls::Error::InconsistentKeys(_) => {
                let whose = tls.certificate.display();
                bad(
                    "key",
                    &tls.key,
                    &format!("this is not the key of the certificate in {whose}: put in place two that belong together"),
                )
            }
            _ => bad("key", &tls.key, &error),
        })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
