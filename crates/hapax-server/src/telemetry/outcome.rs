//! How a request ended, as a label.

use hapax::Rejection;

/// How a request ended, as metrics and traces label it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The upstream's answer, sent to the caller whose request was dispatched.
    First,
    /// A stored answer, sent again.
    Replayed,
    /// Forwarded without a guard.
    Unguarded,
    /// Forwarded without a guard, and the upstream gave no answer.
    UpstreamFailed,
    /// The bytes were not a valid request, and were refused on the wire.
    Refused,
    /// Answered by Hapax itself, with the problem of this slug.
    Rejected(&'static str),
}

impl Outcome {
    /// The label.
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
