//! Routes: which requests a policy applies to.

mod choice;
mod overlap;
mod siblings;
mod spelling;
mod strictness;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use hapax::Policy;

use super::PrincipalSources;

pub use choice::{Choice, PathAmbiguous, choose, route_of};
pub(crate) use siblings::unguarded_siblings;

/// Which requests it matches, and their policy.
#[derive(Clone, Debug)]
pub struct Route {
    /// Its name in metrics and `/.well-known/idempotency`; by default its methods and its pattern.
    pub name: Arc<str>,
    /// The methods it matches; if empty, all. The policy says which of them are guarded.
    pub methods: Vec<http::Method>,
    /// The paths.
    pub pattern: Pattern,
    /// The policy of these requests.
    pub policy: Policy,
    /// The path on the upstream that answers probes, if the mode is `probe`.
    pub probe: Option<http::uri::PathAndQuery>,
    /// What identifies callers here; `None` for the [global setting](super::Config::principal).
    pub principal: Option<PrincipalSources>,
}

impl Route {
    /// A route for all requests, named after its pattern.
    pub fn everywhere(policy: Policy) -> Route {
        Route {
            name: "/**".into(),
            methods: Vec::new(),
            pattern: Pattern::any(),
            policy,
            probe: None,
            principal: None,
        }
    }

    /// Whether the route matches a request by its path as sent. [`choose`] considers other
    /// spellings of the path.
    pub fn matches(&self, method: &http::Method, path: &str) -> bool {
        self.takes_method(method) && self.pattern.matches(path)
    }

    fn takes_method(&self, method: &http::Method) -> bool {
        self.methods.is_empty() || self.methods.contains(method)
    }

    /// Whether the route matches the requests of a scope.
    pub fn is_of(&self, scope: &hapax::Scope) -> bool {
        http::Method::from_bytes(scope.method.as_bytes())
            .is_ok_and(|method| self.matches(&method, &scope.path))
    }
}

/// Parses methods and a pattern, as in `POST|PATCH /v1/charges/*`, or a pattern alone. The policy
/// is the default one.
impl FromStr for Route {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (methods, pattern) = text.rsplit_once(' ').unwrap_or(("", text));
        let method = |word: &str| {
            http::Method::from_bytes(word.to_ascii_uppercase().as_bytes())
                .map_err(|_| format!("`{word}` is no method"))
        };
        let methods = methods
            .split('|')
            .map(str::trim)
            .filter(|word| !word.is_empty())
            .map(method)
            .collect::<Result<_, _>>()?;
        Ok(Route {
            name: text.into(),
            methods,
            pattern: pattern.parse()?,
            ..Route::everywhere(Policy::default())
        })
    }
}

/// A pattern of paths: literal segments, `{name}` or `*` for any one segment, and a final `**` for
/// any rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: Arc<str>,
    segments: Vec<Segment>,
    any_rest: bool,
    /// The segments of its [normal spelling](spelling::normal), for loose matches.
    normal: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Just(Arc<str>),
    Any,
}

impl Pattern {
    /// The pattern of every path.
    pub fn any() -> Pattern {
        Pattern {
            text: "/**".into(),
            segments: Vec::new(),
            any_rest: true,
            normal: Vec::new(),
        }
    }

    /// Whether a path, as sent, matches. Segments are compared literally; [`choose`] considers the
    /// other spellings of a path.
    pub fn matches(&self, path: &str) -> bool {
        let mut given = path.strip_prefix('/').unwrap_or(path).split('/');
        let fit = self
            .segments
            .iter()
            .all(|segment| match (segment, given.next()) {
                (Segment::Just(wanted), Some(given)) => **wanted == *given,
                (Segment::Any, Some(given)) => !given.is_empty(),
                (_, None) => false,
            });
        fit && (self.any_rest || given.next().is_none())
    }

    /// Whether a path matches, ignoring case and the number of slashes, also at the end.
    pub fn matches_loosely(&self, path: &str) -> bool {
        let mut given = path.split('/').filter(|segment| !segment.is_empty());
        let fit = self
            .normal
            .iter()
            .all(|segment| match (segment, given.next()) {
                (Segment::Just(wanted), Some(given)) => wanted.eq_ignore_ascii_case(given),
                (Segment::Any, Some(_)) => true,
                (_, None) => false,
            });
        fit && (self.any_rest || given.next().is_none())
    }

    /// Whether its last segment is a literal one.
    fn ends_in_text(&self) -> bool {
        !self.any_rest && matches!(self.segments.last(), Some(Segment::Just(_)))
    }

    /// Why a path does not match; `None` if it does.
    pub fn difference(&self, path: &str) -> Option<String> {
        let mut given = path.strip_prefix('/').unwrap_or(path).split('/');
        for (at, segment) in self.segments.iter().enumerate() {
            let at = at + 1;
            match (segment, given.next()) {
                (Segment::Just(wanted), Some(given)) if **wanted != *given => {
                    return Some(format!(
                        "segment {at} is `{given}`, and this route wants `{wanted}`"
                    ));
                }
                (Segment::Any, Some("")) => {
                    return Some(format!(
                        "segment {at} is empty, and this route wants one that is not"
                    ));
                }
                (_, None) => return Some(format!("the path ends before segment {at}")),
                _ => {}
            }
        }
        match given.next() {
            Some(more) if !self.any_rest => Some(format!(
                "the path goes on with `{more}`, and this route ends before it"
            )),
            _ => None,
        }
    }

    /// Whether every path that `other` matches is matched by this one too.
    pub fn covers(&self, other: &Pattern) -> bool {
        let mut theirs = other.segments.iter();
        let fit = self
            .segments
            .iter()
            .all(|ours| match (ours, theirs.next()) {
                (Segment::Just(ours), Some(Segment::Just(theirs))) => ours == theirs,
                (Segment::Any, Some(Segment::Just(theirs))) => !theirs.is_empty(),
                (Segment::Any, Some(Segment::Any)) => true,
                (Segment::Just(_), Some(Segment::Any)) | (_, None) => false,
            });
        fit && (self.any_rest || (theirs.next().is_none() && !other.any_rest))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(path) = text.strip_prefix('/') else {
            return Err(format!("a path pattern begins with `/`: write `/{text}`"));
        };
        let (path, any_rest) = match path.strip_suffix("**") {
            Some("") => ("", true),
            Some(before) => match before.strip_suffix('/') {
                Some(before) => (before, true),
                None => {
                    return Err("`**` stands for whole segments: write `/` before it".to_owned());
                }
            },
            None => (path, false),
        };
        let segments = if any_rest && path.is_empty() {
            Vec::new()
        } else {
            path.split('/').map(segment).collect::<Result<_, _>>()?
        };
        let normal = spelling::normal(path);
        let normal = normal
            .split('/')
            .filter(|text| !text.is_empty())
            .map(segment)
            .collect::<Result<_, _>>()?;
        Ok(Pattern {
            text: text.into(),
            segments,
            any_rest,
            normal,
        })
    }
}

/// Whether a segment looks like the placeholder of another router: `:id`, `<id>`, a regular
/// expression.
fn is_of_another_router(text: &str) -> bool {
    let has_class = text
        .find('[')
        .is_some_and(|open| text[open..].contains(']'));
    text.starts_with([':', '^']) || (text.starts_with('<') && text.ends_with('>')) || has_class
}

fn segment(text: &str) -> Result<Segment, String> {
    let name = text
        .strip_prefix('{')
        .and_then(|text| text.strip_suffix('}'));
    match (text, name) {
        ("*", _) => Ok(Segment::Any),
        (_, Some(name))
            if !name.is_empty()
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') =>
        {
            Ok(Segment::Any)
        }
        (text, _) if is_of_another_router(text) => Err(format!(
            "`{text}` would be taken letter by letter: write `{{id}}` or `*` for any one segment, and percent-encode a character that is meant"
        )),
        ("**", _) => Err("`**` stands last".to_owned()),
        _ if text.contains(['*', '{', '}']) => Err(format!(
            "`{text}` mixes text and a placeholder: a segment is either text, `*`, or `{{name}}`; `**` stands last"
        )),
        _ if text
            .bytes()
            .any(|byte| !byte.is_ascii_graphic() || matches!(byte, b'?' | b'#')) =>
        {
            Err(format!(
                "`{text}` cannot stand in a path as it is sent: percent-encode it, and leave out the query"
            ))
        }
        _ => Ok(Segment::Just(text.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_segments() {
        for (pattern, path, fits) in [
            ("/v1/charges", "/v1/charges", true),
            ("/v1/charges", "/v1/charges/", false),
            ("/v1/charges", "/v1/charges/7", false),
            ("/v1/charges/{id}", "/v1/charges/7", true),
            ("/v1/charges/*", "/v1/charges/", false),
            ("/v1/*/refund", "/v1/7/refund", true),
            ("/v1/**", "/v1", true),
            ("/v1/**", "/v1/a/b", true),
            ("/v1/**", "/v2/a", false),
            ("/**", "/", true),
            ("/**", "/a/b", true),
            ("/", "/", true),
            ("/", "/a", false),
        ] {
            let pattern: Pattern = pattern.parse().unwrap();
            assert_eq!(pattern.matches(path), fits, "{pattern} {path}");
            assert_eq!(pattern.difference(path).is_none(), fits, "{pattern} {path}");
        }
    }

    #[test]
    fn a_pattern_covers_what_it_leaves_nothing_of() {
        for (one, other, covers) in [
            ("/a", "/a", true),
            ("/{id}", "/*", true),
            ("/*", "/a", true),
            ("/a", "/*", false),
            ("/*", "/", false),
            ("/**", "/", true),
            ("/**", "/a/**", true),
            ("/a/**", "/a", true),
            ("/a/**", "/a/b/{c}", true),
            ("/a/**", "/**", false),
            ("/a/*", "/a/**", false),
            ("/a/*", "/a/b/c", false),
            ("/a/*/**", "/a/**", false),
        ] {
            assert_eq!(
                one.parse::<Pattern>()
                    .unwrap()
                    .covers(&other.parse().unwrap()),
                covers,
                "{one} {other}"
            );
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for pattern in [
            "v1",
            "",
            "/v1/a*",
            "/v1/{}",
            "/v1/{a b}",
            "/a**",
            "/**/b",
            "/a?b",
            "/a b",
            "/é",
        ] {
            assert!(pattern.parse::<Pattern>().is_err(), "{pattern}");
        }
    }
}
