//! Reads where a key comes from, and which parts of a request identify it or are counted.

use std::str::FromStr;
use std::sync::Arc;

use hapax::KeyRule;
use hapax::core::fingerprint::Pointer;
use hapax::core::policy::{KeySource, Part};
use hapax::middleware::fields;
use http::HeaderName;

use super::super::value::Read;

/// Fields that differ between two tries of the same request: a fingerprint or derived key with one
/// of them would never match a repeat.
const CHANGING: [&str; 8] = [
    "date",
    "idempotency-deadline",
    "request-id",
    "traceparent",
    "tracestate",
    "x-amzn-trace-id",
    "x-correlation-id",
    "x-request-id",
];

pub(crate) fn rule(text: &str) -> Read<KeyRule> {
    match text {
        "required" => Ok(KeyRule::Required),
        "optional" => Ok(KeyRule::Optional),
        "off" => Ok(KeyRule::Off),
        "issued" => Err(
            "the gateway issues no keys yet: write \"required\", \"optional\" or \"off\""
                .to_owned(),
        ),
        _ => Err(format!(
            "`{text}` is no rule for keys: write \"required\", \"optional\" or \"off\""
        )),
    }
}

/// A field that reaches the guard as it was sent. The policy checks that the name is valid.
pub(crate) fn field(text: &str) -> Read<Arc<str>> {
    match HeaderName::try_from(text) {
        Ok(name) if fields::is_ours(&name) => Err(format!(
            "`{text}` is a field that the gateway itself sets or takes off: no key can be in it"
        )),
        _ => Ok(text.into()),
    }
}

pub(crate) fn source(text: &str) -> Read<KeySource> {
    match text.split_once(':') {
        None if text == "header" => Ok(KeySource::Field),
        Some(("body", pointer)) => Ok(KeySource::Body(place(pointer)?)),
        Some(("derived", parts)) => derived(parts),
        Some(("header", name)) => Err(format!(
            "the field is named elsewhere: write key_from = \"header\" and key_field = \"{name}\""
        )),
        _ => Err(format!(
            "`{text}` is no source of keys: write \"header\", \"body:/client_token\" or \"derived:header:x-order,body:/amount\""
        )),
    }
}

fn derived(text: &str) -> Read<KeySource> {
    let mut parts = Vec::new();
    for piece in text.split(',') {
        let part = part(piece.trim())?;
        if parts.contains(&part) {
            return Err(format!("`{}` is there twice: leave one out", piece.trim()));
        }
        parts.push(part);
    }
    match parts.iter().all(|part| *part == Part::Principal) {
        true => Err("a key derived from who is asking alone makes all their requests one: name a part of the request too, as in \
                     \"derived:body:/order,principal\""
            .to_owned()),
        false => Ok(KeySource::Derived(parts)),
    }
}

pub(super) fn part(text: &str) -> Read<Part> {
    match text.split_once(':') {
        None if text.is_empty() => {
            Err("a part of the request is missing: write \"principal\", \"header:NAME\" or \"body:/POINTER\"".to_owned())
        }
        None if text == "principal" => Ok(Part::Principal),
        Some(("header", name)) => Ok(Part::Header(telling_field(name)?)),
        Some(("body", pointer)) => Ok(Part::Body(place(pointer)?)),
        _ => Err(format!("`{text}` is no part of a request: write \"principal\", \"header:NAME\" or \"body:/POINTER\"")),
    }
}

/// A pointer to exactly one place in a JSON body.
fn place(text: &str) -> Read<Pointer> {
    let pointer = pointer(text)?;
    match text.split('/').any(|token| token == "*") {
        true => Err(format!(
            "`{text}` may mean several values, and here one is wanted: write its place without `*`"
        )),
        false => Ok(pointer),
    }
}

pub(super) fn pointer(text: &str) -> Read<Pointer> {
    if text.is_empty() {
        return Err(
            "the place in the body is missing: write a JSON Pointer, such as /amount".to_owned(),
        );
    }
    Pointer::from_str(text).map_err(|error| format!("`{text}` is no place in a body: {error}"))
}

/// A field that distinguishes requests, in lower case.
pub(super) fn telling_field(text: &str) -> Read<Arc<str>> {
    let Ok(name) = HeaderName::from_str(text) else {
        return Err(format!(
            "`{text}` is not the name of a header field: write \"x-merchant\", for example"
        ));
    };
    let name_text = name.as_str();
    if CHANGING.contains(&name_text) {
        return Err(format!(
            "`{text}` is another with each try, so no request would ever repeat: leave it out"
        ));
    }
    if fields::is_ours(&name)
        && (!name_text.starts_with("content-") || name_text == "content-length")
    {
        return Err(format!(
            "`{text}` is a field that the gateway itself sets or takes off: choose one that the caller sends"
        ));
    }
    Ok(name_text.into())
}
