//! How a request ended, in one word.

use hapax::Rejection;

/// How a request ended, in the word that metrics and traces have for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The upstream's answer, to the caller whose request was dispatched.
    First,
    /// A stored answer, sent again.
    Replayed,
    /// Passed through without a guard.
    Unguarded,
    /// Passed through without a guard, and the upstream gave no answer.
    UpstreamFailed,
    /// Not a request that can be read: refused on the wire.
    Refused,
    /// Answered by Hapax itself, with the problem of this slug.
    Rejected(&'static str),
}

impl Outcome {
    /// The word.
    pub fn label(self) -> &'static str {
        match self {
            Outcome::First => "first",
            Outcome::Replayed => "replayed",
            Outcome::Unguarded => "unguarded",
            Outcome::UpstreamFailed => "upstream_failed",
            Outcome::Refused => "refused",
            Outcome::Rejected(slug) => slug,
        }
    }
}

impl From<&Rejection> for Outcome {
    fn from(rejection: &Rejection) -> Self {
        Outcome::Rejected(rejection.row().slug)
    }
}
