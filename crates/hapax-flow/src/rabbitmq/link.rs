//! One connection to a server.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_rs::Runtime;
use lapin::{AsyncTcpStream, Channel, Connection, ConnectionProperties};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::server::Server;
use super::socket::{Cuttable, Kit, Socket, kit};

/// How long a server that has not answered something may take to say that it lives.
const PROBE_LIMIT_MAX: Duration = Duration::from_secs(1);

/// A connection, which is never made again once it is lost. Dropping it closes it in order: what was
/// sent until then arrives.
pub(crate) struct Link {
    connection: Connection,
    cut: CancellationToken,
    server: String,
}

impl Link {
    /// # Errors
    ///
    /// Why there is none.
    pub(super) async fn open(
        server: &Server,
        tls: &TlsConnector,
        name: &str,
    ) -> Result<Link, String> {
        let cut = CancellationToken::new();
        // The client would go on connecting after this call was dropped.
        let guard: DropGuard = cut.clone().drop_guard();
        let socket = Mutex::new(Some(socket(server, tls, &cut).await?));
        let taken = move || {
            let socket = socket.lock().unwrap_or_else(PoisonError::into_inner).take();
            socket.map(AsyncTcpStream::Plain)
        };
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let connection = Connection::connector(
            server.uri.clone(),
            Runtime::<Kit>::new(kit()),
            async move |_, _| {
                let lost = || std::io::Error::from(std::io::ErrorKind::ConnectionAborted);
                taken().ok_or_else(|| lost().into())
            },
            properties,
        )
        .await
        .map_err(|error| error.to_string())?;
        guard.disarm();
        Ok(Link {
            connection,
            cut,
            server: server.to_string(),
        })
    }

    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    pub(crate) fn is_usable(&self) -> bool {
        !self.cut.is_cancelled() && self.connection.status().connected()
    }

    /// Ends it at once: nothing more is sent by it.
    pub(crate) fn cut(&self) {
        self.cut.cancel();
    }

    pub(crate) async fn channel(&self) -> lapin::Result<Channel> {
        self.connection.create_channel().await
    }

    /// The most bytes in a frame. A message's properties must fit into one.
    pub(crate) fn frame_bytes_max(&self) -> usize {
        match self.connection.configuration().frame_max() {
            0 => usize::MAX,
            most => usize::try_from(most).unwrap_or(usize::MAX),
        }
    }

    /// Whether the server takes no messages from anybody, because it lacks memory or disk.
    pub(crate) fn is_blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    /// Whether the server answers anything: if so, a missing answer concerns one message.
    pub(crate) async fn is_alive(&self, limit: Duration) -> bool {
        let asking = timeout(limit.min(PROBE_LIMIT_MAX), self.channel());
        matches!(asking.await, Ok(Ok(_)))
    }
}

async fn socket(
    server: &Server,
    tls: &TlsConnector,
    cut: &CancellationToken,
) -> Result<Socket, String> {
    let (host, port) = (server.host(), server.uri.authority.port);
    let stream = TcpStream::connect((host, port))
        .await
        .map_err(|error| error.to_string())?;
    stream
        .set_nodelay(true)
        .map_err(|error| error.to_string())?;
    if !server.is_tls() {
        return Ok(Cuttable::new(stream, cut.clone()));
    }
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| format!("{host} is no name that a certificate can have"))?;
    let stream = tls
        .connect(name, stream)
        .await
        .map_err(|error| error.to_string())?;
    Ok(Cuttable::new(stream, cut.clone()))
}
