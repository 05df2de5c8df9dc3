//! What is wrong with a configuration, told with the line it stands in.

use std::cell::RefCell;
use std::fmt::{self, Write};
use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// Why there is no configuration. Its text is for the person who wrote the file: what is wrong, where, and what to write.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("could not read the configuration {}: {source}", path.display())]
    Unreadable {
        /// The file as it was named.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file was read, and these mistakes are in it, in its order.
    #[error("{}", told(.0))]
    Mistakes(Vec<Mistake>),
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// What is wrong, and what to write instead.
    pub message: String,
    /// Where it stands; nowhere if it came from a flag.
    pub place: Option<Place>,
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file as it was named.
    pub file: String,
    /// Counted from 1.
    pub line: usize,
    /// Counted from 1, in characters.
    pub column: usize,
    /// How many characters are meant, at least one.
    pub width: usize,
    /// The line itself.
    pub text: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            None => f.write_str(&self.message),
            Some(place) => write!(f, "{}:{}:{}: {}\n{place}", place.file, place.line, place.column, self.message),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.line.to_string();
        let gutter = " ".repeat(number.len());
        // Tabs stay tabs, so that the caret stands under what it means however wide they are shown.
        let before: String = self.text.chars().take(self.column - 1).map(|c| if c == '\t' { c } else { ' ' }).collect();
        writeln!(f, " {gutter} |")?;
        writeln!(f, " {number} | {}", self.text)?;
        write!(f, " {gutter} | {before}{}", "^".repeat(self.width))
    }
}

fn told(mistakes: &[Mistake]) -> String {
    let mut text = String::new();
    for (index, mistake) in mistakes.iter().enumerate() {
        let separator = if index == 0 { "" } else { "\n\n" };
        write!(text, "{separator}{mistake}").expect("text can always be written to");
    }
    text
}

/// A text and what has been found wrong with it so far.
pub(super) struct Mistakes<'a> {
    file: String,
    text: &'a str,
    found: RefCell<Vec<(usize, Mistake)>>,
}

impl<'a> Mistakes<'a> {
    pub(super) fn of(file: String, text: &'a str) -> Self {
        Mistakes { file, text, found: RefCell::default() }
    }

    /// Notes a mistake in these bytes of the text.
    pub(super) fn at(&self, span: Range<usize>, message: impl Into<String>) {
        let mistake = self.mistake(&span, message);
        self.found.borrow_mut().push((span.start, mistake));
    }

    pub(super) fn mistake(&self, span: &Range<usize>, message: impl Into<String>) -> Mistake {
        Mistake { message: message.into(), place: Some(self.place(span)) }
    }

    /// Notes a mistake that stands nowhere in the text.
    pub(super) fn nowhere(&self, message: impl Into<String>) {
        self.found.borrow_mut().push((usize::MAX, Mistake { message: message.into(), place: None }));
    }

    pub(super) fn line(&self, at: usize) -> usize {
        self.place(&(at..at)).line
    }

    pub(super) fn finish(self) -> Result<(), ConfigError> {
        let mut found = self.found.into_inner();
        found.sort_by_key(|(at, _)| *at);
        if found.is_empty() { Ok(()) } else { Err(ConfigError::Mistakes(found.into_iter().map(|(_, mistake)| mistake).collect())) }
    }

    fn place(&self, span: &Range<usize>) -> Place {
        let start = self.text.floor_char_boundary(span.start);
        let line_start = self.text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line = self.text[line_start..].lines().next().unwrap_or_default();
        let end = self.text.floor_char_boundary(span.end.min(line_start + line.len()).max(start));
        Place {
            file: self.file.clone(),
            line: self.text[..line_start].matches('\n').count() + 1,
            column: self.text[line_start..start].chars().count() + 1,
            width: self.text[start..end].chars().count().max(1),
            // Whatever would move the cursor of a terminal is not shown as it is.
            text: line.chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect(),
        }
    }
}
