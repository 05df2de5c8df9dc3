//! Connections to RabbitMQ, for publishing and for consuming.

mod link;
mod server;
mod socket;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_rustls::TlsConnector;

pub(crate) use self::link::Link;
use self::server::Server;
use crate::tls;

/// Where RabbitMQ is, and how it is reached.
#[derive(Clone)]
pub struct RabbitServers {
    /// URLs of servers of one cluster, tried in this order: `amqp://USER:PASSWORD@HOST:PORT/VHOST`,
    /// or `amqps://` for TLS. Without a virtual host it is `/`; one with a slash in its name is
    /// written with `%2F`.
    pub urls: Vec<String>,
    /// A file with certificate authorities to trust beside those of the system, in PEM.
    pub ca_file: Option<PathBuf>,
    /// How long a connection may take, and each call that waits for an answer.
    pub timeout: Duration,
}

impl RabbitServers {
    /// The defaults, with these URLs.
    pub fn new(urls: impl IntoIterator<Item = impl Into<String>>) -> RabbitServers {
        RabbitServers {
            urls: urls.into_iter().map(Into::into).collect(),
            ca_file: None,
            timeout: Duration::from_secs(5),
        }
    }
}

/// Without the URLs, which may have passwords.
impl std::fmt::Debug for RabbitServers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RabbitServers")
            .field("ca_file", &self.ca_file)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// Why RabbitMQ can never be used so. No error repeats a password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RabbitError {
    /// A URL is wrong.
    #[error("servers of RabbitMQ: {0}")]
    Server(String),
    /// The name of an exchange or a routing key is wrong.
    #[error("{0:?} is no name for RabbitMQ: {1}")]
    Name(String, String),
    /// TLS cannot be set up.
    #[error("{0}")]
    Tls(String),
}

/// Servers that have been checked.
pub(crate) struct Cluster {
    servers: Vec<Server>,
    tls: TlsConnector,
    pub(crate) timeout: Duration,
}

impl Cluster {
    pub(crate) fn new(servers: &RabbitServers) -> Result<Cluster, RabbitError> {
        if servers.urls.is_empty() {
            return Err(RabbitError::Server("none is given".to_owned()));
        }
        let tls = tls::client(servers.ca_file.as_deref())
            .map_err(|error| RabbitError::Tls(error.to_string()))?;
        let parsed = servers.urls.iter().map(|url| Server::parse(url));
        Ok(Cluster {
            servers: parsed
                .collect::<Result<_, _>>()
                .map_err(RabbitError::Server)?,
            tls: TlsConnector::from(Arc::new(tls)),
            timeout: servers.timeout,
        })
    }

    /// Connects to the first server that answers, under a name that its operators see.
    ///
    /// # Errors
    ///
    /// What each of them said.
    pub(crate) async fn connect(&self, name: &str) -> Result<Link, String> {
        let mut reasons = Vec::new();
        // A server that is silent must leave time for the next one.
        let limit = self.timeout / u32::try_from(self.servers.len()).unwrap_or(u32::MAX);
        for server in &self.servers {
            let opening = Link::open(server, &self.tls, name);
            match timeout(limit, opening).await {
                Ok(Ok(link)) => return Ok(link),
                Ok(Err(reason)) => reasons.push(format!("{server}: {reason}")),
                Err(_) => reasons.push(format!("{server}: no answer within {limit:?}")),
            }
        }
        Err(format!(
            "RabbitMQ cannot be reached: {}",
            reasons.join("; ")
        ))
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = self.servers.iter().map(ToString::to_string);
        f.debug_list().entries(shown).finish()
    }
}
