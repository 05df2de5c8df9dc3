//! An OpenAPI document, as a tree of JSON values.

use std::path::Path;

use serde_json::{Map, Value};

use crate::cli::Exit;

/// Limit on a document: more than any description of an API needs, and less than memory.
const BYTES_MAX: u64 = 64 << 20;

/// Limit on a chain of references; a longer one is a cycle.
const REFERENCES_MAX: usize = 16;

/// Reads a document of OpenAPI 3.0 or 3.1.
pub(super) fn read(path: &Path) -> Result<Value, Exit> {
    let named = |what: String| Exit::usage(format!("{}: {what}", path.display()));
    let size = std::fs::metadata(path)
        .map_err(|error| named(format!("could not be read: {error}")))?
        .len();
    if size > BYTES_MAX {
        return Err(named(format!(
            "has {size} bytes, and no description of an API has over {BYTES_MAX}: name another file"
        )));
    }
    let text = std::fs::read_to_string(path)
        .map_err(|error| named(format!("could not be read: {error}")))?;
    let document = parse(&text).map_err(named)?;
    match document.get("openapi").map(words) {
        Some(version) if version.starts_with("3.0") || version.starts_with("3.1") => Ok(document),
        Some(version) => Err(named(format!(
            "is OpenAPI {version}, and 3.0 and 3.1 are understood: convert it first"
        ))),
        None if document.get("swagger").is_some() => Err(named(
            "is Swagger 2.0, and OpenAPI 3.0 and 3.1 are understood: convert it first".to_owned(),
        )),
        None => Err(named(
            "is no OpenAPI document: `openapi: 3.1.0` would say so at its top".to_owned(),
        )),
    }
}

fn parse(text: &str) -> Result<Value, String> {
    let text = text.trim_start_matches('\u{feff}');
    if text.trim_start().starts_with('{') {
        serde_json::from_str(text).map_err(|error| format!("is no JSON: {error}"))
    } else {
        serde_saphyr::from_str(text).map_err(|error| format!("is no YAML: {error}"))
    }
}

/// The members of the object with this name; none if there is no such object.
pub(super) fn members<'a>(
    value: &'a Value,
    name: &str,
) -> impl Iterator<Item = (&'a str, &'a Value)> {
    let object = value.get(name).and_then(Value::as_object);
    object
        .into_iter()
        .flat_map(Map::iter)
        .map(|(name, value)| (name.as_str(), value))
}

/// The items of the list with this name; none if there is no such list.
pub(super) fn items<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value
        .get(name)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// A scalar as text for people.
pub(super) fn words(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Bool(on) => on.to_string(),
        _ => String::new(),
    }
}

/// The value after following all references within this document; `None` if one leads elsewhere, or
/// nowhere.
pub(super) fn follow<'a>(document: &'a Value, mut value: &'a Value) -> Option<&'a Value> {
    for _ in 0..REFERENCES_MAX {
        let Some(to) = value.get("$ref").and_then(Value::as_str) else {
            return Some(value);
        };
        value = document.pointer(to.strip_prefix('#')?)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_quotes_is_a_name_in_yaml_too() {
        let document = parse("openapi: 3.0.3\na:\n  200: x\n  'no': yes\n").unwrap();
        assert_eq!(document["a"]["200"], "x");
        assert_eq!(words(&document["openapi"]), "3.0.3");
    }

    #[test]
    fn references_are_followed_until_they_leave_or_turn_round() {
        let json = r##"{"a": {"$ref": "#/c~1d/e"}, "c/d": {"e": {"x": 1}}, "loop": {"$ref": "#/loop"}, "away": {"$ref": "b.yaml#/x"}}"##;
        let document = parse(json).unwrap();
        let follow = |name: &str| follow(&document, &document[name]);
        assert!(follow("a").unwrap().get("x").is_some());
        assert_eq!((follow("loop"), follow("away")), (None, None));
    }
}
