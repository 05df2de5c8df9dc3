//! The outcome: what an attempt ended in, and how a status is read as one.

use std::sync::Arc;

use crate::answer::Answer;
use crate::policy::Policy;
use crate::record::State;

/// What a status says about the effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Definitive: the answer is kept and replayed.
    Keep,
    /// The attempt is known not to count: a repeat may run it again.
    Release,
    /// Someone answered for someone who may have acted.
    Unknown,
}

/// What an attempt ended in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The effect is done, or definitively refused, and this is the answer. `None` when it is not to be kept.
    Kept {
        /// The status of the answer.
        status: u16,
        /// The answer, or nothing where it is not kept.
        answer: Option<Arc<Answer>>,
    },
    /// The attempt is known not to count.
    Released {
        /// The status it was answered with; `None` if it was never dispatched.
        status: Option<u16>,
    },
    /// The attempt was lost after it may have had its effect.
    Lost,
    /// Its answer says that it is done, but its record did not commit with the effect, as the route promises: nobody can vouch for it.
    NotJoined {
        /// The status of the answer.
        status: u16,
    },
}

impl Outcome {
    /// The state the record takes.
    pub fn state(&self) -> State {
        match self {
            Outcome::Kept { status: 400..=499, .. } => State::Failed,
            Outcome::Kept { .. } => State::Completed,
            Outcome::Released { .. } => State::Retryable,
            Outcome::Lost | Outcome::NotJoined { .. } => State::Unknown,
        }
    }

    /// The status the attempt was answered with, if it was.
    pub fn status(&self) -> Option<u16> {
        match self {
            Outcome::Kept { status, .. } | Outcome::NotJoined { status } => Some(*status),
            Outcome::Released { status } => *status,
            Outcome::Lost => None,
        }
    }
}

/// How a status is read on a route. What the route says about a status wins over the general rule; `strict` holds every 5xx.
pub fn classify(status: u16, policy: &Policy) -> Class {
    if let Some(class) = policy.classes.get(&status) {
        return *class;
    }
    match status {
        500..=599 if policy.strict => Class::Unknown,
        500 | 503 => Class::Release,
        401 | 403 | 408 | 425 | 429 => Class::Release,
        200..=499 => Class::Keep,
        // 502 and 504 are a proxy's word for an upstream that may have acted; of other numbers we know even less.
        _ => Class::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_the_documented_class() {
        let policy = Policy::default();
        let strict = Policy { strict: true, ..Policy::default() };
        for status in 100..=999 {
            let expected = match status {
                401 | 403 | 408 | 425 | 429 | 500 | 503 => Class::Release,
                200..=499 => Class::Keep,
                _ => Class::Unknown,
            };
            assert_eq!(classify(status, &policy), expected, "{status}");
            let expected = if status >= 500 { Class::Unknown } else { expected };
            assert_eq!(classify(status, &strict), expected, "{status}, strict");
        }
    }

    #[test]
    fn a_route_may_say_otherwise() {
        let policy = Policy { strict: true, classes: [(500, Class::Keep), (404, Class::Release)].into(), ..Policy::default() };
        assert_eq!(classify(500, &policy), Class::Keep);
        assert_eq!(classify(404, &policy), Class::Release);
        assert_eq!(classify(503, &policy), Class::Unknown);
    }

    #[test]
    fn a_kept_refusal_is_failed_and_a_kept_success_is_completed() {
        let kept = |status| Outcome::Kept { status, answer: None }.state();
        assert_eq!(
            [kept(200), kept(302), kept(404), kept(500)],
            [State::Completed, State::Completed, State::Failed, State::Completed]
        );
    }
}
