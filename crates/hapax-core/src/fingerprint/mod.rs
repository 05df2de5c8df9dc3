//! The fingerprint: a digest that says whether two requests are the same request.
//!
//! It covers the scope, the raw target, chosen headers and the body, each part preceded by its
//! length. The [`BodyMode`] says how the body is read: by its content type unless a route says
//! otherwise. The policy of a fingerprint is stored with it, and a repeat is compared under the
//! policy of the *first* request. So changing a route's policy never turns an old repeat into a
//! 422.
//!
//! ```
//! use hapax_core::fingerprint::{FingerprintPolicy, Fingerprinter, RequestHead};
//! use hapax_core::{Principal, Scope};
//!
//! let scope = Scope { namespace: "shop".into(), principal: Principal::Anonymous, method: "POST".into(), path: "/orders".into() };
//! let head = RequestHead { scope: &scope, target: "/orders?dry=1", headers: vec![("content-type", b"application/json")] };
//! let policy = FingerprintPolicy::json().into();
//!
//! let mut first = Fingerprinter::new(&policy, &head);
//! first.update(br#"{"amount": 5, "#);
//! first.update(br#""currency": "EUR"}"#);
//!
//! let mut second = Fingerprinter::new(&policy, &head);
//! second.update(br#"{"currency":"\u0045UR","amount":5}"#);
//! assert_eq!(first.finish(), second.finish());
//! ```

pub mod canonical;
pub mod find;
mod fold;
mod json;
mod multipart;
mod pointer;

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::digest::{Parts, hex};
use crate::scope::Scope;

pub use find::{Finder, Found};
pub use pointer::{Pointer, PointerError};

/// A digest, and the policy it was made with. Two requests are the same iff both are equal.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    /// SHA-256 over the parts.
    pub digest: [u8; 32],
    /// What the digest covers.
    pub policy: Arc<FingerprintPolicy>,
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({}…)", hex(&self.digest[..6]))
    }
}

/// What a fingerprint covers besides scope and target.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FingerprintPolicy {
    /// How the body is read.
    pub body: BodyMode,
    /// Lower-case names of the headers that count. Content type and content coding count unless
    /// they are removed.
    headers: BTreeSet<Box<str>>,
    /// Which JSON texts are read byte for byte.
    json: JsonRules,
}

/// The rules that decide when a JSON text is read byte for byte. They have changed once; a record
/// keeps the rules it was made with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum JsonRules {
    /// Names that differ in letter case are different names.
    V1,
    /// A text with names that differ only in letter case is read byte for byte.
    #[default]
    V2,
}

/// How the fingerprint reads a body.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BodyMode {
    /// As its content type says: `application/json` and `…+json` as a JSON text, `multipart/…` as
    /// multipart parts, anything else byte for byte.
    Auto,
    /// Byte for byte.
    Raw,
    /// As a JSON text: spacing, member order and the spelling of escapes do not count; numbers
    /// count by their exact spelling. A body that is not one well-formed JSON text, or has
    /// duplicate names, names that differ only in letter case, lone surrogates, a byte order mark
    /// or excessive depth or width, is read byte for byte.
    Json(Selection),
    /// As multipart parts: the boundary's spelling does not count. A body that is not well-formed
    /// multipart is read byte for byte.
    Multipart,
}

/// Which values of a JSON text count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Selection {
    /// All of them.
    All,
    /// All but these: neither their presence nor their value counts.
    Omit(Vec<Pointer>),
    /// Only these, and any scalar that stands where one of them would need an object or array.
    Only(Vec<Pointer>),
}

impl Default for FingerprintPolicy {
    fn default() -> Self {
        let headers = ["content-encoding", "content-type"].map(Box::from);
        FingerprintPolicy {
            body: BodyMode::Auto,
            headers: headers.into(),
            json: JsonRules::default(),
        }
    }
}

impl FingerprintPolicy {
    /// Reads every body byte for byte.
    pub fn raw() -> Self {
        FingerprintPolicy {
            body: BodyMode::Raw,
            ..Self::default()
        }
    }

    /// Reads every body as JSON; every value counts.
    pub fn json() -> Self {
        FingerprintPolicy {
            body: BodyMode::Json(Selection::All),
            ..Self::default()
        }
    }

    /// Reads every body as JSON and leaves out the values at `pointers`.
    pub fn json_without<'a>(
        pointers: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, PointerError> {
        let pointers = pointers
            .into_iter()
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        Ok(FingerprintPolicy {
            body: BodyMode::Json(Selection::Omit(pointers)),
            ..Self::default()
        })
    }

    /// Reads every body as JSON and takes only the values at `pointers`.
    pub fn json_only<'a>(
        pointers: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, PointerError> {
        let pointers = pointers
            .into_iter()
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        Ok(FingerprintPolicy {
            body: BodyMode::Json(Selection::Only(pointers)),
            ..Self::default()
        })
    }

    /// Reads every body as multipart.
    pub fn multipart() -> Self {
        FingerprintPolicy {
            body: BodyMode::Multipart,
            ..Self::default()
        }
    }

    /// Counts this header too.
    ///
    /// # Panics
    ///
    /// If `name` is not a valid header field name. The mistake shows at start, not at the first
    /// request.
    #[must_use]
    pub fn with_header(mut self, name: &str) -> Self {
        assert!(
            crate::field::is_name(name),
            "{name:?} is not the name of a header field"
        );
        self.headers.insert(name.to_ascii_lowercase().into());
        self
    }

    /// The lower-case names of the headers that count.
    pub fn headers(&self) -> impl Iterator<Item = &str> {
        self.headers.iter().map(|name| &**name)
    }

    /// Leaves this header out. It may be one of the two that count by default.
    #[must_use]
    pub fn without_header(mut self, name: &str) -> Self {
        self.headers.remove(name.to_ascii_lowercase().as_str());
        self
    }
}

/// The stored form: a version and the mode on the first line, then a line for each header and
/// pointer.
impl fmt::Display for FingerprintPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mode, word, pointers): (_, _, &[Pointer]) = match &self.body {
            BodyMode::Auto => ("auto", "", &[]),
            BodyMode::Raw => ("raw", "", &[]),
            BodyMode::Multipart => ("multipart", "", &[]),
            BodyMode::Json(Selection::All) => ("json", "", &[]),
            BodyMode::Json(Selection::Omit(pointers)) => ("json-omit", "omit", pointers),
            BodyMode::Json(Selection::Only(pointers)) => ("json-only", "only", pointers),
        };
        let version = match (&self.body, self.json) {
            (BodyMode::Auto | BodyMode::Json(_), JsonRules::V2) => 2,
            (BodyMode::Auto | BodyMode::Json(_), JsonRules::V1)
            | (BodyMode::Raw | BodyMode::Multipart, _) => 1,
        };
        write!(f, "{version} sha256 {mode}")?;
        self.headers
            .iter()
            .try_for_each(|name| write!(f, "\nheader {name}"))?;
        pointers
            .iter()
            .try_for_each(|pointer| write!(f, "\n{word} {pointer}"))
    }
}

/// The text is not a fingerprint policy that this version knows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown fingerprint policy {0:?}: made by a newer version?")]
pub struct UnknownPolicy(String);

impl FromStr for FingerprintPolicy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownPolicy(text.to_owned());
        let mut lines = text.lines();
        let first = lines.next().ok_or_else(unknown)?;
        let (mut headers, mut pointers) = (BTreeSet::new(), Vec::new());
        for line in lines {
            match line.split_once(' ').ok_or_else(unknown)? {
                ("header", name) => drop(headers.insert(name.into())),
                ("omit" | "only", pointer) => {
                    pointers.push(pointer.parse().map_err(|_| unknown())?);
                }
                _ => return Err(unknown()),
            }
        }
        let (version, mode) = first.split_once(" sha256 ").ok_or_else(unknown)?;
        let body = match mode {
            "auto" => BodyMode::Auto,
            "raw" => BodyMode::Raw,
            "multipart" => BodyMode::Multipart,
            "json" => BodyMode::Json(Selection::All),
            "json-omit" => BodyMode::Json(Selection::Omit(pointers)),
            "json-only" => BodyMode::Json(Selection::Only(pointers)),
            _ => return Err(unknown()),
        };
        let json = match (version, &body) {
            ("1", BodyMode::Raw | BodyMode::Multipart) => JsonRules::default(),
            ("1", BodyMode::Json(_)) => JsonRules::V1,
            ("2", BodyMode::Auto | BodyMode::Json(_)) => JsonRules::V2,
            _ => return Err(unknown()),
        };
        Ok(FingerprintPolicy {
            body,
            headers,
            json,
        })
    }
}

/// The part of a request that comes before its body.
#[derive(Clone, Debug)]
pub struct RequestHead<'a> {
    /// Namespace, principal and operation of the request.
    pub scope: &'a Scope,
    /// The request target as sent: path and query, undecoded.
    pub target: &'a str,
    /// All header fields in order, names in lower case. Only those that the policy names are read.
    pub headers: Vec<(&'a str, &'a [u8])>,
}

/// Makes one fingerprint. The body arrives in chunks of any size.
pub struct Fingerprinter {
    policy: Arc<FingerprintPolicy>,
    parts: Parts,
    body: Body,
}

enum Body {
    Raw(Sha256),
    Json(Box<json::Reader>),
    Multipart(Box<multipart::Reader>),
}

/// The digest of a finished body. The tag separates, for example, a canonical JSON digest from a
/// raw one.
pub(crate) struct BodyDigest {
    tag: &'static str,
    digest: [u8; 32],
}

impl BodyDigest {
    fn raw(bytes: Sha256) -> Self {
        BodyDigest {
            tag: "raw",
            digest: bytes.finalize().into(),
        }
    }
}

impl Fingerprinter {
    /// Begins a fingerprint with everything but the body.
    pub fn new(policy: &Arc<FingerprintPolicy>, head: &RequestHead<'_>) -> Self {
        let policy = Arc::clone(policy);
        let reading = Reading::of(&policy.body, head);
        let boundary = matches!(reading, Reading::Multipart)
            .then(|| multipart_boundary(head))
            .flatten();
        let mut parts = Parts::new("hapax fingerprint 1");
        head.scope.push_to(&mut parts);
        parts.push(head.target.as_bytes());
        for name in &policy.headers {
            // How much of a multipart body's content type counts depends on whether the body is
            // well-formed, which is known only at its end.
            if boundary.is_some() && &**name == "content-type" {
                continue;
            }
            parts.push(name.as_bytes());
            parts.push_count(values(head, name).count());
            values(head, name).for_each(|value| parts.push(value));
        }
        let body = match (reading, boundary) {
            (Reading::Json(selection), _) => {
                Body::Json(Box::new(json::Reader::new(selection.clone(), policy.json)))
            }
            (Reading::Multipart, Some(boundary)) => {
                Body::Multipart(Box::new(multipart::Reader::new(boundary)))
            }
            (Reading::Raw | Reading::Multipart, _) => Body::Raw(Sha256::new()),
        };
        Fingerprinter {
            policy,
            parts,
            body,
        }
    }

    /// Adds the next bytes of the body.
    pub fn update(&mut self, chunk: &[u8]) {
        match &mut self.body {
            Body::Raw(sha) => sha.update(chunk),
            Body::Json(reader) => reader.update(chunk),
            Body::Multipart(reader) => reader.update(chunk),
        }
    }

    /// Ends the body.
    pub fn finish(mut self) -> Fingerprint {
        let body = match self.body {
            Body::Raw(sha) => BodyDigest::raw(sha),
            Body::Json(reader) => reader.finish(),
            Body::Multipart(reader) => {
                let (body, content_type) = reader.finish();
                if self.policy.headers.contains("content-type") {
                    self.parts.push(b"content-type");
                    self.parts.push(&content_type);
                }
                body
            }
        };
        let mut parts = self.parts;
        parts.push(body.tag.as_bytes());
        parts.push(&body.digest);
        Fingerprint {
            digest: parts.finish(),
            policy: self.policy,
        }
    }
}

/// How the body of one request is read.
#[derive(Clone, Copy)]
enum Reading<'a> {
    Raw,
    Json(&'a Selection),
    Multipart,
}

impl<'a> Reading<'a> {
    fn of(mode: &'a BodyMode, head: &RequestHead<'_>) -> Reading<'a> {
        match mode {
            BodyMode::Auto if is_json(head) => Reading::Json(&Selection::All),
            BodyMode::Auto if multipart_boundary(head).is_some() => Reading::Multipart,
            BodyMode::Auto | BodyMode::Raw => Reading::Raw,
            BodyMode::Json(selection) => Reading::Json(selection),
            BodyMode::Multipart => Reading::Multipart,
        }
    }
}

/// Whether a request has exactly one content type and it is JSON: `application/json`, or any other
/// type that ends in `+json` (RFC 6839).
fn is_json(head: &RequestHead<'_>) -> bool {
    let Some(text) = content_type(head).and_then(|only| std::str::from_utf8(only).ok()) else {
        return false;
    };
    let media_type = text
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    media_type == "application/json" || (media_type.contains('/') && media_type.ends_with("+json"))
}

/// The boundary of a request that has exactly one content type with a boundary in it.
fn multipart_boundary(head: &RequestHead<'_>) -> Option<multipart::Boundary> {
    multipart::Boundary::find(content_type(head)?)
}

/// The content type of a request that has exactly one.
fn content_type<'a>(head: &'a RequestHead<'_>) -> Option<&'a [u8]> {
    let mut content_types = values(head, "content-type");
    content_types
        .next()
        .filter(|_| content_types.next().is_none())
}

fn values<'a>(head: &'a RequestHead<'_>, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    head.headers
        .iter()
        .filter(move |(n, _)| n.eq_ignore_ascii_case(name))
        .map(|&(_, value)| value)
}

#[cfg(test)]
mod tests;
