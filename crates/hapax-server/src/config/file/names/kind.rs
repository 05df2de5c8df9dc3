//! What kinds of values there are.

use std::time::Duration;

use super::Names;

/// One setting of a section.
pub(crate) struct Setting {
    /// As it is written.
    pub(crate) name: &'static str,
    /// What may be written.
    pub(crate) kind: Kind,
    /// What counts when it is not written.
    pub(crate) fallback: Fallback,
    /// A good value that is not the default, spelled as [`Fallback::Is`] spells one.
    pub(crate) example: &'static str,
    /// What it means, in a sentence of Markdown.
    pub(crate) means: &'static str,
}

/// What may be written.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// A section inside this one.
    Section(&'static Names),
    /// A list of sections.
    Sections(&'static Names),
    /// Text of which the reader knows more.
    Text,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A file.
    Path,
    /// A duration.
    Duration {
        /// Whether none at all is one.
        zero: bool,
        /// The longest.
        max: Duration,
    },
    /// Bytes.
    Size {
        /// The fewest.
        min: u64,
        /// The most.
        max: u64,
    },
    /// A whole number.
    Count {
        /// The least.
        min: u64,
        /// The greatest.
        max: u64,
    },
    /// True or false.
    Switch,
    /// A list of texts.
    List,
    /// A text or a list of them.
    TextOrList,
    /// Statuses, each with one of these words.
    Classes(&'static [&'static str]),
    /// What must never be shown.
    Secret {
        /// The setting that names a file which has it instead.
        file: &'static str,
    },
}

/// What counts when a setting is not written.
#[derive(Clone, Copy)]
pub(crate) enum Fallback {
    /// This value, spelled as in the file but without quotes around text.
    Is(&'static str),
    /// Nothing.
    Nothing,
    /// The configuration is refused.
    Required,
    /// It depends, as these words say.
    Words(&'static str),
}

/// A duration of any length; [`Policy::validate`](hapax::Policy::validate) judges those.
pub(super) const DURATION: Kind = Kind::Duration {
    zero: true,
    max: Duration::from_secs(100 * 365 * 24 * 60 * 60),
};
/// No timeout is meant to be longer than a day, and every runtime's arithmetic takes it.
pub(crate) const UP_TO_A_DAY: Kind = Kind::Duration {
    zero: true,
    max: Duration::from_secs(24 * 60 * 60),
};
/// The same, and not none.
pub(crate) const TIMEOUT: Kind = Kind::Duration {
    zero: false,
    max: Duration::from_secs(24 * 60 * 60),
};
/// As many bytes as somebody likes, none included.
pub(super) const BYTES: Kind = Kind::Size {
    min: 0,
    max: u64::MAX,
};

pub(super) const fn count(min: u64, max: u64) -> Kind {
    Kind::Count { min, max }
}

pub(super) const fn size(min: u64, max: u64) -> Kind {
    Kind::Size { min, max }
}

impl Setting {
    /// The setting that names a file with this secret.
    pub(crate) const fn file_name(&self) -> Option<&'static str> {
        match self.kind {
            Kind::Secret { file } => Some(file),
            _ => None,
        }
    }

    /// Whether it is a section of its own rather than a value.
    pub(crate) const fn is_section(&self) -> bool {
        matches!(self.kind, Kind::Section(_) | Kind::Sections(_))
            && !matches!(self.fallback, Fallback::Is(_))
    }
}

impl Kind {
    /// Whether a value is text in quotes.
    pub(crate) const fn is_text(self) -> bool {
        matches!(
            self,
            Kind::Text | Kind::Choice(_) | Kind::Path | Kind::Duration { .. } | Kind::Secret { .. }
        )
    }

    /// A value as the table spells it, spelled as in the file.
    pub(crate) fn in_toml(self, value: &str) -> String {
        let is_number = || value.bytes().all(|byte| byte.is_ascii_digit());
        let is_quoted = match self {
            Kind::Size { .. } => !is_number(),
            Kind::TextOrList => !value.starts_with('['),
            _ => self.is_text(),
        };
        if is_quoted {
            format!("\"{value}\"")
        } else {
            value.to_owned()
        }
    }
}
