//! Makes a connection, or explains why that failed.

mod error;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};
use tokio_postgres::config::SslMode;
use tokio_postgres::error::DbError;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls, SimpleQueryMessage, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;

pub use error::{ConnectError, ConnectKind};

use self::error::Subject;
use super::options::{ConnectOptions, Found, Host, Mode, Place};
use super::tls;

/// The first major version of Postgres that the schema supports.
const VERSION_NEEDED: u32 = 14;

/// A working connection. Dropping it closes the socket at once, even during a statement.
pub(super) struct Connected {
    /// Sends statements.
    pub(super) client: Client,
    /// Cancelled when the connection has ended, for any reason.
    pub(super) closed: CancellationToken,
    _task: AbortOnDropHandle<()>,
}

/// Connects to the first host that accepts writes, within the timeout of the options. Each host
/// gets a share of that time, so that an unresponsive one leaves time for the next.
pub(super) async fn connect(options: &ConnectOptions) -> Result<Connected, ConnectError> {
    let deadline = Instant::now() + options.timeout;
    let tls = connector(options).await?;
    let mut hosts: Vec<&Host> = options.hosts.iter().collect();
    if options.shuffled {
        hosts.sort_by_cached_key(|_| uuid::Uuid::new_v4());
    }
    let mut failures = Vec::new();
    for (i, host) in hosts.iter().enumerate() {
        let way = Way {
            options,
            host,
            tls: tls.as_ref(),
        };
        match way.connect(share(deadline, hosts.len() - i)).await {
            Ok(connected) => return Ok(connected),
            Err(failure) => failures.push(failure),
        }
    }
    Err(ConnectError::of_all(failures))
}

/// Reads the certificate files, some of which are large. `None` if TLS is never used.
async fn connector(options: &ConnectOptions) -> Result<Option<MakeRustlsConnect>, ConnectError> {
    let sockets_only = options
        .hosts
        .iter()
        .all(|host| matches!(host.place, Place::Socket(_)));
    if options.tls.mode == Mode::Disable || sockets_only {
        return Ok(None);
    }
    let options = options.tls.clone();
    match tokio::task::spawn_blocking(move || tls::connector(&options)).await {
        Ok(made) => made.map(Some),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is shutting down, and nothing waits for the result.
        Err(_) => std::future::pending().await,
    }
}

/// The deadline of the next of `count` tries.
fn share(deadline: Instant, count: usize) -> Instant {
    let now = Instant::now();
    let count = u32::try_from(count.max(1)).unwrap_or(u32::MAX);
    now + deadline.saturating_duration_since(now) / count
}

/// One host, and the options to reach it.
struct Way<'a> {
    options: &'a ConnectOptions,
    host: &'a Host,
    tls: Option<&'a MakeRustlsConnect>,
}

impl Way<'_> {
    async fn connect(&self, deadline: Instant) -> Result<Connected, ConnectError> {
        let addresses = match &self.host.place {
            Place::Socket(_) => vec![None],
            Place::Tcp {
                address: Some(address),
                ..
            } => vec![Some(*address)],
            Place::Tcp {
                name,
                address: None,
            } => self.resolve(name, deadline).await?,
        };
        let mut failure = None;
        for (i, address) in addresses.iter().enumerate() {
            let until = share(deadline, addresses.len() - i);
            let begun = Instant::now();
            match timeout_at(until, self.connect_to(*address)).await {
                Ok(Ok(connected)) => return Ok(connected),
                // The server was reached, and would give the same error at another address.
                Ok(Err(error)) if error.was_reached() => return Err(error),
                Ok(Err(error)) => failure = Some(error),
                Err(_) => failure = Some(self.subject().timed_out(begun.elapsed())),
            }
        }
        Err(failure.unwrap_or_else(|| self.subject().no_such_host(None)))
    }

    async fn resolve(
        &self,
        name: &str,
        deadline: Instant,
    ) -> Result<Vec<Option<IpAddr>>, ConnectError> {
        let begun = Instant::now();
        match timeout_at(deadline, tokio::net::lookup_host((name, self.host.port))).await {
            Ok(Ok(found)) => Ok(found
                .map(|address: SocketAddr| Some(address.ip()))
                .collect()),
            Ok(Err(error)) => Err(self.subject().no_such_host(Some(error))),
            Err(_) => Err(self.subject().timed_out(begun.elapsed())),
        }
    }

    async fn connect_to(&self, address: Option<IpAddr>) -> Result<Connected, ConnectError> {
        let (first, second) = self.modes();
        let failure = match self.attempt(address, first).await {
            Ok(connected) => return self.admit(connected).await,
            Err(failure) => failure,
        };
        match second.filter(|_| failure.may_be_of_tls()) {
            Some(second) => match self.attempt(address, second).await {
                Ok(connected) => self.admit(connected).await,
                // If both modes fail, the error of the preferred one is more useful.
                Err(again) if again.kind() == ConnectKind::NotAdmitted => Err(failure),
                Err(again) => Err(again),
            },
            None => Err(failure),
        }
    }

    /// The TLS mode to try first, and the one to try if TLS, or the lack of it, was the problem.
    /// Unix sockets do not use TLS.
    fn modes(&self) -> (SslMode, Option<SslMode>) {
        match self.options.tls.mode {
            _ if matches!(self.host.place, Place::Socket(_)) => (SslMode::Disable, None),
            Mode::Disable => (SslMode::Disable, None),
            Mode::Allow => (SslMode::Disable, Some(SslMode::Require)),
            Mode::Prefer => (SslMode::Prefer, Some(SslMode::Disable)),
            Mode::Require | Mode::VerifyCa | Mode::VerifyFull => (SslMode::Require, None),
        }
    }

    async fn attempt(
        &self,
        address: Option<IpAddr>,
        mode: SslMode,
    ) -> Result<Connected, ConnectError> {
        let mut config = self.config(address);
        config.ssl_mode(mode);
        let password = self.options.password_for(self.host);
        if let Found::Password(password) = &password {
            config.password(password);
        }
        let opened = match self.tls.filter(|_| mode != SslMode::Disable) {
            Some(tls) => open(&config, tls.clone()).await,
            None => open(&config, NoTls).await,
        };
        opened.map_err(|error| self.subject().failed(error, &password))
    }

    fn config(&self, address: Option<IpAddr>) -> Config {
        let mut config = self.options.config.clone();
        config.port(self.host.port);
        match &self.host.place {
            Place::Socket(path) => config.host_path(path),
            Place::Tcp { name, .. } => config.host(name),
        };
        if let Some(address) = address {
            config.hostaddr(address);
        }
        config
    }

    /// Accepts only a server that accepts writes: a replica may lack recent writes.
    async fn admit(&self, connected: Connected) -> Result<Connected, ConnectError> {
        const ASK: &str = "SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('transaction_read_only'), \
                           pg_catalog.current_setting('server_version_num')";
        let answer = connected
            .client
            .simple_query(ASK)
            .await
            .map_err(|error| self.subject().failed(error, &Found::Nothing))?;
        let row = answer.iter().find_map(|message| {
            if let SimpleQueryMessage::Row(row) = message {
                Some(row)
            } else {
                None
            }
        });
        let column = |i| {
            row.and_then(|row| row.try_get(i).ok().flatten())
                .unwrap_or_default()
        };
        let version = column(2).parse::<u32>().unwrap_or_default() / 10_000;
        match (column(0), column(1)) {
            ("f", "off") if version >= VERSION_NEEDED => Ok(connected),
            ("f", "off") => Err(self.subject().too_old(version, VERSION_NEEDED)),
            ("f", _) => Err(self.subject().read_only()),
            _ => Err(self.subject().standby()),
        }
    }

    fn subject(&self) -> Subject<'_> {
        Subject {
            host: self.host,
            database: &self.options.database,
            user: &self.options.user,
        }
    }
}

async fn open<T>(config: &Config, tls: T) -> Result<Connected, tokio_postgres::Error>
where
    T: MakeTlsConnect<Socket>,
    T::Stream: Unpin + Send + 'static,
{
    let (client, connection) = config.connect(tls).await?;
    let closed = CancellationToken::new();
    let task = tokio::spawn(run(connection, closed.clone().drop_guard()));
    Ok(Connected {
        client,
        closed,
        _task: AbortOnDropHandle::new(task),
    })
}

async fn run<T>(mut connection: Connection<Socket, T>, closed: DropGuard)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
        match message {
            // The server sends this notice before the statement's completion. The connection ends
            // here, so the completion never arrives and the statement counts as unacknowledged.
            Ok(AsyncMessage::Notice(said)) if is_unconfirmed(&said) => {
                tracing::error!(
                    "the wait for a synchronous standby was cancelled; what was to be confirmed counts as not acknowledged"
                );
                break;
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "a connection to Postgres ended");
                break;
            }
        }
    }
    drop(closed);
}

/// Whether this notice says that a commit is on the primary only. When the wait for a synchronous
/// standby is cancelled, the server still reports success. The notice is recognised by the server
/// routine that sends it, because its text is translated and its code is that of every warning.
fn is_unconfirmed(said: &DbError) -> bool {
    said.routine() == Some("SyncRepWaitForLSN")
}

/// The duration as shown to a user.
fn shown(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
