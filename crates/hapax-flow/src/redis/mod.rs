//! A server of Redis or Valkey, as the publisher and the source reach it.

use std::path::PathBuf;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo, ServerErrorKind, TlsCertificates, Value,
};

/// The field with the payload of a message.
pub(crate) const PAYLOAD: &str = "payload";

/// One server of Redis 7 or Valkey, or newer, and how to connect to it.
///
/// Not a cluster, and not the master that sentinels know.
#[derive(Clone)]
pub struct RedisServer {
    /// `redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]`, or `rediss://` for TLS.
    pub url: String,
    /// The only certificate authorities to trust, in PEM. Without it those of the system are
    /// trusted.
    pub ca_file: Option<PathBuf>,
    /// How long the server may take to answer, and to be connected to.
    pub timeout: Duration,
}

impl RedisServer {
    /// The defaults, with this URL.
    pub fn new(url: impl Into<String>) -> RedisServer {
        RedisServer {
            url: url.into(),
            ca_file: None,
            timeout: Duration::from_secs(5),
        }
    }

    pub(crate) fn parse(&self) -> Result<Server, RedisError> {
        let info = parse(&self.url).map_err(RedisError::Url)?;
        let shown = match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                format!("{host}:{port}")
            }
            _ => return Err(RedisError::Url(FORM)),
        };
        let is_tls = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
        let client = match &self.ca_file {
            None => Client::open(info),
            Some(_) if !is_tls => {
                return Err(RedisError::Url("ca_file is for TLS: write rediss://"));
            }
            Some(file) => {
                let read = std::fs::read(file);
                let root_cert = read
                    .map_err(|error| RedisError::File(file.clone(), error.to_string()))
                    .map(Some)?;
                Client::build_with_tls(
                    info,
                    TlsCertificates {
                        client_tls: None,
                        root_cert,
                    },
                )
            }
        };
        Ok(Server {
            client: client.map_err(|error| RedisError::Tls(error.to_string()))?,
            shown,
            timeout: self.timeout,
        })
    }
}

/// Without the password.
impl std::fmt::Debug for RedisServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let host = self.url.rsplit('@').next().unwrap_or_default();
        f.debug_struct("RedisServer")
            .field("host", &host)
            .finish_non_exhaustive()
    }
}

/// Why a Redis cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedisError {
    /// The URL is wrong.
    #[error("server of Redis: {0}")]
    Url(&'static str),
    /// A file cannot be read.
    #[error("{}: {}", .0.display(), .1)]
    File(PathBuf, String),
    /// The certificates cannot be used.
    #[error("TLS to Redis: {0}")]
    Tls(String),
    /// The name of a stream or a group cannot be one.
    #[error("{0}")]
    Name(String),
}

const FORM: &str = "write redis://HOST:PORT, or rediss://HOST:PORT for TLS; one server, not a cluster or sentinels";

fn parse(url: &str) -> Result<ConnectionInfo, &'static str> {
    let is_known = ["redis://", "rediss://"]
        .iter()
        .any(|scheme| url.starts_with(scheme));
    // What is wrong with the URL is not repeated: it may have a password.
    match url.into_connection_info() {
        Ok(info) if is_known && !url.contains('#') => Ok(info),
        _ => Err(FORM),
    }
}

/// A server that can be connected to.
#[derive(Clone)]
pub(crate) struct Server {
    client: Client,
    shown: String,
    pub(crate) timeout: Duration,
}

impl Server {
    /// A new connection; `patience` is how much longer than usual its answers may take.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub(crate) async fn connect(
        &self,
        patience: Duration,
    ) -> Result<MultiplexedConnection, redis::RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(Some(self.timeout + patience));
        self.client
            .get_multiplexed_async_connection_with_config(&config)
            .await
    }

    /// What an error means for whoever asked.
    pub(crate) fn explain(&self, error: &redis::RedisError) -> String {
        let server = &self.shown;
        let said = error.to_string();
        let what = match error.kind() {
            ErrorKind::Server(ServerErrorKind::ReadOnly) => {
                "it is a replica and takes no writes: name the master"
            }
            ErrorKind::Server(ServerErrorKind::BusyLoading) => "it still reads its data",
            ErrorKind::AuthenticationFailed => "the user or the password is wrong",
            _ => by_text(&said),
        };
        match what {
            "" => format!("Redis at {server}: {said}"),
            what => format!("Redis at {server}: {what} ({said})"),
        }
    }
}

impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
}

/// Errors that the client does not tell apart.
fn by_text(said: &str) -> &'static str {
    let known = [
        ("OOM", "it is full: raise its maxmemory, or shorten streams"),
        ("MISCONF", "it cannot write to its disk"),
        (
            "NOREPLICAS",
            "it has fewer replicas than min-replicas-to-write",
        ),
        ("NOAUTH", "it wants a password"),
        ("WRONGPASS", "the user or the password is wrong"),
        ("NOPERM", "the user may not do this"),
    ];
    let found = known.iter().find(|(code, _)| said.contains(code));
    found.map_or("", |(_, what)| what)
}

/// A script, and the digest by which a server that has it runs it.
pub(crate) struct Script {
    text: &'static str,
    digest: String,
}

impl Script {
    pub(crate) fn new(text: &'static str) -> Script {
        Script {
            text,
            digest: redis::Script::new(text).get_hash().to_owned(),
        }
    }

    /// Runs it with what `add` puts behind the name: the number of keys, keys and arguments.
    pub(crate) async fn run(
        &self,
        connection: &mut MultiplexedConnection,
        add: impl Fn(&mut Cmd),
    ) -> Result<Value, redis::RedisError> {
        let mut command = redis::cmd("EVALSHA");
        add(command.arg(&self.digest));
        let ran = command.query_async(connection).await;
        match ran {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                let mut command = redis::cmd("EVAL");
                add(command.arg(self.text));
                command.query_async(connection).await
            }
            ran => ran,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_url_is_refused_without_its_password() {
        for url in [
            "http://u:secret@a",
            "redis+cluster://:secret@a",
            "redis://:secret@",
            "redis://:secret@a:x",
            "unix:///secret",
            "",
        ] {
            let error = RedisServer::new(url).parse().err().expect(url);
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let server = RedisServer::new("rediss://u:secret@a:7/2");
        assert!(!format!("{server:?}").contains("secret"));
        assert_eq!(server.parse().ok().unwrap().to_string(), "a:7");
    }
}
