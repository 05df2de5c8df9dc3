//! The output of the demo: a terminal on which a block is redrawn, or plain lines.

use std::io::{self, IsTerminal, Write};

/// The style of a piece of text, where colours are supported.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Bold,
    Dim,
    Good,
    Bad,
}

/// A line of text in pieces.
#[derive(Clone, Default)]
pub(crate) struct Line(Vec<(Style, String)>);

impl Line {
    pub(crate) fn new(style: Style, text: impl Into<String>) -> Line {
        Line::default().and(style, text)
    }

    pub(crate) fn and(mut self, style: Style, text: impl Into<String>) -> Line {
        self.0.push((style, text.into()));
        self
    }

    /// The line as written, no wider than `width`.
    fn render(&self, width: usize, coloured: bool) -> String {
        let mut left = width;
        let mut rendered = String::new();
        for (style, text) in &self.0 {
            let text: String = text.chars().take(left).collect();
            left -= text.chars().count();
            rendered.push_str(&if coloured { paint(*style, &text) } else { text });
        }
        rendered
    }
}

fn paint(style: Style, text: &str) -> String {
    match style {
        Style::Plain => text.to_owned(),
        Style::Bold => format!("\x1b[1m{text}\x1b[0m"),
        Style::Dim => format!("\x1b[2m{text}\x1b[0m"),
        Style::Good => format!("\x1b[1;32m{text}\x1b[0m"),
        Style::Bad => format!("\x1b[1;31m{text}\x1b[0m"),
    }
}

/// Wraps the text to lines of at most `width`, each indented by two spaces. A longer word gets its
/// own line.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() < width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(format!("  {word}")),
        }
    }
    lines
}

/// The least width: narrower terminals count as this wide.
const WIDTH_MIN: usize = 20;

/// Longer lines are hard to read.
const PROSE_WIDTH_MAX: usize = 80;

/// The width if the terminal does not report one.
const WIDTH_UNKNOWN: usize = 400;

/// The output for a person. Restores the cursor when it is dropped.
pub(crate) struct Screen {
    to_stderr: bool,
    terminal: bool,
    coloured: bool,
    /// The number of lines in the current block.
    drawn: usize,
}

impl Screen {
    /// Writes to standard output, or to standard error if standard output is for data.
    pub(crate) fn new(data_on_stdout: bool) -> Screen {
        let terminal = if data_on_stdout {
            io::stderr().is_terminal()
        } else {
            io::stdout().is_terminal()
        };
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Screen {
            to_stderr: data_on_stdout,
            terminal: terminal && !dumb,
            coloured: terminal && !dumb && !no_color,
            drawn: 0,
        }
    }

    /// Whether a block of `lines` lines can be redrawn.
    pub(crate) fn is_live(&self, lines: usize) -> bool {
        self.terminal && self.size().is_some_and(|(_, rows)| rows > lines)
    }

    pub(crate) fn width(&self) -> usize {
        match self.size() {
            Some((columns, _)) if self.terminal => columns.max(WIDTH_MIN),
            _ => WIDTH_UNKNOWN,
        }
    }

    /// Writes permanent prose, wrapped between words.
    pub(crate) fn tell(&mut self, style: Style, text: &str) {
        for line in wrapped(text, self.width().min(PROSE_WIDTH_MAX)) {
            self.say(&Line::new(style, line));
        }
    }

    /// Writes a permanent line.
    pub(crate) fn say(&mut self, line: &Line) {
        self.settle();
        // Not truncated: unlike a redrawn line, this one may wrap.
        let text = line.render(usize::MAX, self.coloured);
        self.write(&format!("{text}\n"));
    }

    /// Draws the block in place of the previous one.
    pub(crate) fn draw(&mut self, block: &[Line]) {
        let mut text = String::from("\x1b[?25l");
        if self.drawn > 0 {
            text.push_str(&format!("\x1b[{}A", self.drawn));
        }
        for line in block {
            text.push_str(&format!(
                "\r\x1b[2K{}\n",
                line.render(self.width() - 1, self.coloured)
            ));
        }
        self.drawn = block.len();
        self.write(&text);
    }

    /// Keeps the current block as permanent output.
    fn settle(&mut self) {
        if std::mem::take(&mut self.drawn) > 0 {
            self.write("\x1b[?25h");
        }
    }

    fn size(&self) -> Option<(usize, usize)> {
        let size = if self.to_stderr {
            rustix::termios::tcgetwinsize(io::stderr())
        } else {
            rustix::termios::tcgetwinsize(io::stdout())
        };
        size.ok()
            .filter(|size| size.ws_col > 0)
            .map(|size| (size.ws_col.into(), size.ws_row.into()))
    }

    /// Errors are ignored: they mean that the reader is gone.
    fn write(&self, text: &str) {
        let _ = if self.to_stderr {
            io::stderr().lock().write_all(text.as_bytes())
        } else {
            let mut out = io::stdout().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        };
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.settle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_broken_between_words() {
        assert_eq!(wrapped("one two three", 11), ["  one two", "  three"]);
        assert_eq!(wrapped("unbreakable", 4), ["  unbreakable"]);
        assert!(wrapped("", 10).is_empty());
    }

    #[test]
    fn a_line_is_cut_by_what_is_seen_and_not_by_its_colours() {
        let line = Line::new(Style::Bold, "héllo").and(Style::Plain, " world");
        assert_eq!(line.render(7, false), "héllo w");
        assert_eq!(line.render(7, true), "\x1b[1mhéllo\x1b[0m w");
        assert_eq!(line.render(80, false), "héllo world");
    }
}
