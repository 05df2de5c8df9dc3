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

impl Class {
    /// The word for it, as configuration spells it.
    pub const fn word(self) -> &'static str {
        match self {
            Class::Keep => "keep",
            Class::Release => "release",
            Class::Unknown => "unknown",
        }
    }
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

/// How a status is read on a route, unless its service [says better](Said). What the route says about a status wins over the general
/// rule.
///
/// 500 is unknown: an exception that nobody caught is the typical one, and it may come after the effect. Where a second attempt is safe
/// ([`Mode::releases_errors`](crate::policy::Mode::releases_errors)), every 5xx releases.
pub fn classify(status: u16, policy: &Policy) -> Class {
    if let Some(class) = policy.classes.get(&status) {
        return *class;
    }
    match status {
        // Refused or shed before acting.
        401 | 403 | 425 | 429 | 503 => Class::Release,
        500..=599 if policy.mode.releases_errors() => Class::Release,
        // Somebody on the way may have given up waiting for work that went on.
        408 => Class::Unknown,
        200..=499 => Class::Keep,
        _ => Class::Unknown,
    }
}

/// What a service says of the effect in the field `Hapax-Outcome`: it knows better than its status tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Said {
    /// Nothing happened: the key is released.
    Nothing,
    /// It is done: the answer is kept.
    Done,
}

impl Said {
    /// What the value of the field says. `None` if it is neither `none` nor `done`.
    pub fn read(value: &[u8]) -> Option<Said> {
        match value {
            b"none" => Some(Said::Nothing),
            b"done" => Some(Said::Done),
            _ => None,
        }
    }

    /// What it means beside this status. `None` where the two contradict each other, or nothing is left to say: the status counts.
    pub fn class(self, status: u16) -> Option<Class> {
        match (self, status) {
            (Said::Nothing, 400..=599) => Some(Class::Release),
            (Said::Done, 500..=599) => Some(Class::Keep),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::Fingerprint;
    use crate::guard;
    use crate::key::Key;
    use crate::policy::Mode;
    use crate::record::{AttemptToken, Fence};
    use crate::scope::{Principal, RecordId, Scope};
    use crate::store::{Change, Claim, Condition, Finish, Put};
    use crate::time::Timestamp;

    #[test]
    fn every_status_has_the_documented_class() {
        for mode in Mode::ALL {
            let policy = Policy { mode, ..Policy::default() };
            for status in 100..=999 {
                let expected = match status {
                    401 | 403 | 425 | 429 | 503 => Class::Release,
                    500..=599 if matches!(mode, Mode::Transaction | Mode::Rerun) => Class::Release,
                    408 => Class::Unknown,
                    200..=499 => Class::Keep,
                    _ => Class::Unknown,
                };
                assert_eq!(classify(status, &policy), expected, "{status}, {}", mode.word());
            }
        }
    }

    #[test]
    fn a_service_may_know_better_than_its_status() {
        let class = |value: &[u8], status| Said::read(value).and_then(|said| said.class(status));
        for status in [400, 404, 408, 409, 500, 502, 503, 599] {
            assert_eq!(class(b"none", status), Some(Class::Release), "{status}");
        }
        for status in [200, 201, 302, 600] {
            assert_eq!(class(b"none", status), None, "{status}: what is done cannot be nothing");
        }
        assert_eq!([500, 502, 503].map(|status| class(b"done", status)), [Some(Class::Keep); 3]);
        assert_eq!([200, 302, 404, 429].map(|status| class(b"done", status)), [None; 4]);
        for unread in [&b""[..], b"None", b"no", b"none, done", b"none "] {
            assert_eq!(Said::read(unread), None, "{unread:?}");
        }
    }

    #[test]
    fn a_route_may_say_otherwise() {
        let classes = [(500, Class::Release), (503, Class::Unknown), (404, Class::Release)];
        let policy = Policy { classes: classes.into(), ..Policy::default() };
        assert_eq!(
            [500, 503, 404, 502].map(|status| classify(status, &policy)),
            [Class::Release, Class::Unknown, Class::Release, Class::Unknown]
        );
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
