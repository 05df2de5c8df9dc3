//! A server, as its URL says.

use std::fmt;

use lapin::uri::{AMQPScheme, AMQPUri};

/// How often each side says that it lives, unless the URL has `heartbeat=SECONDS`. One that has been
/// silent for two of these is cut off.
const HEARTBEAT_SECONDS: u16 = 10;

#[derive(Clone)]
pub(super) struct Server {
    pub(super) uri: AMQPUri,
}

impl Server {
    /// # Errors
    ///
    /// What is wrong with the URL, without the URL: it may have a password.
    pub(super) fn parse(url: &str) -> Result<Server, String> {
        let wrong = "write amqp://USER:PASSWORD@HOST:PORT/VHOST, or amqps:// for TLS";
        let mut uri: AMQPUri = url.parse().map_err(|_| wrong.to_owned())?;
        if uri.authority.host.is_empty() {
            return Err(wrong.to_owned());
        }
        // A bare slash is left behind by whoever thinks of a path.
        if uri.vhost.is_empty() {
            uri.vhost = "/".to_owned();
        }
        uri.query.heartbeat.get_or_insert(HEARTBEAT_SECONDS);
        Ok(Server { uri })
    }

    pub(super) fn is_tls(&self) -> bool {
        self.uri.scheme == AMQPScheme::AMQPS
    }

    /// The host without the brackets of an IPv6 address.
    pub(super) fn host(&self) -> &str {
        let host = self.uri.authority.host.as_str();
        let bare = host
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        bare.unwrap_or(host)
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AMQPUri {
            scheme, authority, ..
        } = &self.uri;
        write!(f, "{scheme}://{}:{}", authority.host, authority.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_and_who() {
        let server = Server::parse("amqp://u%40x:p%3A%2F@a/shop%2F1").unwrap();
        assert_eq!(server.to_string(), "amqp://a:5672");
        let user = &server.uri.authority.userinfo;
        assert_eq!((&*user.username, &*user.password), ("u@x", "p:/"));
        assert_eq!(server.uri.vhost, "shop/1");
        let server = Server::parse("amqps://[::1]:1").unwrap();
        assert_eq!((server.host(), server.is_tls()), ("::1", true));
        for url in ["amqp://a", "amqp://a/"] {
            assert_eq!(Server::parse(url).unwrap().uri.vhost, "/");
        }
    }

    #[test]
    fn a_wrong_url_is_refused_without_its_password() {
        for url in [
            "http://u:secret@a",
            "amqp://",
            "amqp://u:secret@a:x",
            "amqp:secret",
            "secret",
        ] {
            let refused = Server::parse(url).map(|server| server.to_string());
            let refused = refused.expect_err(url);
            assert!(!refused.contains("secret"), "{refused}");
        }
    }
}
