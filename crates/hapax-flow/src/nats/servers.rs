//! Where servers are, and who the program is there.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_nats::ServerAddr;
use percent_encoding::percent_decode_str;

/// The servers of one cluster, and how to connect to them.
#[derive(Clone, Debug)]
pub struct NatsServers {
    /// URLs of servers, tried in this order: `nats://HOST:PORT`, or `tls://HOST:PORT` to insist on
    /// TLS. A URL may have credentials: `nats://USER:PASSWORD@HOST` or `nats://TOKEN@HOST`.
    pub urls: Vec<String>,
    /// Who the program is, at servers whose URL does not say it.
    pub credentials: NatsCredentials,
    /// How long a server may take to answer, and a call for a connection.
    pub timeout: Duration,
    /// Files with the only certificate authorities to trust, in PEM. If there are none, those of
    /// the system are trusted.
    pub root_certificates: Vec<PathBuf>,
    /// Files with the program's own certificate and its key, in PEM.
    pub client_certificate: Option<(PathBuf, PathBuf)>,
}

impl NatsServers {
    /// The defaults, with these URLs.
    pub fn new(urls: impl IntoIterator<Item = impl Into<String>>) -> NatsServers {
        NatsServers {
            urls: urls.into_iter().map(Into::into).collect(),
            credentials: NatsCredentials::None,
            timeout: Duration::from_secs(5),
            root_certificates: Vec::new(),
            client_certificate: None,
        }
    }

    pub(crate) fn parse(&self) -> Result<Vec<Server>, NatsError> {
        if self.urls.is_empty() {
            return Err(NatsError::Server("none is given".to_owned()));
        }
        self.urls.iter().map(|url| Server::parse(url)).collect()
    }
}

/// Who the program is.
#[derive(Clone, Default)]
pub enum NatsCredentials {
    /// It does not say.
    #[default]
    None,
    /// A user and a password.
    User {
        /// The name.
        name: String,
        /// The password.
        password: String,
    },
    /// A token.
    Token(String),
    /// A file with a user's JWT and seed. It is read again for each connection.
    File(PathBuf),
    /// The seed of an nkey, `SU…`.
    NkeySeed(String),
}

/// Without secrets.
impl fmt::Debug for NatsCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NatsCredentials::None => f.write_str("None"),
            NatsCredentials::User { name, .. } => write!(f, "User({name:?})"),
            NatsCredentials::Token(_) => f.write_str("Token"),
            NatsCredentials::File(path) => write!(f, "File({path:?})"),
            NatsCredentials::NkeySeed(_) => f.write_str("NkeySeed"),
        }
    }
}

/// One server, and who the program is there. Its address has no secrets: the client logs it.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) address: ServerAddr,
    pub(crate) credentials: NatsCredentials,
}

impl Server {
    fn parse(url: &str) -> Result<Server, NatsError> {
        let parsed: ServerAddr = url
            .parse()
            // The URL itself may have a password.
            .map_err(|error: std::io::Error| NatsError::Server(error.to_string()))?;
        let scheme = parsed.scheme();
        if parsed.host().is_empty() || !matches!(scheme, "nats" | "tls") {
            let reason = format!("{scheme}://… is not nats://HOST:PORT or tls://HOST:PORT");
            return Err(NatsError::Server(reason));
        }
        let host = match parsed.host() {
            host if host.contains(':') => format!("[{host}]"),
            host => host.to_owned(),
        };
        let address = format!("{scheme}://{host}:{}", parsed.port());
        Ok(Server {
            address: address.parse().expect("made of a parsed one"),
            credentials: credentials(&parsed),
        })
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.address.as_url_str())
    }
}

fn credentials(url: &ServerAddr) -> NatsCredentials {
    let plain = |text| percent_decode_str(text).decode_utf8_lossy().into_owned();
    match (url.username().map(plain), url.password().map(plain)) {
        (None, _) => NatsCredentials::None,
        (Some(token), None) => NatsCredentials::Token(token),
        (Some(name), Some(password)) => NatsCredentials::User { name, password },
    }
}

/// Why NATS cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NatsError {
    /// A URL is wrong.
    #[error("servers of NATS: {0}")]
    Server(String),
    /// The template of subjects is wrong.
    #[error("subject {0:?} of NATS: {1}")]
    Subject(String, &'static str),
    /// No server answers. This may pass.
    #[error("{0}")]
    Unavailable(String),
    /// The stream is not there, or cannot take the messages.
    #[error("stream {name:?} of NATS: {reason}")]
    Stream {
        /// The stream.
        name: String,
        /// What is wrong, and how to mend it.
        reason: String,
    },
    /// The name of the consumer is none.
    #[error("consumer {0:?} of NATS: this cannot be the name of a consumer")]
    Consumer(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> (String, String) {
        let server = Server::parse(url).unwrap();
        (server.to_string(), format!("{:?}", server.credentials))
    }

    #[test]
    fn credentials_leave_the_url() {
        let at = |text: &str, credentials: &str| (text.to_owned(), credentials.to_owned());
        assert_eq!(parsed("nats://a"), at("nats://a:4222", "None"));
        assert_eq!(parsed("tls://[::1]:1"), at("tls://[::1]:1", "None"));
        assert_eq!(parsed("nats://secret@a:1"), at("nats://a:1", "Token"));
        assert_eq!(
            parsed("nats://u:secret@a:1"),
            at("nats://a:1", "User(\"u\")")
        );
    }

    #[test]
    fn credentials_in_a_url_may_be_percent_encoded() {
        let server = Server::parse("nats://u%40x:p%3A%2F@a").unwrap();
        let NatsCredentials::User { name, password } = server.credentials else {
            panic!("{server:?}");
        };
        assert_eq!((name.as_str(), password.as_str()), ("u@x", "p:/"));
    }

    #[test]
    fn a_wrong_url_is_refused_without_its_password() {
        for url in [
            "http://u:secret@a",
            "nats://u:secret@",
            "ws://secret@a",
            "nats://secret@a:x",
        ] {
            let error = Server::parse(url).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
