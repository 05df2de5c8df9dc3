//! The canonical form: what a fingerprint covers, for people to read. It has the parts that are
//! hashed, as values instead of digests.
//!
//! Request handling does not need this. It answers "what counts?" and "why do these two differ?".
//! The code that makes the fingerprint makes it too, so two requests have equal canonical forms iff
//! they have equal fingerprints.
//!
//! ```
//! use hapax_core::fingerprint::{Selection, canonical};
//!
//! let json = canonical::json(br#"{"b": 1.0, "a": "\u0045UR"}"#, &Selection::All)?;
//! assert_eq!(json.to_string(), r#"{"a":"EUR","b":1.0}"#);
//! # Ok::<(), canonical::Odd>(())
//! ```

use std::collections::BTreeMap;
use std::fmt;

use super::multipart::{Boundary, Cutter, Pieces};
use super::{
    FingerprintPolicy, JsonRules, Reading, RequestHead, Selection, json, multipart_boundary, values,
};

/// The parts of the headers and the body that count. Scope and target count unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canonical {
    /// Each header name that counts, in order, with its values.
    pub headers: Vec<(String, Vec<Vec<u8>>)>,
    /// The body.
    pub body: Body,
}

/// The part of a body that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Byte for byte.
    Bytes {
        /// The bytes.
        bytes: Vec<u8>,
        /// Why, if the policy asks for another reading.
        odd: Option<Odd>,
    },
    /// As a JSON text.
    Json(Json),
    /// As multipart: the pieces before, between and after the delimiters, without the delimiters.
    Multipart(Vec<Vec<u8>>),
}

/// The part of a JSON text that counts. Its `Display` is the text without spacing, members in the
/// order of their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Json {
    /// `null`
    Null,
    /// `true` or `false`
    Boolean(bool),
    /// A number by its exact spelling.
    Number(String),
    /// A string, whatever the spelling of its escapes.
    String(String),
    /// Elements by their place. An element that does not count is missing, and its place stays
    /// empty.
    Array(BTreeMap<u64, Json>),
    /// Members by name.
    Object(BTreeMap<String, Json>),
}

/// Why a body is odd: it counts byte for byte and is not merged with other spellings of itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Odd {
    /// It is not one well-formed JSON text. A lone surrogate is not well-formed.
    #[error("it is not one well-formed JSON text: {0}")]
    NotJson(String),
    /// It begins with a byte order mark. Readers differ in whether they skip it.
    #[error("it begins with a byte order mark")]
    ByteOrderMark,
    /// An object has this name twice. Readers differ in which of the two they take.
    #[error("the name {0:?} is in one object twice")]
    DuplicateName(String),
    /// Two names differ only in letter case. Readers that ignore letter case take them for one
    /// name. The second may be a name in the policy instead of the text.
    #[error("the names {0:?} and {1:?} differ only in letter case")]
    LetterCase(String, String),
    /// It is nested too deeply.
    #[error("it is nested too deeply")]
    Deep,
    /// It has too many open members.
    #[error("its objects have too many members")]
    Wide,
    /// It has a token that is too long.
    #[error("one of its strings or numbers is too long")]
    Long,
    /// The request does not have exactly one content type with exactly one boundary.
    #[error("its content type is not multipart with one boundary")]
    NoBoundary,
    /// The delimiters do not make a multipart body.
    #[error("it is not well-formed multipart for the boundary in its content type")]
    NotMultipart,
}

/// The parts of a request that count under a policy.
pub fn of(policy: &FingerprintPolicy, head: &RequestHead<'_>, body: &[u8]) -> Canonical {
    let header = |name: &str| {
        (
            name.to_owned(),
            values(head, name).map(<[u8]>::to_vec).collect(),
        )
    };
    let mut headers: Vec<(String, Vec<Vec<u8>>)> = policy.headers().map(header).collect();
    let bytes = |odd| Body::Bytes {
        bytes: body.to_vec(),
        odd,
    };
    let body = match Reading::of(&policy.body, head) {
        Reading::Raw => bytes(None),
        Reading::Json(selection) => {
            json_by(policy.json, body, selection).map_or_else(|odd| bytes(Some(odd)), Body::Json)
        }
        Reading::Multipart => match multipart_boundary(head) {
            None => bytes(Some(Odd::NoBoundary)),
            Some(boundary) => match multipart(boundary, body) {
                None => bytes(Some(Odd::NotMultipart)),
                Some((pieces, content_type)) => {
                    if let Some((_, values)) =
                        headers.iter_mut().find(|(name, _)| name == "content-type")
                    {
                        *values = vec![content_type];
                    }
                    Body::Multipart(pieces)
                }
            },
        },
    };
    Canonical { headers, body }
}

/// The part of a JSON text that counts. The error says why the text counts byte for byte.
pub fn json(text: &[u8], selection: &Selection) -> Result<Json, Odd> {
    json_by(JsonRules::default(), text, selection)
}

fn json_by(rules: JsonRules, text: &[u8], selection: &Selection) -> Result<Json, Odd> {
    let mut canonical = json::Canonical::<Json>::new(selection.clone(), rules);
    canonical.update(text)?;
    canonical.finish()
}

fn multipart(boundary: Boundary, body: &[u8]) -> Option<(Vec<Vec<u8>>, Vec<u8>)> {
    let mut cutter = Cutter::<Whole>::new(boundary);
    cutter.update(body);
    let (Whole { pieces, .. }, content_type) = cutter.finish().ok()?;
    Some((pieces, content_type))
}

#[derive(Default)]
struct Whole {
    pieces: Vec<Vec<u8>>,
    piece: Vec<u8>,
}

impl Pieces for Whole {
    fn content(&mut self, bytes: &[u8]) {
        self.piece.extend_from_slice(bytes);
    }

    fn end_piece(&mut self) {
        self.pieces.push(std::mem::take(&mut self.piece));
    }
}

impl json::Form for Json {
    type Name = String;
    type Value = Json;
    type Array = BTreeMap<u64, Json>;

    fn name(text: &str) -> String {
        text.to_owned()
    }

    fn spelled(name: &String) -> &str {
        name
    }

    fn string(text: &str) -> Json {
        Json::String(text.to_owned())
    }

    fn number(spelling: &str) -> Json {
        Json::Number(spelling.to_owned())
    }

    fn boolean(truth: bool) -> Json {
        Json::Boolean(truth)
    }

    fn null() -> Json {
        Json::Null
    }

    fn array() -> BTreeMap<u64, Json> {
        BTreeMap::new()
    }

    fn push(array: &mut BTreeMap<u64, Json>, place: u64, element: Json) {
        array.insert(place, element);
    }

    fn end(array: BTreeMap<u64, Json>) -> Json {
        Json::Array(array)
    }

    fn object(members: impl Iterator<Item = (String, Json)>) -> Json {
        Json::Object(members.collect())
    }
}

/// The canonical text. The place of an element that does not count stays empty, as in `[,2]`. That
/// is not valid JSON, but it shows what was hashed.
impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Json::Null => f.write_str("null"),
            Json::Boolean(truth) => write!(f, "{truth}"),
            Json::Number(spelling) => f.write_str(spelling),
            Json::String(text) => quoted(f, text),
            Json::Array(elements) => array(f, elements),
            Json::Object(members) => object(f, members),
        }
    }
}

fn array(f: &mut fmt::Formatter<'_>, elements: &BTreeMap<u64, Json>) -> fmt::Result {
    f.write_str("[")?;
    let mut next = 0;
    for (&place, element) in elements {
        // One comma for each place between the previous element and this one.
        let commas = if next == 0 { place } else { place + 1 - next };
        (0..commas).try_for_each(|_| f.write_str(","))?;
        write!(f, "{element}")?;
        next = place + 1;
    }
    f.write_str("]")
}

fn object(f: &mut fmt::Formatter<'_>, members: &BTreeMap<String, Json>) -> fmt::Result {
    f.write_str("{")?;
    for (number, (name, value)) in members.iter().enumerate() {
        f.write_str(if number == 0 { "" } else { "," })?;
        quoted(f, name)?;
        f.write_str(":")?;
        write!(f, "{value}")?;
    }
    f.write_str("}")
}

/// Writes a JSON string with only the escapes that JSON requires.
fn quoted(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str("\"")?;
    for c in text.chars() {
        match c {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            c if c < ' ' => write!(f, "\\u{:04x}", u32::from(c))?,
            c => write!(f, "{c}")?,
        }
    }
    f.write_str("\"")
}
