//! Where messages go, as it is written. Whoever adds a destination adds it here, and nowhere else
//! in this crate: a variant, how it is read, how it is shown, and its publisher.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use hapax_flow::publish::{Null, Publisher, Stdout};

/// Every form of a destination, for messages.
const FORMS: &str = "stdout: or null:";

/// A destination of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Standard output, a line of JSON for each message: `stdout:`.
    Stdout,
    /// Nowhere, for measuring: `null:`.
    Null,
}

impl Destination {
    /// The name of its reader, unless another is given.
    pub(crate) fn default_reader(&self) -> &'static str {
        match self {
            Destination::Stdout => "stdout",
            Destination::Null => "null",
        }
    }

    /// What sends messages there. Called on the runtime of the relays, once for each relay.
    ///
    /// # Errors
    ///
    /// If something about it cannot work, such as a file that it names. A destination that cannot
    /// be reached now is no error.
    #[expect(
        clippy::unnecessary_wraps,
        reason = "the destinations so far need nothing that could be missing"
    )]
    pub(crate) fn open(&self) -> Result<Arc<dyn Publisher>, String> {
        Ok(match self {
            Destination::Stdout => Arc::new(Stdout::new()),
            Destination::Null => Arc::new(Null),
        })
    }
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("stdout", "")) => Ok(Destination::Stdout),
            Some(("null", "")) => Ok(Destination::Null),
            Some((scheme @ ("stdout" | "null"), _)) => {
                Err(format!("nothing stands after the colon: write {scheme}:"))
            }
            None if matches!(text, "stdout" | "null") => Err(format!("write {text}: with a colon")),
            // What follows may contain a password.
            Some((scheme, _)) if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => Err(
                format!("there is no destination `{scheme}:`: write {FORMS}"),
            ),
            _ => Err(format!("this is no destination: write {FORMS}")),
        }
    }
}

/// Without what is secret.
impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Destination::Stdout => "stdout:",
            Destination::Null => "null:",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_read_again() {
        for destination in [Destination::Stdout, Destination::Null] {
            assert_eq!(destination.to_string().parse(), Ok(destination));
        }
    }

    #[test]
    fn what_is_no_destination_is_refused_with_what_to_write() {
        for (text, said) in [
            ("stdout", "write stdout: with a colon"),
            ("stdout:x", "nothing stands after the colon"),
            (
                "carrier:pigeon@secret",
                "there is no destination `carrier:`",
            ),
            ("", "this is no destination"),
        ] {
            let refused = text.parse::<Destination>().unwrap_err();
            assert!(
                refused.contains(said) && !refused.contains("secret"),
                "{refused}"
            );
        }
    }
}
