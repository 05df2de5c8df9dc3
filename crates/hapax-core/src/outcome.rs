//! The outcome: what an attempt ended in, and how a status is read as one.

use std::sync::Arc;
use std::time::Duration;

use crate::answer::Answer;
use crate::planted::{self, Bug};
use crate::policy::Policy;
use crate::record::{Head, State};
use crate::store::Lifetime;

/// How long a record is kept of which nothing is known but that the service refused its caller with 401 or 403. Long enough for a
/// repeat with better credentials to be the same operation, and short, because anybody can make such records with forged ones.
pub const REFUSED_FOR: Duration = Duration::from_secs(10 * 60);

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

    /// How long the record is remembered when the attempt that made this claim ends so.
    ///
    /// If 401 or 403 is all that ever came of the key, it is kept for [`REFUSED_FOR`] and leaves no tombstone. A record with any other
    /// past keeps its ordinary lifetime: an attempt that was lost must not be forgotten because a later one was refused.
    pub fn lifetime(&self, claimed: &Head, follows_lost: bool, policy: &Policy) -> Lifetime {
        let ordinary = Lifetime::from(policy);
        let is_refused = matches!(self, Outcome::Released { status: Some(401 | 403) }) && !planted::is(Bug::RefusedKeptLong);
        let has_other_past = claimed.attempts > 1 && (follows_lost || !claimed.was_short_lived());
        if !is_refused || (has_other_past && !planted::is(Bug::RefusedForgetsLost)) {
            return ordinary;
        }
        Lifetime { retention: ordinary.retention.min(REFUSED_FOR), tombstone: Duration::ZERO }
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
    use crate::fingerprint::Fingerprint;
    use crate::guard;
    use crate::key::Key;
    use crate::record::{AttemptToken, Fence};
    use crate::scope::{Principal, RecordId, Scope};
    use crate::store::{Change, Claim, Condition, Finish, Put};
    use crate::time::Timestamp;

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
    fn a_refused_caller_leaves_a_record_for_ten_minutes_only() {
        let policy = Policy::default();
        let (refused, forbidden) = (Outcome::Released { status: Some(401) }, Outcome::Released { status: Some(403) });
        let first = head();
        let short = Lifetime { retention: REFUSED_FOR, tombstone: Duration::ZERO };
        assert_eq!([&refused, &forbidden].map(|outcome| outcome.lifetime(&first, false, &policy)), [short; 2]);
        // A repeat that was refused as well.
        let second = |lifetime| Head { attempts: 2, ..guard::ended(&first, &ended_as(lifetime), Timestamp::from_micros(5)) };
        assert_eq!(refused.lifetime(&second(short), false, &policy), short);

        let ordinary = Lifetime::from(&policy);
        for outcome in [Outcome::Released { status: None }, Outcome::Released { status: Some(429) }, Outcome::Lost] {
            assert_eq!(outcome.lifetime(&first, false, &policy), ordinary, "{outcome:?}");
        }
        assert_eq!(refused.lifetime(&second(short), true, &policy), ordinary, "the attempt before was lost");
        assert_eq!(refused.lifetime(&second(ordinary), false, &policy), ordinary, "something else came before");
        let brief = Policy { retention: Duration::from_secs(60), ..Policy::default() };
        assert_eq!(
            refused.lifetime(&first, false, &brief).retention,
            brief.retention,
            "never longer than the route keeps anything"
        );
    }

    fn ended_as(lifetime: Lifetime) -> Finish {
        Finish { state: State::Retryable, status: Some(401), answer: None, lifetime }
    }

    /// A first attempt, running.
    fn head() -> Head {
        let scope = Scope { namespace: "n".into(), principal: Principal::Anonymous, method: "POST".into(), path: "/".into() };
        let key = Key::new("k").unwrap();
        let claim = Claim {
            scope: Arc::new(scope.clone()),
            key: key.clone(),
            fingerprint: Fingerprint { digest: [0; 32], policy: Arc::default() },
            token: AttemptToken::default(),
            lease: Duration::from_secs(10),
            terms: None,
        };
        let put = Put { id: RecordId::of(&scope, &key), condition: Condition::Absent, change: Change::Claim(claim) };
        guard::judge(None, &put, Timestamp::from_micros(1), Fence::ZERO).unwrap()
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
