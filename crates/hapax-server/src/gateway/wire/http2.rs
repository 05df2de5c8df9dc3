//! Checks a request that came over HTTP/2, where the HTTP library handles the framing.

use http::request::Parts;
use http::{HeaderMap, HeaderName, Method, header};

use super::head::digits;
use super::{Refusal, host};

/// Refuses a request over HTTP/2 that could not be forwarded unambiguously as one request over
/// HTTP/1.
///
/// A fragment in `:path` cannot be seen here: the HTTP library drops it, so the upstream does not
/// see it either.
pub(crate) fn check_http2(parts: &Parts) -> Result<(), Refusal> {
    if parts.method == Method::CONNECT {
        return Err(Refusal::Connect);
    }
    check_path(parts)?;
    check_host(parts)?;
    check_fields(&parts.headers)
}

fn check_path(parts: &Parts) -> Result<(), Refusal> {
    let target = parts
        .uri
        .path_and_query()
        .map_or("", |target| target.as_str());
    let plain = target.starts_with('/') && target.bytes().all(|byte| byte.is_ascii_graphic());
    if plain || (target == "*" && parts.method == Method::OPTIONS) {
        Ok(())
    } else {
        Err(Refusal::Target)
    }
}

fn check_host(parts: &Parts) -> Result<(), Refusal> {
    let given = at_most_one(&parts.headers, &header::HOST).ok_or(Refusal::HostRepeated)?;
    let authority = parts
        .uri
        .authority()
        .map(|authority| authority.as_str().as_bytes());
    match (authority, given) {
        (None, None) => Err(Refusal::HostMissing),
        (Some(authority), Some(host)) if !authority.eq_ignore_ascii_case(host) => {
            Err(Refusal::AuthorityDiffers)
        }
        (Some(host), _) | (None, Some(host)) if host::is_plain(host) => Ok(()),
        _ => Err(Refusal::HostNotPlain),
    }
}

fn check_fields(headers: &HeaderMap) -> Result<(), Refusal> {
    let specific = [
        "connection",
        "keep-alive",
        "proxy-connection",
        "transfer-encoding",
        "upgrade",
    ];
    if specific.iter().any(|name| headers.contains_key(*name)) {
        return Err(Refusal::ConnectionSpecific);
    }
    if headers
        .get_all(header::TE)
        .iter()
        .any(|te| !te.as_bytes().eq_ignore_ascii_case(b"trailers"))
    {
        return Err(Refusal::ConnectionSpecific);
    }
    let length =
        at_most_one(headers, &header::CONTENT_LENGTH).ok_or(Refusal::ContentLengthRepeated)?;
    if length.is_some_and(|length| digits(length).is_none()) {
        return Err(Refusal::ContentLength);
    }
    let expect = at_most_one(headers, &header::EXPECT).ok_or(Refusal::Expect)?;
    if expect.is_some_and(|expect| !expect.eq_ignore_ascii_case(b"100-continue")) {
        return Err(Refusal::Expect);
    }
    Ok(())
}

/// The value of a field, if present; the outer `None` if the field is given more than once.
fn at_most_one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<Option<&'a [u8]>> {
    let mut values = headers.get_all(name).iter();
    let first = values.next().map(|value| value.as_bytes());
    values.next().is_none().then_some(first)
}
