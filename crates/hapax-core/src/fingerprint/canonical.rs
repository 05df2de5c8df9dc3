//! What a fingerprint covers, for people to read: the same parts that are hashed, as values instead
//! of digests.
//!
//! The request path never needs this; it answers "what counts?" and "why do these two differ?". It
//! is made by the code that makes the fingerprint, so that two requests have equal canonical forms
//! iff they have equal fingerprints.
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

/// The headers and the body of a request as far as they count. Scope and target count as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canonical {
    /// Each name that counts, in order, with the values it came with.
    pub headers: Vec<(String, Vec<Vec<u8>>)>,
    /// The body.
    pub body: Body,
}

/// A body as far as it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Byte for byte.
    Bytes {
        /// The bytes.
        bytes: Vec<u8>,
        /// Why, where the policy has it read otherwise.
        odd: Option<Odd>,
    },
    /// As a JSON text.
    Json(Json),
    /// As what stands before, between and after the delimiters, whatever their spelling.
    Multipart(Vec<Vec<u8>>),
}

/// A JSON text as far as it counts. Its `Display` is the text without spacing, members in the order
/// of their names.
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
    /// Elements with their places. One that does not count is left out and leaves its place empty.
    Array(BTreeMap<u64, Json>),
    /// Members by name.
    Object(BTreeMap<String, Json>),
}

/// Why a body that should be merged with other spellings of itself counts byte for byte.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Odd {
    /// Not one well-formed JSON text. Lone surrogates are not well-formed.
    #[error("it is not one well-formed JSON text: {0}")]
    NotJson(String),
    /// Readers differ in whether they skip it.
    #[error("it begins with a byte order mark")]
    ByteOrderMark,
    /// Readers differ in which of the two they take.
    #[error("the name {0:?} is in one object twice")]
    DuplicateName(String),
    /// Readers that ignore letter case take them for one name. The second may be a name that the
    /// policy names.
    #[error("the names {0:?} and {1:?} differ only in letter case")]
    LetterCase(String, String),
    /// Nested deeper than is read.
    #[error("it is nested too deeply")]
    Deep,
    /// More members than are kept.
    #[error("its objects have too many members")]
    Wide,
    /// A longer token than is kept.
    #[error("one of its strings or numbers is too long")]
    Long,
    /// The content type has no boundary, or there is none, or more than one.
    #[error("its content type is not multipart with one boundary")]
    NoBoundary,
    /// The delimiters do not make a multipart body.
    #[error("it is not well-formed multipart for the boundary in its content type")]
    NotMultipart,
}

/// What counts of a request under a policy.
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

/// What counts of a JSON text, or why it counts byte for byte.
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

/// The canonical text. The place of an element that does not count stays empty, as in `[,2]`: that
/// is no JSON, and says what was hashed.
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
        // Commas between the one before and this one, as many as there are places.
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

/// A JSON string with no more escapes than JSON demands.
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
