//! Characters that do more than they show.
//!
//! Keys, paths, principals, bodies and reasons are whatever somebody chose to send. On a terminal
//! some characters are commands, and others make a line read as what it is not.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Control characters, and what changes the order or the presence of what is seen.
pub(crate) fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// A JSON text: the same text to every reader, spelled so that no terminal acts on it.
pub(crate) fn json(text: &str) -> Cow<'_, str> {
    escaped(text, is_harmful, |safe, c| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(safe, "\\u{unit:04x}");
        }
    })
}

/// The text with some of its characters spelled otherwise.
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
