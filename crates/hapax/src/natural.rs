//! Requests that need no key, because repeating them has no further effect: the HTTP side of a
//! version check.
//!
//! A client that changes a shared resource states in `If-Match` (RFC 9110 section 13.1.1) which
//! version it has seen. A repeat of a change that was made finds a newer version and is refused
//! with 412: nothing happens twice, and no other client's change is overwritten. `docs/natural.md`
//! has the other patterns.
//!
//! ```
//! use hapax::natural::{ETag, IfMatch, Unmet};
//! use http::{HeaderMap, HeaderValue, header};
//!
//! struct Order { quantity: u32, version: u64 }
//!
//! fn change(order: &mut Order, headers: &HeaderMap, quantity: u32) -> Result<ETag, Unmet> {
//!     IfMatch::required(headers)?.check(&ETag::of_version(order.version))?;
//!     (order.quantity, order.version) = (quantity, order.version + 1);
//!     Ok(ETag::of_version(order.version))
//! }
//!
//! let mut order = Order { quantity: 1, version: 7 };
//! let seen = HeaderMap::from_iter([(header::IF_MATCH, HeaderValue::from_static("\"7\""))]);
//! assert_eq!(change(&mut order, &seen, 2).unwrap().to_string(), "\"8\"");
//! assert_eq!(change(&mut order, &seen, 2), Err(Unmet::Changed), "the same request again");
//! assert_eq!(change(&mut order, &HeaderMap::new(), 2), Err(Unmet::Missing));
//! ```
//!
//! In a database the comparison belongs in the statement that writes, because another client may
//! write between a separate read and the change: `UPDATE … WHERE id = $1 AND version = ANY ($2)`,
//! with [`IfMatch::versions`].

use std::fmt;

use http::StatusCode;
use http::header::{HeaderMap, HeaderValue, IF_MATCH};
use sha2::{Digest, Sha256};

/// A strong entity tag (RFC 9110 section 8.8.3): two states of a resource have the same tag only if
/// they are the same, byte for byte.
///
/// It is displayed and sent with its quotes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ETag(String);

impl ETag {
    /// The tag of a version number that every change raises. This is the cheapest tag, and enough
    /// if each representation of the resource has its own path.
    pub fn of_version(version: u64) -> ETag {
        ETag(version.to_string())
    }

    /// The tag of bytes without a version: half of their SHA-256.
    pub fn of_bytes(bytes: &[u8]) -> ETag {
        ETag(
            Sha256::digest(bytes)[..16]
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
        )
    }

    /// The value for the field `ETag`.
    pub fn to_value(&self) -> HeaderValue {
        // Parsed tags contain only bytes that a field may hold, and tags made here only letters and
        // digits.
        HeaderValue::from_bytes(self.to_string().as_bytes())
            .expect("an entity tag is a field value")
    }
}

/// With its quotes.
impl fmt::Display for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0)
    }
}

/// The condition that a caller sends in `If-Match`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IfMatch {
    /// `*`: any version, if the resource exists.
    Any,
    /// One of these. Weak tags are left out, as they never match here (RFC 9110 section 8.8.3.2),
    /// so the list may be empty.
    Tags(Vec<ETag>),
}

/// Why a request may not change anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unmet {
    /// 428: the request does not name a version.
    #[error("say in If-Match which version you have seen")]
    Missing,
    /// 400: the field cannot be read.
    #[error("If-Match is neither * nor a list of entity tags")]
    Malformed,
    /// 412: the request names another version than the current one.
    #[error("it has changed since you saw it: look again")]
    Changed,
}

impl IfMatch {
    /// Reads the condition on a route that requires one.
    ///
    /// # Errors
    ///
    /// [`Unmet::Missing`] without the field, and [`Unmet::Malformed`].
    pub fn required(headers: &HeaderMap) -> Result<IfMatch, Unmet> {
        IfMatch::parse(headers)?.ok_or(Unmet::Missing)
    }

    /// Reads the condition; `None` if the request has none. Several field lines are one list.
    ///
    /// # Errors
    ///
    /// [`Unmet::Malformed`].
    pub fn parse(headers: &HeaderMap) -> Result<Option<IfMatch>, Unmet> {
        let lines: Vec<&[u8]> = headers
            .get_all(IF_MATCH)
            .iter()
            .map(HeaderValue::as_bytes)
            .collect();
        if lines.is_empty() {
            return Ok(None);
        }
        let list = lines.join(&b","[..]);
        if list.trim_ascii() == b"*" {
            return Ok(Some(IfMatch::Any));
        }
        tags(&list)
            .map(IfMatch::Tags)
            .map(Some)
            .ok_or(Unmet::Malformed)
    }

    /// Whether the condition holds for the current tag; `None` if the resource does not exist.
    pub fn matches(&self, current: Option<&ETag>) -> bool {
        match (self, current) {
            (_, None) => false,
            (IfMatch::Any, Some(_)) => true,
            (IfMatch::Tags(tags), Some(current)) => tags.contains(current),
        }
    }

    /// The same as a result, for a resource that exists.
    ///
    /// # Errors
    ///
    /// [`Unmet::Changed`].
    pub fn check(&self, current: &ETag) -> Result<(), Unmet> {
        if self.matches(Some(current)) {
            Ok(())
        } else {
            Err(Unmet::Changed)
        }
    }

    /// The versions that the condition names, for the statement that writes; `None` if any version
    /// matches.
    ///
    /// A tag that [`ETag::of_version`] does not make is left out.
    pub fn versions(&self) -> Option<Vec<i64>> {
        let IfMatch::Tags(tags) = self else {
            return None;
        };
        let version = |tag: &ETag| {
            tag.0
                .parse()
                .ok()
                .filter(|version: &u64| *tag == ETag::of_version(*version))
        };
        Some(
            tags.iter()
                .filter_map(version)
                .filter_map(|version| version.try_into().ok())
                .collect(),
        )
    }
}

impl Unmet {
    /// The status to answer with.
    pub fn status(self) -> StatusCode {
        match self {
            Unmet::Missing => StatusCode::PRECONDITION_REQUIRED,
            Unmet::Malformed => StatusCode::BAD_REQUEST,
            Unmet::Changed => StatusCode::PRECONDITION_FAILED,
        }
    }
}

/// The status, with the reason as text.
#[cfg(feature = "axum")]
impl axum::response::IntoResponse for Unmet {
    fn into_response(self) -> axum::response::Response {
        (self.status(), format!("{self}\n")).into_response()
    }
}

/// The strong tags of a list; `None` if it is empty or not a list of tags.
fn tags(list: &[u8]) -> Option<Vec<ETag>> {
    let (mut strong, mut count, mut rest) = (Vec::new(), 0, list);
    loop {
        rest = rest.trim_ascii_start();
        // Empty elements are skipped (RFC 9110 section 5.6.1.2).
        match rest.split_first() {
            None => return (count > 0).then_some(strong),
            Some((b',', after)) => rest = after,
            Some(_) => {
                let (tag, after) = tag(rest)?;
                strong.extend(tag);
                count += 1;
                rest = after.trim_ascii_start();
                if !rest.is_empty() {
                    rest = rest.strip_prefix(b",")?;
                }
            }
        }
    }
}

/// The first tag, if it is a strong one, and the rest of the list. A tag has no escapes, and may
/// contain commas.
fn tag(list: &[u8]) -> Option<(Option<ETag>, &[u8])> {
    let strong = list.strip_prefix(b"W/");
    let opaque = strong.unwrap_or(list).strip_prefix(b"\"")?;
    let end = opaque.iter().position(|b| *b == b'"')?;
    let (opaque, after) = (&opaque[..end], &opaque[end + 1..]);
    // Bytes outside ASCII are allowed but obsolete. Such a tag is valid, but was not made here.
    let is_allowed = opaque
        .iter()
        .all(|b| matches!(b, 0x21 | 0x23..=0x7e | 0x80..));
    is_allowed.then_some(())?;
    let ours = strong
        .is_none()
        .then(|| std::str::from_utf8(opaque).ok())
        .flatten();
    Some((ours.map(|opaque| ETag(opaque.to_owned())), after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(lines: &[&[u8]]) -> Result<Option<IfMatch>, Unmet> {
        let value = |line: &&[u8]| (IF_MATCH, HeaderValue::from_bytes(line).unwrap());
        IfMatch::parse(&lines.iter().map(value).collect())
    }

    fn named(tags: &[&str]) -> Result<Option<IfMatch>, Unmet> {
        Ok(Some(IfMatch::Tags(
            tags.iter().map(|tag| ETag((*tag).to_owned())).collect(),
        )))
    }

    #[test]
    fn if_match_is_read_as_the_specification_has_it() {
        assert_eq!(parsed(&[]), Ok(None));
        assert_eq!(parsed(&[b"*"]), Ok(Some(IfMatch::Any)));
        assert_eq!(parsed(&[b" * "]), Ok(Some(IfMatch::Any)));
        assert_eq!(parsed(&[br#""7""#]), named(&["7"]));
        assert_eq!(parsed(&[br#""7","8" , "a,b""#]), named(&["7", "8", "a,b"]));
        assert_eq!(
            parsed(&[br#""7""#, br#""8""#]),
            named(&["7", "8"]),
            "two lines are one list"
        );
        assert_eq!(
            parsed(&[br#", "7",, ,"8","#]),
            named(&["7", "8"]),
            "empty elements"
        );
        assert_eq!(parsed(&[br#""""#]), named(&[""]), "the empty tag is one");
        assert_eq!(parsed(&[br#""a\""#]), named(&["a\\"]), "nothing is escaped");
        assert_eq!(parsed(&[br#"W/"7", "8""#]), named(&["8"]));
        assert_eq!(parsed(&[br#"W/"7""#]), named(&[]));
        assert_eq!(parsed(&["\"\u{fc}\"".as_bytes()]), named(&["\u{fc}"]));
        assert_eq!(
            parsed(&[b"\"\xfc\""]),
            named(&[]),
            "a tag that nobody here has made"
        );
    }

    #[test]
    fn what_is_no_list_of_tags_is_malformed() {
        let cases: [&[u8]; 12] = [
            b"",
            b" ",
            b",",
            b"7",
            b"\"7",
            b"7\"",
            b"*, \"7\"",
            b"\"7\" \"8\"",
            b"w/\"7\"",
            b"W/ \"7\"",
            b"\"a b\"",
            b"\"7\"x",
        ];
        for case in cases {
            assert_eq!(
                parsed(&[case]),
                Err(Unmet::Malformed),
                "{}",
                String::from_utf8_lossy(case)
            );
        }
        assert_eq!(
            parsed(&[b"*", b"*"]),
            Err(Unmet::Malformed),
            "a star is no element of a list"
        );
    }

    #[test]
    fn only_a_strong_tag_of_what_is_there_matches() {
        let (seven, eight) = (ETag::of_version(7), ETag::of_version(8));
        let condition = |line: &[u8]| parsed(&[line]).unwrap().unwrap();
        assert!(condition(br#""7""#).matches(Some(&seven)));
        assert!(condition(br#""6", "7""#).matches(Some(&seven)));
        assert!(!condition(br#""7""#).matches(Some(&eight)));
        assert!(
            !condition(br#"W/"7""#).matches(Some(&seven)),
            "weak tags never match"
        );
        assert!(condition(b"*").matches(Some(&seven)));
        assert!(!condition(b"*").matches(None), "nothing is there");
        assert!(!condition(br#""7""#).matches(None));
        assert_eq!(condition(br#""7""#).check(&seven), Ok(()));
        assert_eq!(condition(br#""7""#).check(&eight), Err(Unmet::Changed));
    }

    #[test]
    fn versions_are_those_that_were_made_of_one() {
        let versions = |line: &[u8]| parsed(&[line]).unwrap().unwrap().versions();
        assert_eq!(versions(br#""7", "8""#), Some(vec![7, 8]));
        assert_eq!(versions(b"*"), None);
        assert_eq!(versions(br#"W/"7""#), Some(vec![]));
        // Other spellings of a number are different tags.
        assert_eq!(
            versions(br#""07", "+7", "-7", "x", "99999999999999999999", "18446744073709551615""#),
            Some(vec![])
        );
    }

    #[test]
    fn tags_of_bytes_tell_them_apart() {
        let tag = ETag::of_bytes(b"hat");
        assert_eq!(tag, ETag::of_bytes(b"hat"));
        assert_ne!(tag, ETag::of_bytes(b"hats"));
        assert_eq!(tag.to_string().len(), 34);
        let headers = HeaderMap::from_iter([(IF_MATCH, tag.to_value())]);
        assert_eq!(IfMatch::required(&headers).unwrap().check(&tag), Ok(()));
        assert_eq!(tag.to_value(), tag.to_string().as_str());
    }

    #[test]
    fn each_reason_has_its_status() {
        let statuses =
            [Unmet::Missing, Unmet::Malformed, Unmet::Changed].map(|unmet| unmet.status().as_u16());
        assert_eq!(statuses, [428, 400, 412]);
        assert_eq!(IfMatch::required(&HeaderMap::new()), Err(Unmet::Missing));
    }
}
