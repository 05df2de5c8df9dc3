//! An OpenAPI document: a tree in the order in which it was written, so that whoever compares sees
//! only what was added.

use std::fmt;
use std::path::Path;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::cli::Exit;

/// More than any description of an API has, and less than a machine's memory.
const BYTES_MAX: u64 = 64 << 20;

/// References that lead to references: more are a circle.
const REFERENCES_MAX: usize = 16;

/// How a document is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Yaml,
}

/// A value of a document.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Null,
    Bool(bool),
    Number(serde_json::Number),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

/// Reads a document of OpenAPI 3.0 or 3.1.
pub(super) fn read(path: &Path) -> Result<(Node, Format), Exit> {
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
    let format = if text
        .trim_start_matches('\u{feff}')
        .trim_start()
        .starts_with('{')
    {
        Format::Json
    } else {
        Format::Yaml
    };
    let document = parse(&text, format).map_err(named)?;
    match document.get("openapi").map(Node::words) {
        Some(version) if version.starts_with("3.0") || version.starts_with("3.1") => {
            Ok((document, format))
        }
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

pub(super) fn parse(text: &str, format: Format) -> Result<Node, String> {
    let text = text.trim_start_matches('\u{feff}');
    match format {
        Format::Json => serde_json::from_str(text).map_err(|error| format!("is no JSON: {error}")),
        Format::Yaml => {
            serde_saphyr::from_str(text).map_err(|error| format!("is no YAML: {error}"))
        }
    }
}

/// Writes a document in the format it was read in.
pub(super) fn write(document: &Node, format: Format) -> Result<String, Exit> {
    match format {
        Format::Json => Ok(serde_json::to_string_pretty(document).map_err(Exit::failed)? + "\n"),
        Format::Yaml => serde_saphyr::to_string(document).map_err(Exit::failed),
    }
}

impl Node {
    pub(super) fn text(text: impl Into<String>) -> Node {
        Node::Text(text.into())
    }

    pub(super) fn map<const N: usize>(entries: [(&str, Node); N]) -> Node {
        Node::Map(
            entries
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        )
    }

    /// A reference to another place of the document.
    pub(super) fn reference(to: &str) -> Node {
        Node::map([("$ref", Node::text(to))])
    }

    pub(super) fn get(&self, name: &str) -> Option<&Node> {
        self.entries()
            .iter()
            .find(|(other, _)| other == name)
            .map(|(_, value)| value)
    }

    /// What stands under a name, made if nothing does. What is no map and should be one becomes
    /// one.
    pub(super) fn entry(&mut self, name: &str, or: Node) -> &mut Node {
        if !matches!(self, Node::Map(_)) {
            *self = Node::Map(Vec::new());
        }
        let Node::Map(entries) = self else {
            unreachable!("it was made a map")
        };
        let at = entries
            .iter()
            .position(|(other, _)| other == name)
            .unwrap_or_else(|| {
                entries.push((name.to_owned(), or));
                entries.len() - 1
            });
        &mut entries[at].1
    }

    /// What stands in a map; nothing in what is none.
    pub(super) fn entries(&self) -> &[(String, Node)] {
        match self {
            Node::Map(entries) => entries,
            _ => &[],
        }
    }

    /// What stands in a list; nothing in what is none.
    pub(super) fn items(&self) -> &[Node] {
        match self {
            Node::List(items) => items,
            _ => &[],
        }
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn is_true(&self) -> bool {
        *self == Node::Bool(true)
    }

    /// A scalar as it would be read.
    pub(super) fn words(&self) -> String {
        match self {
            Node::Text(text) => text.clone(),
            Node::Number(number) => number.to_string(),
            Node::Bool(on) => on.to_string(),
            _ => String::new(),
        }
    }

    /// What a value is once all references inside this document are followed; `None` where one
    /// leads elsewhere, or nowhere.
    pub(super) fn follow<'a>(&'a self, mut value: &'a Node) -> Option<&'a Node> {
        for _ in 0..REFERENCES_MAX {
            let Some(to) = value.get("$ref").and_then(Node::as_text) else {
                return Some(value);
            };
            let mut place = self;
            for token in to.strip_prefix("#/")?.split('/') {
                place = place.get(&token.replace("~1", "/").replace("~0", "~"))?;
            }
            value = place;
        }
        None
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Node::Null => serializer.serialize_unit(),
            Node::Bool(on) => serializer.serialize_bool(*on),
            Node::Number(number) => number.serialize(serializer),
            Node::Text(text) => serializer.serialize_str(text),
            Node::List(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                items
                    .iter()
                    .try_for_each(|item| list.serialize_element(item))?;
                list.end()
            }
            Node::Map(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                entries
                    .iter()
                    .try_for_each(|(name, value)| map.serialize_entry(name, value))?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(Reader)
    }

    fn visit_bool<E>(self, on: bool) -> Result<Node, E> {
        Ok(Node::Bool(on))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Node, E> {
        Ok(Node::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Node, E> {
        Ok(Node::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Node, E> {
        Ok(serde_json::Number::from_f64(number).map_or(Node::Null, Node::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::text(text))
    }

    fn visit_string<E>(self, text: String) -> Result<Node, E> {
        Ok(Node::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries: Vec<(String, Node)> = Vec::new();
        // A status without quotes is a number in YAML, and a name all the same.
        while let Some(name) = map.next_key::<Node>()? {
            entries.push((name.words(), map.next_value()?));
        }
        Ok(Node::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_and_the_names_stay() {
        let yaml = "openapi: 3.0.3\nz: 1\na:\n  200: x\n  'no': yes\n  b: [1.5, null, \"07\"]\n";
        let document = parse(yaml, Format::Yaml).unwrap();
        let names: Vec<&str> = document
            .entries()
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(names, ["openapi", "z", "a"]);
        assert_eq!(
            document.get("a").unwrap().get("200"),
            Some(&Node::text("x"))
        );
        let again = parse(&write(&document, Format::Yaml).unwrap(), Format::Yaml).unwrap();
        assert_eq!(again, document);
        let json = write(&document, Format::Json).unwrap();
        assert_eq!(parse(&json, Format::Json).unwrap(), document);
    }

    #[test]
    fn references_are_followed_until_they_leave_or_turn_round() {
        let json = r##"{"a": {"$ref": "#/c~1d/e"}, "c/d": {"e": {"x": 1}}, "loop": {"$ref": "#/loop"}, "away": {"$ref": "b.yaml#/x"}}"##;
        let document = parse(json, Format::Json).unwrap();
        let follow = |name: &str| document.follow(document.get(name).unwrap());
        assert!(follow("a").unwrap().get("x").is_some());
        assert_eq!((follow("loop"), follow("away")), (None, None));
    }
}
