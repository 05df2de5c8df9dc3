//! The key: what the caller sends to say "this is the same request as before".

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
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
    /// The field is empty, or there is nothing between the quotes.
    #[error("it is empty")]
    Empty,
    /// The key is longer than [`Key::BYTES_MAX`].
    #[error("it is longer than {} bytes", Key::BYTES_MAX)]
    TooLong,
    /// The field is neither `"abc"` nor a bare run of visible ASCII without comma, semicolon, quote
    /// and backslash.
    #[error(
        "it must be one quoted string (\"abc\") or bare visible ASCII without space, comma, semicolon, quote or backslash"
    )]
    Malformed,
    /// A key that a program made: another character than printable ASCII.
    #[error("it holds something else than printable ASCII")]
    NotPrintable,
    /// More than one field line carried a key.
    #[error("it was sent more than once")]
    Repeated,
    /// The route accepts only the quoted form.
    #[error("this route takes only the quoted form (\"abc\")")]
    NotQuoted,
    /// Key from the body: the value is neither a string nor a whole number in plain digits.
    #[error(
        "the body holds something else than a string or a whole number in plain digits where this route takes the key from"
    )]
    NotText,
    /// Key from the body: the value is an empty text.
    #[error("the body holds an empty text where this route takes the key from")]
    EmptyInBody,
    /// Key from the body: the value is longer than [`Key::BYTES_MAX`].
    #[error(
        "the body holds a text of more than {} bytes where this route takes the key from",
        Key::BYTES_MAX
    )]
    TooLongInBody,
    /// Key from the body: the value has a character that is not printable ASCII.
    #[error("a key in the body must be of printable ASCII")]
    NotPrintableInBody,
    /// Key from the body: the body is not well-formed JSON, so the service may read anything there.
    #[error("the body, where this route takes the key from, is not one well-formed JSON text")]
    NotJson,
    /// Key from the body: two readers might find two different keys.
    #[error(
        "the body, where this route takes the key from, has a member name twice or begins with a byte order mark"
    )]
    Ambiguous,
    /// Key from the body: a reader that ignores letter case would find another key, or find one
    /// where there is none.
    #[error(
        "the body, where this route takes the key from, has a name that differs from another, or from the name of the key, only in letter case"
    )]
    LetterCase,
    /// Key from the body: the body exceeds a limit of the JSON reader.
    #[error(
        "the body, where this route takes the key from, is nested too deeply or has too many members or too long a string"
    )]
    Unwieldy,
}

impl KeyError {
    /// Whether the error is about a key from the body.
    pub const fn is_of_body(self) -> bool {
        !matches!(
            self,
            KeyError::Empty
                | KeyError::TooLong
                | KeyError::Malformed
                | KeyError::NotPrintable
                | KeyError::Repeated
                | KeyError::NotQuoted
        )
    }
}

impl Key {
    /// The longest key, in bytes.
    pub const BYTES_MAX: usize = 255;

    /// Makes a key in this program, rather than reading it from a request.
    pub fn new(text: impl Into<Arc<str>>) -> Result<Key, KeyError> {
        let text = text.into();
        match text.len() {
            0 => Err(KeyError::Empty),
            len if len > Key::BYTES_MAX => Err(KeyError::TooLong),
            _ if text.bytes().all(|b| matches!(b, 0x20..=0x7e)) => Ok(Key(text)),
            _ => Err(KeyError::NotPrintable),
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

    /// Reads a key from a JSON body. `text` is the content of a string, or the digits of a number.
    pub fn from_text(text: &str) -> Result<Key, KeyError> {
        Key::new(text).map_err(|error| match error {
            KeyError::NotPrintable => KeyError::NotPrintableInBody,
            KeyError::Empty => KeyError::EmptyInBody,
            KeyError::TooLong => KeyError::TooLongInBody,
            error => error,
        })
    }

    /// The key as a field value: bare if possible, otherwise quoted.
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

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Key, KeyError> {
        Key::new(text)
    }
}

impl TryFrom<&str> for Key {
    type Error = KeyError;

    fn try_from(text: &str) -> Result<Key, KeyError> {
        Key::new(text)
    }
}

impl TryFrom<&String> for Key {
    type Error = KeyError;

    fn try_from(text: &String) -> Result<Key, KeyError> {
        Key::new(text.as_str())
    }
}

impl TryFrom<String> for Key {
    type Error = KeyError;

    fn try_from(text: String) -> Result<Key, KeyError> {
        Key::new(text)
    }
}

/// Lets a function with a bound on `TryInto<Key>` take a `Key` too.
impl From<Infallible> for KeyError {
    fn from(never: Infallible) -> KeyError {
        match never {}
    }
}

/// Why no key can be taken from an odd body. The message repeats no text of the body.
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

    #[test]
    fn text_becomes_a_key_and_says_why_it_does_not() {
        let key = Key::new("2026-11/17, again").unwrap();
        assert_eq!("2026-11/17, again".parse(), Ok(key.clone()));
        assert_eq!(Key::try_from(key.as_str()), Ok(key.clone()));
        assert_eq!(Key::try_from(key.to_string()), Ok(key.clone()));
        assert_eq!(Key::try_from(&key.to_string()), Ok(key));
        let cases = [
            (String::new(), KeyError::Empty),
            ("k".repeat(256), KeyError::TooLong),
            ("caf\u{e9}".to_owned(), KeyError::NotPrintable),
            ("a\n".to_owned(), KeyError::NotPrintable),
        ];
        for (text, error) in cases {
            assert_eq!(text.parse::<Key>(), Err(error), "{text:?}");
            assert!(!error.is_of_body(), "{error}");
        }
        // In a body the same mistakes say where the key was looked for.
        for text in ["", "caf\u{e9}", &"k".repeat(256)] {
            assert!(Key::from_text(text).unwrap_err().is_of_body(), "{text:?}");
        }
    }
}
