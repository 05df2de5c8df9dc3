//! Escapes characters that are harmful on a terminal.
//!
//! Keys, paths, principals, bodies and reasons are whatever a client chose to send. On a terminal,
//! some characters are commands, and others make a line look different from what it is.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether this is a control character, or one that changes the order or visibility of text.
pub(crate) fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// A JSON text with harmful characters escaped. It parses to the same value.
pub(crate) fn json(text: &str) -> Cow<'_, str> {
    escaped(text, is_harmful, |safe, c| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(safe, "\\u{unit:04x}");
        }
    })
}

/// The text, with some characters escaped.
pub(crate) fn escaped(
    text: &str,
    is_escaped: impl Fn(char) -> bool,
    escape: impl Fn(&mut String, char),
) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_escaped(c) {
            escape(&mut safe, c);
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}
