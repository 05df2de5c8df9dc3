//! Reading the head of a request: its key, deadline and preferences.

use std::time::Duration;

use hapax_core::field;
use hapax_core::key::{Key, KeyError};
use hapax_core::policy::{KeyRule, KeySource, Policy};
use hapax_core::rejection::Rejection;
use hapax_core::time::Timestamp;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::fields;

/// Where the key of a request is, as far as its head shows.
pub(super) enum Ask {
    /// There is no key, and the request may pass without one.
    No,
    /// The key is in its field.
    Key(Key),
    /// The key is not in the head: the body has to be read.
    Body,
}

/// The key of a request with a guarded method.
pub(super) fn key(parts: &Parts, field: &HeaderName, policy: &Policy) -> Result<Ask, Rejection> {
    if let Some(parameter) = key_in_url(parts.uri.query().unwrap_or_default()) {
        return Err(Rejection::KeyInUrl {
            parameter: parameter.into(),
        });
    }
    if policy.key_source != KeySource::Field {
        return Ok(Ask::Body);
    }
    let mut lines = parts.headers.get_all(field).iter();
    let key = match (lines.next(), lines.next()) {
        (None, _) if policy.key == KeyRule::Optional => return Ok(Ask::No),
        (None, _) => return Err(Rejection::KeyMissing),
        (Some(_), Some(_)) => Err(KeyError::Repeated),
        (Some(line), None) if policy.strict_key => Key::from_quoted_field(line.as_bytes()),
        (Some(line), None) => Key::from_field(line.as_bytes()),
    };
    key.map(Ask::Key).map_err(Rejection::KeyMalformed)
}

/// Whether a request is a gRPC call, in any of its encodings and over the web.
pub(super) fn is_grpc(parts: &Parts) -> bool {
    let is_grpc = |line: &HeaderValue| {
        line.as_bytes()
            .get(..16)
            .is_some_and(|start| start.eq_ignore_ascii_case(b"application/grpc"))
    };
    parts.headers.get_all(CONTENT_TYPE).iter().any(is_grpc)
}

/// Lets a gRPC call pass only if no key is involved: its failure is in the trailers of a 200 and
/// would be kept as a success.
pub(super) fn grpc(parts: &Parts, field: &HeaderName, policy: &Policy) -> Result<(), Rejection> {
    let is_derived = matches!(policy.key_source, KeySource::Derived(_));
    if policy.key != KeyRule::Optional || is_derived || parts.headers.contains_key(field) {
        return Err(Rejection::GrpcNotGuarded {
            key_field: policy.key_field.clone(),
        });
    }
    Ok(())
}

/// The query parameter that holds a key, recognised by common names. Keys in a URL end up in the
/// logs of proxies.
fn key_in_url(query: &str) -> Option<&'static str> {
    let names = query
        .split('&')
        .map(|pair| decoded(pair.split('=').next().unwrap_or_default()));
    let known = |name: String| {
        ["idempotency_key", "idempotency-key", "idem"]
            .into_iter()
            .find(|known| name.eq_ignore_ascii_case(known))
    };
    names.filter_map(known).next()
}

/// Decodes percent-encoding, as far as an ASCII name needs it.
fn decoded(name: &str) -> String {
    let mut decoded = String::with_capacity(name.len());
    let mut rest = name;
    while let Some((before, after)) = rest.split_once('%') {
        decoded.push_str(before);
        match after
            .get(..2)
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
        {
            Some(byte) => {
                decoded.push(char::from(byte));
                rest = &after[2..];
            }
            None => {
                decoded.push('%');
                rest = after;
            }
        }
    }
    decoded + rest
}

/// The caller's deadline. An unreadable one is refused: ignoring it could begin an operation that
/// the caller no longer wants.
pub(super) fn deadline(headers: &HeaderMap) -> Result<Option<Timestamp>, Rejection> {
    let mut lines = headers.get_all(fields::DEADLINE).iter();
    match (lines.next(), lines.next()) {
        (None, _) => Ok(None),
        (Some(line), None) => field::date(line.as_bytes())
            .map(Some)
            .ok_or(Rejection::DeadlineMalformed),
        (Some(_), Some(_)) => Err(Rejection::DeadlineMalformed),
    }
}

/// How long the caller is ready to wait (`Prefer: wait=10`, RFC 7240), within the route's limit.
pub(super) fn wait(headers: &HeaderMap, policy: &Policy) -> Duration {
    let values = headers
        .get_all(fields::PREFER)
        .iter()
        .filter_map(|line| line.to_str().ok());
    // The first of several preferences counts (RFC 7240 section 2).
    let wait = values
        .flat_map(|line| line.split(','))
        .find_map(preferred_wait);
    wait.unwrap_or(policy.wait).min(policy.wait_max)
}

fn preferred_wait(preference: &str) -> Option<Duration> {
    let preference = preference.split(';').next()?.trim();
    let (name, value) = preference
        .split_once('=')
        .map_or((preference, None), |(name, value)| {
            (name.trim(), Some(value.trim()))
        });
    if !name.eq_ignore_ascii_case("wait") {
        return None;
    }
    match value {
        // Without a number, the caller waits as long as the route allows.
        None => Some(Duration::MAX),
        Some(seconds) => seconds
            .trim_matches('"')
            .parse()
            .ok()
            .map(Duration::from_secs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait_of(lines: &[&str]) -> Duration {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(fields::PREFER, line.parse().unwrap());
        }
        wait(&headers, &Policy::default())
    }

    #[test]
    fn prefer_wait_is_read_and_bounded() {
        let seconds = Duration::from_secs;
        for (lines, expected) in [
            (&[][..], seconds(0)),
            (&["wait=10"], seconds(10)),
            (&["respond-async, Wait = 7; x=1"], seconds(7)),
            (&["return=minimal", "wait=\"3\""], seconds(3)),
            (&["wait=1", "wait=9"], seconds(1)),
            (&["wait"], seconds(30)),
            (&["wait=99999"], seconds(30)),
            (&["wait=-1"], seconds(0)),
            (&["waiting=5"], seconds(0)),
        ] {
            assert_eq!(wait_of(lines), expected, "{lines:?}");
        }
    }

    #[test]
    fn keys_in_urls_are_found_however_they_are_spelled() {
        for query in [
            "idem=1",
            "a=1&idempotency_key=x",
            "idempotency-key",
            "Idempotency%5fKey=x",
            "%69dem=",
        ] {
            assert!(key_in_url(query).is_some(), "{query}");
        }
        for query in ["", "a=idem", "idempotent=1", "idempotency_key_2=x", "%"] {
            assert_eq!(key_in_url(query), None, "{query}");
        }
    }
}
