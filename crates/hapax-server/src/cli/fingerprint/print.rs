//! Prints one request: its digest, and the parts that count.

use std::fmt::Write as _;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use hapax::core::fingerprint::canonical::Body;
use serde_json::{Value, json};

use super::subject::Subject;
use crate::admin::keys::wire;
use crate::cli::{Exit, text};

pub(super) fn print(subject: &Subject, as_json: bool) -> Result<(), Exit> {
    text::emit(&if as_json {
        object(subject)
    } else {
        page(subject)
    });
    Ok(())
}

fn page(subject: &Subject) -> String {
    let mut page = String::new();
    let mut say = |name: &str, value: &str| {
        let _ = writeln!(page, "{name:<24} {}", text::line(value));
    };
    say("fingerprint", &wire::hex(&subject.fingerprint.digest));
    say(
        "made with",
        &subject.fingerprint.policy.to_string().replace('\n', ", "),
    );
    if let Some(record) = subject.record {
        say("record", &record.to_string());
    }
    say("namespace", &subject.scope.namespace);
    say("principal", &subject.scope.principal.to_string());
    say("method", &subject.scope.method);
    say("target", &subject.target);
    for (name, values) in &subject.canonical.headers {
        say(&format!("header {name}"), &header(values));
    }
    say("body", &body_words(&subject.canonical.body));
    page + &body_text(&subject.canonical.body)
}

/// All values of a header.
pub(super) fn header(values: &[Vec<u8>]) -> String {
    match values {
        [] => "(absent)".to_owned(),
        values => values
            .iter()
            .map(|value| text::bytes(value))
            .collect::<Vec<_>>()
            .join(" | "),
    }
}

/// How a body is compared.
pub(super) fn body_words(body: &Body) -> String {
    match body {
        Body::Bytes { bytes, odd: None } => format!("byte for byte, {} bytes", bytes.len()),
        Body::Bytes {
            bytes,
            odd: Some(why),
        } => format!("byte for byte, {} bytes, because {why}", bytes.len()),
        Body::Json(_) => "as JSON".to_owned(),
        Body::Multipart(pieces) => {
            format!("as multipart, {} parts", pieces.len().saturating_sub(2))
        }
    }
}

fn body_text(body: &Body) -> String {
    match body {
        Body::Bytes { bytes, .. } if bytes.is_empty() => String::new(),
        Body::Bytes { bytes, .. } => match str::from_utf8(bytes) {
            Ok(text) => format!("\n{}\n", text::lines(text).trim_end_matches('\n')),
            Err(_) => "\n(no text)\n".to_owned(),
        },
        Body::Json(json) => format!("\n{}\n", text::json(&json.to_string())),
        Body::Multipart(pieces) => {
            let pieces = pieces.iter().map(|piece| {
                format!(
                    "\n- {} bytes: {}",
                    piece.len(),
                    text::cut(&text::bytes(piece), 200)
                )
            });
            pieces.collect::<String>() + "\n"
        }
    }
}

fn object(subject: &Subject) -> String {
    let headers: serde_json::Map<String, Value> = subject
        .canonical
        .headers
        .iter()
        .map(|(name, values)| {
            (
                name.clone(),
                values
                    .iter()
                    .map(|value| String::from_utf8_lossy(value))
                    .collect(),
            )
        })
        .collect();
    let object = json!({
        "fingerprint": wire::hex(&subject.fingerprint.digest),
        "policy": subject.fingerprint.policy.to_string(),
        "record": subject.record.map(|record| record.to_string()),
        "namespace": &*subject.scope.namespace,
        "principal": match &subject.scope.principal {
            hapax::Principal::Anonymous => Value::Null,
            hapax::Principal::Named(name) => Value::from(&**name),
        },
        "method": &*subject.scope.method,
        "target": subject.target,
        "headers": headers,
        "body": body_object(&subject.canonical.body),
    });
    format!("{}\n", text::json(&object.to_string()))
}

fn body_object(body: &Body) -> Value {
    match body {
        Body::Bytes { bytes, odd } => {
            json!({ "read_as": "raw", "because": odd.as_ref().map(ToString::to_string), "base64": BASE64_STANDARD.encode(bytes) })
        }
        // As text: numbers are compared as spelled, and a JSON value would lose the spelling.
        Body::Json(json) => json!({ "read_as": "json", "canonical": json.to_string() }),
        Body::Multipart(pieces) => {
            json!({ "read_as": "multipart", "pieces_base64": pieces.iter().map(|piece| BASE64_STANDARD.encode(piece)).collect::<Vec<_>>() })
        }
    }
}
