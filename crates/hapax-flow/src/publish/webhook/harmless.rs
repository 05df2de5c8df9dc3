//! Makes text of somebody else fit for a terminal and a log.

/// Printable characters that are kept of a text.
const CHARS_MAX: usize = 200;
/// Bytes that can matter to [`harmless`]: characters have at most four.
pub(super) const BYTES_MAX: usize = 4 * CHARS_MAX;

/// The beginning of a text on one line. Characters that are commands to a terminal, or that change
/// the order or visibility of others, are shown as question marks.
pub(super) fn harmless(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.extend(word.chars().map(|c| if is_printable(c) { c } else { '?' }));
    }
    match line.char_indices().nth(CHARS_MAX) {
        None => line,
        Some((end, _)) => format!("{}…", &line[..end]),
    }
}

/// The standard library escapes what is not printable. It also escapes marks that join the
/// character before them: they are not worth a rule of their own here.
fn is_printable(c: char) -> bool {
    match c.is_ascii() {
        true => c.is_ascii_graphic(),
        false => c.escape_debug().eq([c]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_a_terminal_and_hidden_text_are_shown_as_marks() {
        let given = "a\x1b[31m\x07 b\r\n\tc \u{202e}evil\u{200b}\u{9b}31m ü“” \\\"'\u{feff}";
        assert_eq!(
            harmless(given.as_bytes()),
            "a?[31m? b c ?evil??31m ü“” \\\"'?"
        );
        assert_eq!(harmless(b"\xff\x00"), "\u{fffd}?");
        assert_eq!(harmless(b" \n "), "");
    }

    #[test]
    fn a_long_text_is_cut() {
        assert_eq!(harmless(&[b'a'; 200]), "a".repeat(200));
        let long = "ä".repeat(1000);
        assert_eq!(harmless(long.as_bytes()), format!("{}…", "ä".repeat(200)));
    }
}
