//! Secret text.

use std::fmt;
use std::hint::black_box;
use std::sync::Arc;

/// The shortest token: sixteen random bytes cannot be guessed; anything shorter may be a word.
const TOKEN_BYTES_MIN: usize = 16;
/// The longest token: longer ones only enlarge the head of every request.
const TOKEN_BYTES_MAX: usize = 1_024;

/// Text that is never shown: not in `Debug`, not in a log, not in a mistake.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// A secret from its text.
    pub fn new(text: impl Into<Arc<str>>) -> Secret {
        Secret(text.into())
    }

    /// A bearer token. The error says why the text cannot be one.
    pub fn token(text: &str) -> Result<Secret, String> {
        match text.len() {
            ..TOKEN_BYTES_MIN => Err(format!(
                "a token has at least {TOKEN_BYTES_MIN} bytes, or it can be guessed: make one with `openssl rand -hex 32`"
            )),
            TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX if text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(Secret::new(text)),
            TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX => {
                Err("a token stands in a header field: write letters, digits and signs of ASCII, without spaces".to_owned())
            }
            _ => Err(format!("a token has at most {TOKEN_BYTES_MAX} bytes: shorten it")),
        }
    }

    /// The text itself, for using it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether `given` is the secret. The time depends only on the length of `given`: neither on
    /// how much of it is right, nor on the length of the secret.
    pub fn is(&self, given: &[u8]) -> bool {
        let wanted = self.0.as_bytes();
        let mut difference = wanted.len() ^ given.len();
        for (at, byte) in given.iter().enumerate() {
            // An empty secret matches nothing.
            difference |= usize::from(
                byte ^ wanted
                    .get(at % wanted.len().max(1))
                    .copied()
                    .unwrap_or(!byte),
            );
        }
        black_box(difference) == 0 && !wanted.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_secret_is_it() {
        let secret = Secret::token("0123456789abcdef").unwrap();
        assert!(secret.is(b"0123456789abcdef"));
        for given in [
            "",
            "0",
            "0123456789abcde",
            "0123456789abcdeF",
            "0123456789abcdef0",
            "0123456789abcdef0123456789abcdef",
        ] {
            assert!(!secret.is(given.as_bytes()), "{given}");
        }
        assert!(!Secret::new("").is(b"") && !Secret::new("").is(b"x"));
        assert_eq!(format!("{secret:?}"), "Secret(…)");
    }

    #[test]
    fn what_could_be_guessed_or_not_be_sent_is_no_token() {
        for text in [
            "",
            "short",
            "fifteen-letters",
            "with a space in it",
            "with\nline\nends\nin it",
            "éééééééééé",
            &"x".repeat(1_025),
        ] {
            assert!(Secret::token(text).is_err(), "{text}");
        }
    }
}
