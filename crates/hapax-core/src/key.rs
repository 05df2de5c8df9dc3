//! The key: what the caller sends to say "this is the same request as before".

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::field;
use crate::fingerprint::canonical::Odd;

mod derived;
mod entropy;

pub use entropy::Pattern;

/// A caller's key: 1 to 255 bytes of printable ASCII.
///
/// ```
/// use hapax_core::Key;
///
/// let quoted = Key::from_field(b"\"order-17\"")?;
/// let bare = Key::from_field(b"order-17")?;
/// assert_eq!(quoted, bare);
/// # Ok::<(), hapax_core::key::KeyError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

/// Why a key was not accepted. The text is safe to show to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Nothing between the quotes, or no value at all.
    #[error("it is empty")]
    Empty,
    /// Over [`Key::BYTES_MAX`].
    #[error("it is longer than {} bytes", Key::BYTES_MAX)]
    TooLong,
    /// Neither `"abc"` nor a bare run of visible ASCII without comma, semicolon, quote and
    /// backslash.
    #[error(
        "it must be one quoted string (\"abc\") or bare visible ASCII without space, comma, semicolon, quote or backslash"
    )]
    Malformed,
    /// More than one field line carried a key.
    #[error("it was sent more than once")]
    Repeated,
    /// The route accepts only the quoted form.
    #[error("this route takes only the quoted form (\"abc\")")]
    NotQuoted,
    /// Where the key is taken from the body: there is something else at its place.
    #[error(
        "the body holds something else than a string or a whole number in plain digits where this route takes the key from"
    )]
    NotText,
    /// Where the key is taken from the body: there is an empty text.
    #[error("the body holds an empty text where this route takes the key from")]
    EmptyInBody,
    /// Where the key is taken from the body: over [`Key::BYTES_MAX`].
    #[error(
        "the body holds a text of more than {} bytes where this route takes the key from",
        Key::BYTES_MAX
    )]
    TooLongInBody,
    /// Where the key is taken from the body: another character than printable ASCII.
    #[error("a key in the body must be of printable ASCII")]
    NotPrintable,
    /// Where the key is taken from the body: what the service behind would read there is anybody's
    /// guess.
    #[error("the body, where this route takes the key from, is not one well-formed JSON text")]
    NotJson,
    /// Where the key is taken from the body: two readers might find two keys.
    #[error(
        "the body, where this route takes the key from, has a member name twice or begins with a byte order mark"
    )]
    Ambiguous,
    /// Where the key is taken from the body: to a reader that ignores letter case there is another
    /// key, or one at all.
    #[error(
        "the body, where this route takes the key from, has a name that differs from another, or from the name of the key, only in letter case"
    )]
    LetterCase,
    /// Where the key is taken from the body: larger than is read as JSON.
    #[error(
        "the body, where this route takes the key from, is nested too deeply or has too many members or too long a string"
    )]
    Unwieldy,
}

impl KeyError {
    /// Whether it is about a key that was taken from the body. Each of those says so.
    pub const fn is_of_body(self) -> bool {
        !matches!(
            self,
            KeyError::Empty
                | KeyError::TooLong
                | KeyError::Malformed
                | KeyError::Repeated
                | KeyError::NotQuoted
        )
    }
}

impl Key {
    /// The longest key, in bytes.
    pub const BYTES_MAX: usize = 255;

    /// A key made by this program rather than read from a request.
    pub fn new(text: impl Into<Arc<str>>) -> Result<Key, KeyError> {
        let text = text.into();
        match text.len() {
            0 => Err(KeyError::Empty),
            len if len > Key::BYTES_MAX => Err(KeyError::TooLong),
            _ if text.bytes().all(|b| matches!(b, 0x20..=0x7e)) => Ok(Key(text)),
            _ => Err(KeyError::Malformed),
        }
    }

    /// Reads one field value, quoted or bare. Both spellings are the same key.
    pub fn from_field(value: &[u8]) -> Result<Key, KeyError> {
        let value = field::trim(value);
        if value.first() == Some(&b'"') {
            return Key::from_quoted_field(value);
        }
        if !value.iter().all(|&b| is_bare(b)) {
            return Err(KeyError::Malformed);
        }
        Key::new(String::from_utf8_lossy(value))
    }

    /// Reads one field value that must be a structured-field string.
    pub fn from_quoted_field(value: &[u8]) -> Result<Key, KeyError> {
        if field::trim(value).first().is_some_and(|&b| b != b'"') {
            return Err(KeyError::NotQuoted);
        }
        Key::new(field::string(value).ok_or(KeyError::Malformed)?)
    }

    /// A key that stood in a JSON body, as the text that it is there: of a string, or the digits of
    /// a number.
    pub fn from_text(text: &str) -> Result<Key, KeyError> {
        Key::new(text).map_err(|error| match error {
            KeyError::Malformed => KeyError::NotPrintable,
            KeyError::Empty => KeyError::EmptyInBody,
            KeyError::TooLong => KeyError::TooLongInBody,
            error => error,
        })
    }

    /// How the key travels onward: bare, or quoted where it holds what a bare key cannot.
    pub fn to_field(&self) -> Cow<'_, str> {
        if self.0.bytes().all(is_bare) {
            Cow::Borrowed(&self.0)
        } else {
            Cow::Owned(field::quote(&self.0))
        }
    }

    /// The key itself, without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Why no key can be taken from such a body. The body's own words are not repeated.
impl From<&Odd> for KeyError {
    fn from(odd: &Odd) -> Self {
        match odd {
            Odd::DuplicateName(_) | Odd::ByteOrderMark => KeyError::Ambiguous,
            Odd::LetterCase(..) => KeyError::LetterCase,
            Odd::Deep | Odd::Wide | Odd::Long => KeyError::Unwieldy,
            Odd::NotJson(_) | Odd::NoBoundary | Odd::NotMultipart => KeyError::NotJson,
        }
    }
}

fn is_bare(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e) && !matches!(byte, b',' | b';' | b'"' | b'\\')
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:?})", &*self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_are_one_key() {
        assert_eq!(Key::from_field(b"abc"), Key::from_field(b" \"abc\"\t"));
        assert_eq!(
            Key::from_field(b"8e03978e-40d5-43e8-bc93-6894a57f9324")
                .unwrap()
                .to_field(),
            "8e03978e-40d5-43e8-bc93-6894a57f9324"
        );
        assert_eq!(Key::from_field(br#""a b""#).unwrap().to_field(), r#""a b""#);
    }

    #[test]
    fn what_is_not_one_key_is_refused() {
        let long = [b'k'; 256];
        let cases: [(&[u8], KeyError); 10] = [
            (b"", KeyError::Empty),
            (b"   ", KeyError::Empty),
            (br#""""#, KeyError::Empty),
            (b"a b", KeyError::Malformed),
            (b"a,b", KeyError::Malformed),
            (b"a;p=1", KeyError::Malformed),
            (br#""a";p=1"#, KeyError::Malformed),
            (br#"a\b"#, KeyError::Malformed),
            (b"\xc3\xa9", KeyError::Malformed),
            (&long, KeyError::TooLong),
        ];
        for (value, error) in cases {
            assert_eq!(
                Key::from_field(value),
                Err(error),
                "{}",
                value.escape_ascii()
            );
        }
        assert!(Key::from_field(&long[..255]).is_ok());
        assert_eq!(Key::from_quoted_field(b"abc"), Err(KeyError::NotQuoted));
    }
}
