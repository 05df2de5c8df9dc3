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
        // The client takes `localhost` for a host that is missing, and for an IPv6 address.
        uri.authority.host = host(url).ok_or(wrong)?.to_owned();
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

/// The host of a URL, an IPv6 address in its brackets.
fn host(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let place = authority.rsplit('@').next()?;
    let end = match place.find(']') {
        Some(bracket) => bracket + 1,
        None => place.find(':').unwrap_or(place.len()),
    };
    Some(&place[..end]).filter(|host| !host.is_empty())
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
        assert_eq!(server.to_string(), "amqps://[::1]:1");
        for url in ["amqp://a", "amqp://a/", "amqp://u:p@a?heartbeat=5"] {
            assert_eq!(Server::parse(url).unwrap().host(), "a");
            assert_eq!(Server::parse(url).unwrap().uri.vhost, "/");
        }
    }

    #[test]
    fn a_wrong_url_is_refused_without_its_password() {
        for url in [
            "http://u:secret@a",
            "amqp://",
            "amqp://:5672",
            "amqp://u:secret@/shop",
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
