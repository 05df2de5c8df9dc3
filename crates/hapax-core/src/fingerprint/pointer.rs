//! JSON Pointers (RFC 6901) with `*` for any member or element.

use std::fmt;
use std::str::FromStr;

use super::canonical::Odd;
use super::fold::differ_only_in_case;

/// The place of a value in a JSON text, such as `/items/*/updated_at`.
///
/// A token `*` stands for every member name and every index; a member literally named `*` cannot be
/// singled out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pointer(Box<[Token]>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Token {
    Any,
    Name(Box<str>),
}

/// Why a text is not a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PointerError {
    /// The text is empty, which would name the whole document. Use no pointer instead.
    #[error("a JSON Pointer here must name a value inside the document, such as /amount")]
    Empty,
    /// The text does not begin with a slash.
    #[error("a JSON Pointer begins with a slash, such as /amount")]
    NoSlash,
    /// A `~` is followed by something other than 0 or 1.
    #[error("in a JSON Pointer ~ is written ~0 and / is written ~1")]
    BadEscape,
    /// The text has a control character, so it could not be stored on one line.
    #[error("a JSON Pointer here may not hold control characters")]
    Control,
}

impl Pointer {
    /// Whether the pointer names exactly one place: it has no `*`.
    pub fn is_exact(&self) -> bool {
        !self.0.contains(&Token::Any)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the token at `depth` matches this member name, or this index written out.
    pub(super) fn matches(&self, depth: usize, step: &Step<'_>) -> bool {
        match (self.0.get(depth), step) {
            (None, _) => false,
            (Some(Token::Any), _) => true,
            (Some(Token::Name(name)), Step::Member(member)) => **name == **member,
            (Some(Token::Name(name)), Step::Index(index)) => {
                name.parse() == Ok(*index) && (*index == 0 || !name.starts_with('0'))
            }
        }
    }
}

/// Finds a member name that differs only in letter case from the token at `depth` of one of these
/// pointers.
pub(super) fn refuse_letter_case(
    pointers: &[Pointer],
    which: &[usize],
    depth: usize,
    name: &str,
) -> Result<(), Odd> {
    for &i in which {
        if let Some(Token::Name(token)) = pointers[i].0.get(depth)
            && differ_only_in_case(token, name)
        {
            return Err(Odd::LetterCase(name.to_owned(), token.to_string()));
        }
    }
    Ok(())
}

/// One step down into a JSON text.
pub(super) enum Step<'a> {
    Member(&'a str),
    Index(u64),
}

impl FromStr for Pointer {
    type Err = PointerError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err(PointerError::Empty);
        }
        if text.chars().any(char::is_control) {
            return Err(PointerError::Control);
        }
        let tokens = text
            .strip_prefix('/')
            .ok_or(PointerError::NoSlash)?
            .split('/');
        Ok(Pointer(tokens.map(token).collect::<Result<_, _>>()?))
    }
}

fn token(text: &str) -> Result<Token, PointerError> {
    if text == "*" {
        return Ok(Token::Any);
    }
    let without_escapes = text.replace("~0", "").replace("~1", "");
    if without_escapes.contains('~') {
        return Err(PointerError::BadEscape);
    }
    Ok(Token::Name(
        text.replace("~1", "/").replace("~0", "~").into(),
    ))
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|token| match token {
            Token::Any => f.write_str("/*"),
            Token::Name(name) => write!(f, "/{}", name.replace('~', "~0").replace('/', "~1")),
        })
    }
}
