//! Compares two requests: which of the parts that count differ.

use std::collections::BTreeSet;

use hapax::core::fingerprint::canonical::{Body, Json};
use serde::Serialize;

use super::print::{body_words, header};
use super::subject::Subject;
use crate::cli::{Exit, text};

/// Limit on the reported differences of one body; the rest are probably of the same kind.
const DIFFERENCES_MAX: usize = 20;
/// Bytes shown from the first difference of two bodies, and characters shown of a value.
const SHOWN: usize = 60;

/// One part in which the requests differ.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Difference {
    part: String,
    /// The position in the body: a JSON Pointer, or a byte offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
    a: String,
    b: String,
}

/// Prints the differences. The exit code is 1 if there are any.
pub(super) fn explain(a: &Subject, b: &Subject, as_json: bool) -> Result<(), Exit> {
    let is_same = a.fingerprint == b.fingerprint;
    let differences = differences(a, b);
    if is_same != differences.is_empty() {
        return Err(Exit {
            code: 70,
            message: "the digests and what they cover disagree: this is a bug of Hapax".to_owned(),
        });
    }
    if as_json {
        let object = serde_json::json!({ "same": is_same, "differences": differences });
        text::emit(&format!("{}\n", text::json(&object.to_string())));
    } else if is_same {
        text::emit("the same request\n");
    } else {
        text::emit(&differences.iter().map(page).collect::<String>());
    }
    if is_same {
        Ok(())
    } else {
        Err(Exit::failed(
            "the requests differ: with the same key the second gets 422 key-reused",
        ))
    }
}

fn page(difference: &Difference) -> String {
    let Difference { part, at, a, b } = difference;
    let at = at
        .as_ref()
        .map(|at| format!(" at {}", text::line(at)))
        .unwrap_or_default();
    format!(
        "{}{at}\n  a: {}\n  b: {}\n",
        text::line(part),
        text::line(a),
        text::line(b)
    )
}

fn differences(a: &Subject, b: &Subject) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut compare = |part: String, a: String, b: String| {
        if a != b {
            found.push(Difference {
                part,
                at: None,
                a,
                b,
            });
        }
    };
    compare(
        "method".to_owned(),
        a.scope.method.to_string(),
        b.scope.method.to_string(),
    );
    compare("target".to_owned(), a.target.clone(), b.target.clone());
    for ((name, of_a), (_, of_b)) in a.canonical.headers.iter().zip(&b.canonical.headers) {
        if of_a != of_b {
            compare(format!("header {name}"), header(of_a), header(of_b));
        }
    }
    bodies(&a.canonical.body, &b.canonical.body, &mut found);
    found
}

fn bodies(a: &Body, b: &Body, found: &mut Vec<Difference>) {
    if a == b {
        return;
    }
    match (a, b) {
        (Body::Json(a), Body::Json(b)) => {
            let before = found.len();
            values("", Some(a), Some(b), &mut |difference| {
                if found.len() - before < DIFFERENCES_MAX {
                    found.push(difference);
                }
            });
        }
        (Body::Multipart(a), Body::Multipart(b)) => pieces(a, b, found),
        (
            Body::Bytes { bytes: of_a, odd },
            Body::Bytes {
                bytes: of_b,
                odd: other,
            },
        ) => {
            found.push(bytes("body".to_owned(), of_a, of_b));
            // Explains why whitespace counts although JSON was to be compared.
            if odd.is_some() || other.is_some() {
                found.push(Difference {
                    part: "body is compared".to_owned(),
                    at: None,
                    a: body_words(a),
                    b: body_words(b),
                });
            }
        }
        _ => found.push(Difference {
            part: "body is compared".to_owned(),
            at: None,
            a: body_words(a),
            b: body_words(b),
        }),
    }
}

/// Descends both JSON texts in parallel, to the values in which they differ.
fn values(pointer: &str, a: Option<&Json>, b: Option<&Json>, tell: &mut impl FnMut(Difference)) {
    match (a, b) {
        (a, b) if a == b => {}
        (Some(Json::Object(a)), Some(Json::Object(b))) => {
            let names: BTreeSet<_> = a.keys().chain(b.keys()).collect();
            for name in names {
                let step = name.replace('~', "~0").replace('/', "~1");
                values(&format!("{pointer}/{step}"), a.get(name), b.get(name), tell);
            }
        }
        (Some(Json::Array(a)), Some(Json::Array(b))) => {
            let places: BTreeSet<_> = a.keys().chain(b.keys()).collect();
            for place in places {
                values(
                    &format!("{pointer}/{place}"),
                    a.get(place),
                    b.get(place),
                    tell,
                );
            }
        }
        (a, b) => {
            let at = if pointer.is_empty() {
                "the whole".to_owned()
            } else {
                pointer.to_owned()
            };
            tell(Difference {
                part: "body".to_owned(),
                at: Some(at),
                a: shown(a),
                b: shown(b),
            });
        }
    }
}

fn shown(value: Option<&Json>) -> String {
    value.map_or_else(
        || "(absent)".to_owned(),
        |value| text::cut(&value.to_string(), SHOWN).into_owned(),
    )
}

fn pieces(a: &[Vec<u8>], b: &[Vec<u8>], found: &mut Vec<Difference>) {
    if a.len() != b.len() {
        let parts = |pieces: &[Vec<u8>]| format!("{} parts", pieces.len().saturating_sub(2));
        return found.push(Difference {
            part: "body".to_owned(),
            at: None,
            a: parts(a),
            b: parts(b),
        });
    }
    let last = a.len() - 1;
    for (number, (a, b)) in a
        .iter()
        .zip(b)
        .enumerate()
        .filter(|(_, (a, b))| a != b)
        .take(DIFFERENCES_MAX)
    {
        let part = match number {
            0 => "body, before the first part".to_owned(),
            number if number == last => "body, after the last part".to_owned(),
            number => format!("body, part {number}"),
        };
        found.push(bytes(part, a, b));
    }
}

/// The position where two byte strings differ, and how each continues from there.
fn bytes(part: String, a: &[u8], b: &[u8]) -> Difference {
    let at = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let shown = |bytes: &[u8]| match &bytes[at..] {
        [] => format!("(ends here, after {} bytes)", bytes.len()),
        rest => rest[..rest.len().min(SHOWN)].escape_ascii().to_string(),
    };
    Difference {
        part,
        at: Some(format!("byte {at}")),
        a: shown(a),
        b: shown(b),
    }
}
