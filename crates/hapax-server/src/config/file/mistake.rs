//! Mistakes in a configuration, shown with the line in which they occur.

use std::cell::RefCell;
use std::fmt::{self, Write};
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use super::environment::Environment;
use super::hidden;

/// Why there is no configuration. The text is for the author of the file: what is wrong, where, and
/// what to write.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("could not read the configuration {}: {source}", path.display())]
    Unreadable {
        /// The file as it was named.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Mistakes in the file, in the order of the file, then those in variables.
    #[error("{}", list(.0))]
    Mistakes(Vec<Mistake>),
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// What is wrong, and what to write instead.
    pub message: String,
    /// Where it is; `None` if it came from a flag.
    pub place: Option<Place>,
}

/// A place in a file, or in the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file as it was named, or the variable.
    pub file: String,
    /// Counted from 1; `None` in the environment.
    pub line: Option<usize>,
    /// Counted from 1, in characters.
    pub column: usize,
    /// The number of characters to mark, at least one.
    pub width: usize,
    /// The line itself, without secrets.
    pub text: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            None => f.write_str(&self.message),
            Some(
                place @ Place {
                    file,
                    line: Some(line),
                    column,
                    ..
                },
            ) => {
                write!(f, "{file}:{line}:{column}: {}\n{place}", self.message)
            }
            Some(place @ Place { file, .. }) => write!(f, "{file}: {}\n{place}", self.message),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.line.map_or(String::new(), |line| format!("{line} "));
        let gutter = " ".repeat(number.len());
        // Tabs stay tabs, so that the caret is in the right column at any tab width.
        let before: String = self
            .text
            .chars()
            .take(self.column - 1)
            .map(|c| if c == '\t' { c } else { ' ' })
            .collect();
        writeln!(f, " {gutter}|")?;
        writeln!(f, " {number}| {}", self.text)?;
        write!(f, " {gutter}| {before}{}", "^".repeat(self.width))
    }
}

fn list(mistakes: &[Mistake]) -> String {
    let mut text = String::new();
    for (index, mistake) in mistakes.iter().enumerate() {
        let separator = if index == 0 { "" } else { "\n\n" };
        write!(text, "{separator}{mistake}").expect("text can always be written to");
    }
    text
}

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum At<'a> {
    /// At these bytes of the file.
    File(Range<usize>),
    /// The value of this variable.
    Variable(&'a str),
    /// The name of this variable.
    Name(&'a str),
    /// A place that cannot be shown.
    Nowhere,
}

/// The text being read, and the mistakes found so far.
pub(super) struct Mistakes<'a> {
    file: String,
    text: &'a str,
    environment: &'a Environment,
    found: RefCell<Vec<((usize, String), Mistake)>>,
}

impl<'a> Mistakes<'a> {
    pub(super) fn new(file: String, text: &'a str, environment: &'a Environment) -> Self {
        Mistakes {
            file,
            text,
            environment,
            found: RefCell::default(),
        }
    }

    /// Records a mistake.
    pub(super) fn at(&self, at: &At<'_>, message: impl Into<String>) {
        // In the order of the file, then by the names of variables, then the rest.
        let order = match at {
            At::File(span) => (span.start, String::new()),
            At::Variable(name) | At::Name(name) => (usize::MAX - 1, (*name).to_owned()),
            At::Nowhere => (usize::MAX, String::new()),
        };
        let mistake = self.mistake(at, message);
        let mut found = self.found.borrow_mut();
        if !found.iter().any(|(_, other)| *other == mistake) {
            found.push((order, mistake));
        }
    }

    pub(super) fn mistake(&self, at: &At<'_>, message: impl Into<String>) -> Mistake {
        let place = match at {
            At::File(span) => Some(self.place(span)),
            At::Variable(name) => Some(self.variable(name, true)),
            At::Name(name) => Some(self.variable(name, false)),
            At::Nowhere => None,
        };
        Mistake {
            message: message.into(),
            place,
        }
    }

    /// The place, as text.
    pub(super) fn words(&self, at: &At<'_>) -> String {
        match at {
            At::File(span) => format!("{}:{}", self.file, self.line(span.start)),
            At::Variable(name) | At::Name(name) => (*name).to_owned(),
            At::Nowhere => "nowhere".to_owned(),
        }
    }

    pub(super) fn line(&self, at: usize) -> usize {
        self.text[..self.text.floor_char_boundary(at)]
            .matches('\n')
            .count()
            + 1
    }

    pub(super) fn finish(self) -> Result<(), ConfigError> {
        let mut found = self.found.into_inner();
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        if found.is_empty() {
            Ok(())
        } else {
            Err(ConfigError::Mistakes(
                found.into_iter().map(|(_, mistake)| mistake).collect(),
            ))
        }
    }

    fn place(&self, span: &Range<usize>) -> Place {
        let start = self.text.floor_char_boundary(span.start);
        let line_start = self.text[..start]
            .rfind('\n')
            .map_or(0, |newline| newline + 1);
        let line = self.text[line_start..].lines().next().unwrap_or_default();
        let end = self
            .text
            .floor_char_boundary(span.end.min(line_start + line.len()).max(start));
        let (text, caret) = hidden::line(
            self.text,
            line_start,
            line,
            start - line_start..end - line_start,
        );
        Place {
            file: self.file.clone(),
            line: Some(self.line(line_start)),
            column: caret.start + 1,
            width: caret.len().max(1),
            text: plain(&text),
        }
    }

    fn variable(&self, name: &str, at_value: bool) -> Place {
        let value = match self.environment.text(name) {
            Some(_) if hidden::is_secret(name) => hidden::HIDDEN.to_owned(),
            Some(value) => hidden::without_password(value.lines().next().unwrap_or_default()),
            None => "\u{fffd}".to_owned(),
        };
        let name_width = name.chars().count();
        let (column, width) = if at_value {
            (name_width + 2, value.chars().count())
        } else {
            (1, name_width)
        };
        Place {
            file: plain(name),
            line: None,
            column,
            width: width.max(1),
            text: plain(&format!("{name}={value}")),
        }
    }
}

/// Replaces control characters, which could move the cursor of a terminal.
fn plain(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c.is_control() && c != '\t' {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect()
}
