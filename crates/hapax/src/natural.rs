//! Requests that need no key, because saying them twice is saying them once: the HTTP side of a
//! version check.
//!
//! Whoever changes what others change too says in `If-Match` (RFC 9110 section 13.1.1) which
//! version they have seen. A repeat of a change that was made finds another version and is refused
//! with 412: nothing happens twice, and nothing of somebody else's is overwritten.
//! `docs/natural.md` has the other patterns.
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
//! In a database the comparison belongs into the statement that writes, because another may write
//! between a look and a change: `UPDATE … WHERE id = $1 AND version = ANY ($2)`, with
//! [`IfMatch::versions`].

use std::fmt;

use http::StatusCode;
use http::header::{HeaderMap, HeaderValue, IF_MATCH};
use sha2::{Digest, Sha256};

/// A strong entity tag (RFC 9110 section 8.8.3): two states of a resource have the same one only if
/// they are the same, byte for byte.
///
/// Written and sent with its quotes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ETag(String);

impl ETag {
    /// Of a number that every change raises. The cheapest there is, if each representation of the
    /// resource has a path of its own.
    pub fn of_version(version: u64) -> ETag {
        ETag(version.to_string())
    }

    /// Of the bytes themselves, for what has no version: half of their SHA-256.
    pub fn of_bytes(bytes: &[u8]) -> ETag {
        ETag(
            Sha256::digest(bytes)[..16]
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
        )
    }

    /// As it stands in the field `ETag`.
    pub fn to_value(&self) -> HeaderValue {
        // What the parser lets through is what a field may hold, and what we make ourselves is
        // letters and digits.
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

/// What a caller says in `If-Match`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IfMatch {
    /// `*`: whatever is there, if anything is.
    Any,
    /// One of these. Weak tags are left out, as they never match here (RFC 9110 section 8.8.3.2),
    /// so that there may be none.
    Tags(Vec<ETag>),
}

/// Why a request may not change anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unmet {
    /// 428: it does not say which version it is about.
    #[error("say in If-Match which version you have seen")]
    Missing,
    /// 400: it says so in a way that cannot be read.
    #[error("If-Match is neither * nor a list of entity tags")]
    Malformed,
    /// 412: it is about another version than the one that is there.
    #[error("it has changed since you saw it: look again")]
    Changed,
}

impl IfMatch {
    /// What the request says, on a route that must be told.
    ///
    /// # Errors
    ///
    /// [`Unmet::Missing`] without the field, and [`Unmet::Malformed`].
    pub fn required(headers: &HeaderMap) -> Result<IfMatch, Unmet> {
        IfMatch::parse(headers)?.ok_or(Unmet::Missing)
    }

    /// What the request says; `None` if it says nothing. Several field lines are one list.
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

    /// Whether the condition holds for what is there; `None` if nothing is.
    pub fn matches(&self, current: Option<&ETag>) -> bool {
        match (self, current) {
            (_, None) => false,
            (IfMatch::Any, Some(_)) => true,
            (IfMatch::Tags(tags), Some(current)) => tags.contains(current),
        }
    }

    /// The same as a result, for what is there.
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

    /// The versions that it names, for the condition of the statement that writes; `None` if every
    /// version will do.
    ///
    /// A tag that [`ETag::of_version`] does not make is none of ours, and left out.
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
    /// What to answer with.
    pub fn status(self) -> StatusCode {
        match self {
            Unmet::Missing => StatusCode::PRECONDITION_REQUIRED,
            Unmet::Malformed => StatusCode::BAD_REQUEST,
            Unmet::Changed => StatusCode::PRECONDITION_FAILED,
        }
    }
}

/// The status, and why, as text.
#[cfg(feature = "axum")]
impl axum::response::IntoResponse for Unmet {
    fn into_response(self) -> axum::response::Response {
        (self.status(), format!("{self}\n")).into_response()
    }
}

/// The strong tags of a list; `None` if it is no list of tags, or an empty one.
fn tags(list: &[u8]) -> Option<Vec<ETag>> {
    let (mut strong, mut count, mut rest) = (Vec::new(), 0, list);
    loop {
        rest = rest.trim_ascii_start();
        // Empty elements count for nothing (RFC 9110 section 5.6.1.2).
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

/// The tag at the front, if it is a strong one, and what follows it. There are no escapes in a tag,
/// and a comma is a letter like any other.
fn tag(list: &[u8]) -> Option<(Option<ETag>, &[u8])> {
    let strong = list.strip_prefix(b"W/");
    let opaque = strong.unwrap_or(list).strip_prefix(b"\"")?;
    let end = opaque.iter().position(|b| *b == b'"')?;
    let (opaque, after) = (&opaque[..end], &opaque[end + 1..]);
    // Letters outside ASCII are allowed and obsolete. Whoever sends one has it from elsewhere: a
    // tag all the same, and none of ours.
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
        // Other spellings of a number are other tags.
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
