//! Which fields are forwarded: hop-by-hop fields are removed, and fields that only the gateway may
//! set are set.
//!
//! Framing is never forwarded: each sender states the length of a body itself.

use std::net::IpAddr;
use std::sync::Arc;

use hapax::Peer;
use hapax::middleware::fields;
use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, TE,
    TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::request::Parts;
use http::{Method, Response, Version};

use crate::config::{Config, Network};

pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Stored with an answer, but never sent: the trace in which the answer was made.
const TRACE: HeaderName = HeaderName::from_static("hapax-trace");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const X_FORWARDED_SERVER: HeaderName = HeaderName::from_static("x-forwarded-server");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// Limit on the gateways in a row; more than any real deployment has.
const HOPS_MAX: usize = 8;

/// What is known about a client's connection; sent to the upstream with each of its requests.
pub(crate) struct Client {
    address: IpAddr,
    address_value: HeaderValue,
    is_tls: bool,
    /// Whether it is a trusted proxy.
    is_trusted: bool,
}

impl Client {
    pub(crate) fn new(address: IpAddr, is_tls: bool, trusted: &[Network]) -> Client {
        // Normalizes an IPv4 address that the listener reports as IPv6.
        let address = address.to_canonical();
        let address_value =
            HeaderValue::try_from(address.to_string()).expect("an address is a header value");
        Client {
            address,
            address_value,
            is_tls,
            is_trusted: trusted.iter().any(|proxies| proxies.contains(address)),
        }
    }

    /// Whether it is a trusted proxy.
    pub(crate) fn is_trusted(&self) -> bool {
        self.is_trusted
    }

    /// The client that a request comes from: the connection's other end, or, where that is a
    /// trusted proxy, the last address in `X-Forwarded-For` that is not one of the trusted proxies.
    pub(crate) fn peer(&self, headers: &HeaderMap, trusted: &[Network]) -> Peer {
        let mut client = self.address;
        let lines = headers.get_all(X_FORWARDED_FOR).iter().rev();
        let mut told = lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
        while trusted.iter().any(|proxies| proxies.contains(client)) {
            // Addresses before one that cannot be parsed are not trusted.
            let Some(before) = told.next().and_then(address) else {
                break;
            };
            client = before;
        }
        Peer::new(client)
    }
}

/// Parses an address as proxies write it: with or without a port, IPv6 with or without brackets.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let with_port = || {
        text.parse::<std::net::SocketAddr>()
            .map(|socket| socket.ip())
    };
    let bracketed = || text.trim_start_matches('[').trim_end_matches(']').parse();
    text.parse()
        .or_else(|_| with_port())
        .or_else(|_| bracketed())
        .ok()
}

/// The fields that identify callers or operations, in addition to those protected in every
/// configuration.
pub(crate) struct Sensitive {
    /// Clients may not imitate these with other spellings, nor send them as trailers.
    names: Vec<Arc<str>>,
    /// Only trusted proxies may send these.
    of_proxies: Vec<HeaderName>,
    /// No client may send these: the gateway sets them.
    ours: Vec<HeaderName>,
}

impl Sensitive {
    pub(crate) fn new(config: &Config) -> Sensitive {
        let names = sensitive_fields(config)
            .iter()
            .map(|name| fields::plain(name).into())
            .collect();
        // From all routes: the service may use a field on every route, not only on the one that
        // reads it here.
        let has_proxies = !config.trusted_proxies.is_empty();
        let of_proxies = config
            .principals()
            .into_iter()
            .flat_map(|list| list.proxy_fields(has_proxies))
            .cloned()
            .collect();
        let ours = config
            .forward_auth
            .as_ref()
            .map(|auth| auth.pass.clone())
            .unwrap_or_default();
        Sensitive {
            names,
            of_proxies,
            ours,
        }
    }

    /// Whether a lenient server could read this name as a sensitive one.
    fn is_imitation(&self, name: &str) -> bool {
        !fields::is_plain(name) && self.is_sensitive(&fields::plain(name))
    }

    /// Whether a name, as `fields::plain` spells it, is sensitive.
    fn is_sensitive(&self, name: &str) -> bool {
        fields::is_protected(name)
            || fields::is_hop_by_hop(name)
            || self.names.iter().any(|sensitive| **sensitive == *name)
    }

    /// Removes the fields that this client may not send.
    fn strip(&self, headers: &mut HeaderMap, client: &Client) {
        // Clients may not send the fields that Hapax and the upstream exchange: a client that could
        // send a probe could bar any attempt.
        remove_all(headers, |name| {
            name.starts_with("hapax-") || self.is_imitation(name)
        });
        let of_proxies = if client.is_trusted {
            &[][..]
        } else {
            &self.of_proxies
        };
        for name in of_proxies.iter().chain(&self.ours) {
            headers.remove(name);
        }
    }

    /// Removes sensitive fields from trailers: the head has been checked by then.
    pub(crate) fn strip_trailers(&self, trailers: &mut HeaderMap) {
        remove_all(trailers, |name| self.is_sensitive(&fields::plain(name)));
    }
}

/// Fields that a client must not be able to remove from its request or to imitate, in addition to
/// those protected in every configuration.
pub(crate) fn sensitive_fields(config: &Config) -> Vec<String> {
    let mut fields: Vec<String> = config
        .all_routes()
        .iter()
        .map(|route| route.policy.key_field.to_string())
        .collect();
    let sources = config.principals().into_iter().flat_map(|list| list.iter());
    fields.extend(
        sources
            .flat_map(|source| source.fields(config))
            .map(ToString::to_string),
    );
    fields
}

fn remove_all(headers: &mut HeaderMap, is_out: impl Fn(&str) -> bool) {
    let out: Vec<_> = headers
        .keys()
        .filter(|name| is_out(name.as_str()))
        .cloned()
        .collect();
    for name in out {
        headers.remove(name);
    }
}

/// Whether a request has passed so many Hapax gateways that it must be in a loop: the upstream is
/// the gateway itself, or two gateways point at each other. Each turn would use one more
/// connection, until none is left.
pub(crate) fn is_going_in_circles(headers: &HeaderMap) -> bool {
    let lines = headers
        .get_all(VIA)
        .iter()
        .filter_map(|line| line.to_str().ok());
    let hops = lines
        .flat_map(|line| line.split(','))
        .filter(|hop| hop.split_whitespace().nth(1) == Some("hapax"));
    hops.count() >= HOPS_MAX
}

/// Prepares a client's request for forwarding.
pub(crate) fn request(parts: &mut Parts, client: &Client, sensitive: &Sensitive) {
    let upgrade = websocket(parts);
    let wants_trailers = parts
        .headers
        .get(TE)
        .is_some_and(|te| te.as_bytes().eq_ignore_ascii_case(b"trailers"));
    remove_hop_by_hop(&mut parts.headers);
    parts.headers.remove(CONTENT_LENGTH);
    sensitive.strip(&mut parts.headers, client);
    if let Some(upgrade) = upgrade {
        parts.headers.insert(UPGRADE, upgrade);
    }
    if wants_trailers {
        parts
            .headers
            .insert(TE, HeaderValue::from_static("trailers"));
    }
    join_cookies(&mut parts.headers);
    tell_host(parts);
    tell_client(&mut parts.headers, client);
    let via = if parts.version == Version::HTTP_2 {
        "2 hapax"
    } else {
        "1.1 hapax"
    };
    parts.headers.append(VIA, HeaderValue::from_static(via));
}

/// Prepares the upstream's response for forwarding, and records the trace in which it was made.
pub(crate) fn response<B>(response: &mut Response<B>, traceparent: Option<HeaderValue>) {
    let is_upgrade = response.status() == http::StatusCode::SWITCHING_PROTOCOLS;
    let upgrade = response
        .headers()
        .get(UPGRADE)
        .cloned()
        .filter(|_| is_upgrade);
    // The upstream's version concerns only its connection with the gateway.
    *response.version_mut() = Version::HTTP_11;
    let headers = response.headers_mut();
    remove_doubtful_length(headers);
    remove_hop_by_hop(headers);
    if let Some(upgrade) = upgrade {
        headers.insert(UPGRADE, upgrade);
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
    headers.remove(TRACE);
    if let Some(traceparent) = traceparent {
        headers.insert(TRACE, traceparent);
    }
}

/// Removes a length that did not frame the body: one next to a transfer coding, one of several, or
/// a malformed one.
fn remove_doubtful_length(headers: &mut HeaderMap) {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let is_plain = |length: &HeaderValue| length.as_bytes().iter().all(u8::is_ascii_digit);
    let is_doubtful =
        lengths.next().is_some_and(|length| !is_plain(length)) || lengths.next().is_some();
    if is_doubtful || headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
}

/// The only upgrade that is forwarded. In particular `h2c` is not: the gateway could not see the
/// requests that follow it.
fn websocket(parts: &Parts) -> Option<HeaderValue> {
    let mut wishes = parts.headers.get_all(UPGRADE).iter();
    let (wish, more) = (wishes.next()?, wishes.next());
    let is_websocket = wish.as_bytes().eq_ignore_ascii_case(b"websocket") && more.is_none();
    let is_meant = names_upgrade(&parts.headers)
        && parts.method == Method::GET
        && parts.version == Version::HTTP_11;
    (is_websocket && is_meant).then(|| wish.clone())
}

/// RFC 9110 section 7.8: without `Connection: upgrade`, the upgrade was meant for another hop.
fn names_upgrade(headers: &HeaderMap) -> bool {
    let lines = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|line| line.to_str().ok());
    lines
        .flat_map(|line| line.split(','))
        .any(|option| option.trim().eq_ignore_ascii_case("upgrade"))
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let lines = headers
            .get_all(CONNECTION)
            .iter()
            .filter_map(|line| line.to_str().ok());
        let named: Vec<HeaderName> = lines
            .flat_map(|line| line.split(','))
            .filter_map(|name| name.trim().parse().ok())
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
    for name in &fields::HOP_BY_HOP {
        headers.remove(name);
    }
}

/// HTTP/2 clients may split a cookie into several field lines, which HTTP/1.1 does not permit (RFC
/// 9113 section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let crumbs: Vec<&[u8]> = headers
        .get_all(COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if crumbs.len() > 1
        && let Ok(whole) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..]))
    {
        headers.insert(COOKIE, whole);
    }
}

/// Sets `Host` from the target: HTTP/2 sends the authority there.
fn tell_host(parts: &mut Parts) {
    let Some(authority) = parts.uri.authority() else {
        return;
    };
    let host = HeaderValue::try_from(authority.as_str()).expect("an authority is a header value");
    parts.headers.insert(HOST, host);
    let mut uri = http::uri::Parts::default();
    uri.path_and_query = Some(
        parts
            .uri
            .path_and_query()
            .cloned()
            .unwrap_or(http::uri::PathAndQuery::from_static("/")),
    );
    parts.uri = http::Uri::from_parts(uri).unwrap_or_default();
}

fn tell_client(headers: &mut HeaderMap, client: &Client) {
    let proto = if client.is_tls { "https" } else { "http" };
    let host = headers.get(HOST).cloned();
    if !client.is_trusted {
        for name in [
            FORWARDED,
            X_FORWARDED_FOR,
            X_FORWARDED_PROTO,
            X_FORWARDED_HOST,
            X_FORWARDED_PORT,
            X_FORWARDED_SERVER,
            X_REAL_IP,
        ] {
            headers.remove(name);
        }
    }
    headers.append(X_FORWARDED_FOR, client.address_value.clone());
    headers.append(FORWARDED, forwarded(client.address, proto, host.as_ref()));
    // Existing values are kept, because the first proxy knows what the client sent.
    headers
        .entry(X_FORWARDED_PROTO)
        .or_insert(HeaderValue::from_static(proto));
    if let Some(host) = host {
        headers.entry(X_FORWARDED_HOST).or_insert(host);
    }
}

/// The value of `Forwarded` with `for`, `proto` and `host` (RFC 7239).
fn forwarded(address: IpAddr, proto: &str, host: Option<&HeaderValue>) -> HeaderValue {
    let by = match address {
        IpAddr::V4(address) => format!("for={address};proto={proto}"),
        IpAddr::V6(address) => format!("for=\"[{address}]\";proto={proto}"),
    };
    let value = match host.and_then(|host| host.to_str().ok()) {
        Some(host) => format!("{by};host=\"{host}\""),
        None => by,
    };
    HeaderValue::try_from(value).expect("addresses and hosts are header values")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_imitates_a_sensitive_field_or_says_one_after_its_body() {
        let sensitive = Sensitive::new(&Config::new(http::Uri::default()));
        let client = Client::new([203, 0, 113, 9].into(), false, &[]);
        let names = |names: &[&str]| -> HeaderMap {
            let value = HeaderValue::from_static("1");
            let pairs = names
                .iter()
                .map(|name| (name.parse().unwrap(), value.clone()));
            pairs.collect()
        };
        let mut head = names(&[
            "hapax-fence",
            "x_forwarded_for",
            "x.real-ip",
            "keep_alive",
            "transfer_encoding",
            "x_user",
            "idempotency-key",
        ]);
        sensitive.strip(&mut head, &client);
        assert_eq!(head, names(&["x_user", "idempotency-key"]));
        let mut trailers = names(&[
            "te",
            "x-real-ip",
            "via",
            "idempotent-replayed",
            "x-checksum",
        ]);
        sensitive.strip_trailers(&mut trailers);
        assert_eq!(trailers, names(&["x-checksum"]));
    }

    #[test]
    fn the_peer_is_the_last_address_that_no_trusted_proxy_has() {
        let trusted = ["10.0.0.0/8".parse().unwrap()];
        for (connection, forwarded, expected) in [
            ("203.0.113.9", &["198.51.100.7"][..], "203.0.113.9"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["198.51.100.7"], "198.51.100.7"),
            ("10.0.0.1", &["192.0.2.1, 198.51.100.7"], "198.51.100.7"),
            (
                "10.0.0.1",
                &["192.0.2.1", "198.51.100.7, 10.0.0.2"],
                "198.51.100.7",
            ),
            ("10.0.0.1", &["198.51.100.7:1234"], "198.51.100.7"),
            ("10.0.0.1", &["[2001:db8::1]:1234"], "2001:db8::/64"),
            ("10.0.0.1", &["2001:db8::2"], "2001:db8::/64"),
            ("10.0.0.1", &["198.51.100.7, unknown"], "10.0.0.1"),
        ] {
            let mut headers = HeaderMap::new();
            for line in forwarded {
                headers.append(X_FORWARDED_FOR, line.parse().unwrap());
            }
            let client = Client::new(connection.parse().unwrap(), false, &trusted);
            assert_eq!(
                client.peer(&headers, &trusted).to_string(),
                expected,
                "{connection} {forwarded:?}"
            );
        }
    }
}
