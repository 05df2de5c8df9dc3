//! Makes text from outside safe to show.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};

use serde::Serialize;

pub(super) use crate::escape::json;
use crate::escape::{escaped, is_harmful};

/// One line, with harmful characters escaped, as in `\u{1b}`.
pub(super) fn line(text: &str) -> Cow<'_, str> {
    escaped(text, is_harmful, spelled)
}

/// A value as JSON, on one line.
pub(super) fn json_line(value: &impl Serialize) -> String {
    let line = serde_json::to_string(value).expect("it has no maps with odd keys");
    format!("{}\n", json(&line))
}

/// Several lines: line ends and tabs stay.
pub(super) fn lines(text: &str) -> Cow<'_, str> {
    // A lone carriage return would overwrite the line.
    let text = text.replace("\r\n", "\n");
    Cow::Owned(escaped(&text, |c| is_harmful(c) && c != '\n' && c != '\t', spelled).into_owned())
}

/// Bytes that should be text.
pub(super) fn bytes(bytes: &[u8]) -> String {
    match str::from_utf8(bytes) {
        Ok(text) => line(text).into_owned(),
        Err(_) => bytes.escape_ascii().to_string(),
    }
}

/// Cut to `width` characters, with a mark if it was cut.
pub(super) fn cut(text: &str, width: usize) -> Cow<'_, str> {
    match text.char_indices().nth(width) {
        None => Cow::Borrowed(text),
        Some(_) if width == 0 => Cow::Borrowed(""),
        Some(_) => {
            let end = text
                .char_indices()
                .nth(width - 1)
                .map_or(text.len(), |(at, _)| at);
            Cow::Owned(format!("{}…", &text[..end]))
        }
    }
}

/// Writes to standard output. Returns `false` when the reader has closed it, as after `| head`.
pub(super) fn emit(text: &str) -> bool {
    let mut output = std::io::stdout().lock();
    output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush())
        .is_ok()
}

/// The width of the terminal on standard output; `None` if there is none.
pub(super) fn terminal_width() -> Option<usize> {
    terminal_size().map(|(columns, _)| columns)
}

/// The columns and rows of the terminal on standard output.
pub(super) fn terminal_size() -> Option<(usize, usize)> {
    let output = std::io::stdout();
    if !output.is_terminal() {
        return None;
    }
    let (columns, rows) =
        rustix::termios::tcgetwinsize(&output).map_or((0, 0), |size| (size.ws_col, size.ws_row));
    let or = |number: u16, usual: usize| {
        if number == 0 {
            usual
        } else {
            usize::from(number)
        }
    };
    Some((or(columns, 80), or(rows, 24)))
}

/// Whether to use colours and bold type: on a terminal, unless `NO_COLOR` is set and not empty.
pub(super) fn is_coloured() -> bool {
    std::io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Text in lines of at most `width`; each line after the first is indented by `indent` spaces. A
/// longer word gets its own line.
pub(super) fn wrapped(text: &str, width: usize, indent: usize) -> String {
    let (mut wrapped, mut column) = (String::new(), indent);
    for (index, word) in text.split(' ').enumerate() {
        let letters = word.chars().count();
        if index > 0 && column + 1 + letters > width {
            wrapped.push('\n');
            wrapped.push_str(&" ".repeat(indent));
            column = indent;
        } else if index > 0 {
            wrapped.push(' ');
            column += 1;
        }
        wrapped.push_str(word);
        column += letters;
    }
    wrapped
}

fn spelled(safe: &mut String, c: char) {
    let _ = write!(safe, "\\u{{{:x}}}", u32::from(c));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_a_terminal_acts_on_is_left() {
        assert_eq!(line("order-17 é"), "order-17 é");
        assert_eq!(
            line("a\u{1b}[2Jb\u{202e}c\r\n\u{9b}"),
            "a\\u{1b}[2Jb\\u{202e}c\\u{d}\\u{a}\\u{9b}"
        );
        assert_eq!(lines("a\r\nb\tc\rd\u{7}"), "a\nb\tc\\u{d}d\\u{7}");
        assert_eq!(
            json("\"\u{7f}\u{2066}\u{e0041}é\""),
            "\"\\u007f\\u2066\\udb40\\udc41é\""
        );
        assert_eq!(bytes(b"\xff\x1b"), "\\xff\\x1b");
    }

    #[test]
    fn text_is_wrapped_behind_its_name() {
        assert_eq!(wrapped("one two three", 12, 4), "one two\n    three");
        assert_eq!(wrapped("one", 12, 4), "one");
        assert_eq!(wrapped("overlong-word x", 8, 4), "overlong-word\n    x");
    }

    #[test]
    fn long_text_is_cut_with_a_mark() {
        assert_eq!(
            (
                cut("héllo", 5),
                cut("héllo", 4),
                cut("héllo", 1),
                cut("h", 0)
            ),
            ("héllo".into(), "hél…".into(), "…".into(), "".into())
        );
    }
}
