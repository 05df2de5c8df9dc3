//! The outcome: what an attempt ended in, and how a status maps to it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::answer::Answer;
use crate::policy::Policy;
use crate::record::{Head, State};
use crate::store::Lifetime;

/// How long a record is kept if its attempts only ever ended in 401 or 403. It is long enough for a
/// repeat with better credentials to count as the same operation. It is short because anyone can
/// make such records with forged credentials.
pub const REFUSED_FOR: Duration = Duration::from_secs(10 * 60);

/// What a status says about the effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Definitive: the answer is kept and replayed.
    Keep,
    /// The attempt is known not to count: a repeat may run it again.
    Release,
    /// The status does not say whether the service acted: a proxy may have answered in its place.
    Unknown,
}

impl Class {
    /// The name of this class in configuration.
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
    /// The effect is done, or definitively refused.
    Kept {
        /// The status of the answer.
        status: u16,
        /// The answer; `None` if it is not to be kept.
        answer: Option<Arc<Answer>>,
    },
    /// The attempt is known not to count.
    Released {
        /// The status it was answered with; `None` if it was never dispatched.
        status: Option<u16>,
    },
    /// The attempt was lost after it may have had its effect.
    Lost(Loss),
}

/// Why it is not known whether an attempt had its effect.
///
/// A record stores it in place of its status: see [`Loss::code`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// The service answered with this status, which does not say whether it acted.
    Answered(u16),
    /// The work ended, with this status if it had one, but the record was not completed in the
    /// transaction of the effect, as the route promises.
    NotJoined(Option<u16>),
    /// The service did not answer in time.
    TimedOut,
    /// The service's answer broke off.
    BrokeOff,
    /// The service gave no answer: its connection ended, or it returned an error.
    NoAnswer,
    /// The work panicked.
    Panicked,
    /// The attempt ran for longer than an attempt may.
    RanTooLong,
    /// The service was asked what became of a lost attempt, and could not tell.
    ProbeUnknown,
    /// The node stopped before the attempt ended.
    Stopped,
    /// The lease ended and no outcome was written: the node stopped, or lost the store. Records of
    /// versions without reasons read as this too.
    Lapsed,
    /// A reason written by a newer version.
    Newer(u16),
}

/// The first code of [`Loss::NotJoined`]: the status is added to it.
const NOT_JOINED: u16 = 2000;
/// The same for [`Loss::Answered`].
const ANSWERED: u16 = 3000;

/// Codes as stores keep them: never renumber.
const CODES: [(u16, Loss); 8] = [
    (1000, Loss::TimedOut),
    (1001, Loss::BrokeOff),
    (1002, Loss::NoAnswer),
    (1003, Loss::Panicked),
    (1004, Loss::RanTooLong),
    (1005, Loss::ProbeUnknown),
    (1006, Loss::Stopped),
    (NOT_JOINED, Loss::NotJoined(None)),
];

impl Loss {
    /// The code that a record keeps in place of a status: 1000 or above.
    pub fn code(self) -> Option<u16> {
        match self {
            Loss::Answered(status) => Some(ANSWERED + status),
            Loss::NotJoined(Some(status)) => Some(NOT_JOINED + status),
            Loss::Lapsed => None,
            Loss::Newer(code) => Some(code),
            loss => CODES
                .iter()
                .find(|(_, known)| *known == loss)
                .map(|(code, _)| *code),
        }
    }

    /// Decodes what a record has kept.
    pub fn from_code(code: Option<u16>) -> Loss {
        match code {
            None => Loss::Lapsed,
            // Older versions stored the plain status for an attempt that did not join, or 500 if it
            // had none.
            Some(status @ ..=999) => Loss::NotJoined(Some(status)),
            Some(code @ 3100..=3999) => Loss::Answered(code - ANSWERED),
            Some(code @ 2100..=2999) => Loss::NotJoined(Some(code - NOT_JOINED)),
            Some(code) => CODES
                .iter()
                .find(|(known, _)| *known == code)
                .map_or(Loss::Newer(code), |(_, loss)| *loss),
        }
    }

    /// The name of this loss in the admin API.
    pub const fn word(self) -> &'static str {
        match self {
            Loss::Answered(_) => "answered",
            Loss::NotJoined(_) => "not-joined",
            Loss::TimedOut => "timed-out",
            Loss::BrokeOff => "broke-off",
            Loss::NoAnswer => "no-answer",
            Loss::Panicked => "panicked",
            Loss::RanTooLong => "ran-too-long",
            Loss::ProbeUnknown => "probe-unknown",
            Loss::Stopped => "stopped",
            Loss::Lapsed => "lapsed",
            Loss::Newer(_) => "newer",
        }
    }

    /// Whether the work may be done outside the transaction of the effect, so that it is not known
    /// to have been rolled back.
    pub const fn may_be_done_outside(self) -> bool {
        // The meaning of a newer version's reason is not known, so it gets the careful reading.
        matches!(
            self,
            Loss::Answered(..=399) | Loss::NotJoined(_) | Loss::Newer(_)
        )
    }
}

/// One sentence for people, without its full stop.
impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::Answered(status) => return write!(f, "the service answered {status}, which does not say whether it acted"),
            Loss::NotJoined(Some(status)) => {
                return write!(
                    f,
                    "the service answered {status}, but did not complete the record in the transaction of its effect"
                );
            }
            Loss::NotJoined(None) => "the work acted outside the transaction that should have completed its record",
            Loss::TimedOut => "the service did not answer in time",
            Loss::BrokeOff => "the answer of the service broke off",
            Loss::NoAnswer => "the service was reached and gave no answer",
            Loss::Panicked => "the handler panicked",
            Loss::RanTooLong => "the attempt ran for longer than longest_attempt allows",
            Loss::ProbeUnknown => "the service was asked about a lost attempt and could not tell what became of it",
            Loss::Stopped => "the node stopped before the attempt ended",
            Loss::Lapsed => "the lease ended without an outcome: the node went away or lost the store",
            Loss::Newer(_) => "a newer version of Hapax wrote a reason that this version does not know",
        })
    }
}

impl Outcome {
    /// The state of the record after this outcome.
    pub fn state(&self) -> State {
        match self {
            Outcome::Kept {
                status: 400..=499, ..
            } => State::Failed,
            Outcome::Kept { .. } => State::Completed,
            Outcome::Released { .. } => State::Retryable,
            Outcome::Lost(_) => State::Unknown,
        }
    }

    /// How long the record is remembered if the attempt in `claimed` ends in this outcome.
    ///
    /// If the key's attempts only ever ended in 401 or 403, the record is kept for [`REFUSED_FOR`]
    /// and leaves no tombstone. A record with any other past keeps its ordinary lifetime: a lost
    /// attempt must not be forgotten because a later one was refused.
    pub fn lifetime(&self, claimed: &Head, follows_lost: bool, policy: &Policy) -> Lifetime {
        let ordinary = Lifetime::from(policy);
        let is_refused = matches!(
            self,
            Outcome::Released {
                status: Some(401 | 403)
            }
        );
        let has_other_past = claimed.attempts > 1 && (follows_lost || !claimed.was_short_lived());
        if !is_refused || has_other_past {
            return ordinary;
        }
        Lifetime {
            retention: ordinary.retention.min(REFUSED_FOR),
            tombstone: Duration::ZERO,
        }
    }

    /// The status field of the record: the status of the answer, or the code of the loss.
    pub fn code(&self) -> Option<u16> {
        match self {
            Outcome::Kept { status, .. } => Some(*status),
            Outcome::Released { status } => *status,
            Outcome::Lost(loss) => loss.code(),
        }
    }

    /// The status of the service's answer, if it gave one.
    pub fn status(&self) -> Option<u16> {
        match self {
            Outcome::Lost(Loss::Answered(status) | Loss::NotJoined(Some(status))) => Some(*status),
            Outcome::Lost(_) => None,
            Outcome::Kept { .. } | Outcome::Released { .. } => self.code(),
        }
    }
}

/// How a route reads a status, unless its service [says more](Said). The route's own classes take
/// precedence over the general rule.
///
/// 500 is unknown: it is typically an uncaught exception, which may come after the effect. Where a
/// second attempt is safe ([`Mode::releases_errors`](crate::policy::Mode::releases_errors)), every
/// 5xx releases.
pub fn classify(status: u16, policy: &Policy) -> Class {
    if let Some(class) = policy.classes.get(&status) {
        return *class;
    }
    match status {
        // The service refused or shed the request before acting.
        401 | 403 | 425 | 429 | 503 => Class::Release,
        500..=599 if policy.mode.releases_errors() => Class::Release,
        // A proxy or a timeout layer may have stopped waiting while the work went on.
        408 => Class::Unknown,
        200..=499 => Class::Keep,
        _ => Class::Unknown,
    }
}

/// What a service says about the effect in the field `Hapax-Outcome`. It is more precise than the
/// status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Said {
    /// `none`: the effect did not happen, so the key is released.
    Nothing,
    /// `done`: the effect happened, so the answer is kept.
    Done,
}

impl Said {
    /// Reads the value of the field. `None` if it is neither `none` nor `done`.
    pub fn read(value: &[u8]) -> Option<Said> {
        match value {
            b"none" => Some(Said::Nothing),
            b"done" => Some(Said::Done),
            _ => None,
        }
    }

    /// The class for this status. `None` if the field contradicts the status or adds nothing to it;
    /// then the status alone counts.
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
            let policy = Policy {
                mode,
                ..Policy::default()
            };
            for status in 100..=999 {
                let expected = match status {
                    401 | 403 | 425 | 429 | 503 => Class::Release,
                    500..=599 if matches!(mode, Mode::Transaction | Mode::Rerun) => Class::Release,
                    408 => Class::Unknown,
                    200..=499 => Class::Keep,
                    _ => Class::Unknown,
                };
                assert_eq!(
                    classify(status, &policy),
                    expected,
                    "{status}, {}",
                    mode.word()
                );
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
            assert_eq!(
                class(b"none", status),
                None,
                "{status}: what is done cannot be nothing"
            );
        }
        assert_eq!(
            [500, 502, 503].map(|status| class(b"done", status)),
            [Some(Class::Keep); 3]
        );
        assert_eq!(
            [200, 302, 404, 429].map(|status| class(b"done", status)),
            [None; 4]
        );
        for unread in [&b""[..], b"None", b"no", b"none, done", b"none "] {
            assert_eq!(Said::read(unread), None, "{unread:?}");
        }
    }

    #[test]
    fn a_route_may_say_otherwise() {
        let classes = [
            (500, Class::Release),
            (503, Class::Unknown),
            (404, Class::Release),
        ];
        let policy = Policy {
            classes: classes.into(),
            ..Policy::default()
        };
        assert_eq!(
            [500, 503, 404, 502].map(|status| classify(status, &policy)),
            [
                Class::Release,
                Class::Unknown,
                Class::Release,
                Class::Unknown
            ]
        );
    }

    #[test]
    fn a_refused_caller_leaves_a_record_for_ten_minutes_only() {
        let policy = Policy::default();
        let (refused, forbidden) = (
            Outcome::Released { status: Some(401) },
            Outcome::Released { status: Some(403) },
        );
        let first = head();
        let short = Lifetime {
            retention: REFUSED_FOR,
            tombstone: Duration::ZERO,
        };
        assert_eq!(
            [&refused, &forbidden].map(|outcome| outcome.lifetime(&first, false, &policy)),
            [short; 2]
        );
        // A repeat that was refused as well.
        let second = |lifetime| Head {
            attempts: 2,
            ..guard::ended(&first, &ended_as(lifetime), Timestamp::from_micros(5))
        };
        assert_eq!(refused.lifetime(&second(short), false, &policy), short);

        let ordinary = Lifetime::from(&policy);
        for outcome in [
            Outcome::Released { status: None },
            Outcome::Released { status: Some(429) },
            Outcome::Lost(Loss::TimedOut),
        ] {
            assert_eq!(
                outcome.lifetime(&first, false, &policy),
                ordinary,
                "{outcome:?}"
            );
        }
        assert_eq!(
            refused.lifetime(&second(short), true, &policy),
            ordinary,
            "the attempt before was lost"
        );
        assert_eq!(
            refused.lifetime(&second(ordinary), false, &policy),
            ordinary,
            "something else came before"
        );
        let brief = Policy {
            retention: Duration::from_secs(60),
            ..Policy::default()
        };
        assert_eq!(
            refused.lifetime(&first, false, &brief).retention,
            brief.retention,
            "never longer than the route keeps anything"
        );
    }

    fn ended_as(lifetime: Lifetime) -> Finish {
        Finish {
            state: State::Retryable,
            status: Some(401),
            answer: None,
            lifetime,
        }
    }

    /// A first attempt, running.
    fn head() -> Head {
        let scope = Scope {
            namespace: "n".into(),
            principal: Principal::Anonymous,
            method: "POST".into(),
            path: "/".into(),
        };
        let key = Key::new("k").unwrap();
        let claim = Claim {
            scope: Arc::new(scope.clone()),
            key: key.clone(),
            fingerprint: Fingerprint {
                digest: [0; 32],
                policy: Arc::default(),
            },
            token: AttemptToken::default(),
            lease: Duration::from_secs(10),
            terms: None,
            request_id: None,
        };
        let put = Put {
            id: RecordId::of(&scope, &key),
            condition: Condition::Absent,
            change: Change::Claim(claim),
        };
        guard::judge(None, &put, Timestamp::from_micros(1), Fence::ZERO).unwrap()
    }

    /// Stores keep these codes: the next version must read what this one writes.
    #[test]
    fn every_loss_has_its_code() {
        let table = [
            (Some(3100), Loss::Answered(100)),
            (Some(3500), Loss::Answered(500)),
            (Some(3999), Loss::Answered(999)),
            (Some(1000), Loss::TimedOut),
            (Some(1001), Loss::BrokeOff),
            (Some(1002), Loss::NoAnswer),
            (Some(1003), Loss::Panicked),
            (Some(1004), Loss::RanTooLong),
            (Some(1005), Loss::ProbeUnknown),
            (Some(1006), Loss::Stopped),
            (Some(2000), Loss::NotJoined(None)),
            (Some(2201), Loss::NotJoined(Some(201))),
            (Some(2999), Loss::NotJoined(Some(999))),
            (Some(1007), Loss::Newer(1007)),
            (None, Loss::Lapsed),
        ];
        for (code, loss) in table {
            assert_eq!((loss.code(), Loss::from_code(code)), (code, loss));
        }
        for code in (1000..=4100).map(Some) {
            assert_eq!(Loss::from_code(code).code(), code);
        }
        // Older versions stored the plain status of an attempt that did not join.
        assert_eq!(Loss::from_code(Some(404)), Loss::NotJoined(Some(404)));
    }

    #[test]
    fn no_code_is_taken_for_a_status() {
        for code in (0..=u16::MAX).map(Some) {
            let head = Head {
                status: code,
                ..head()
            };
            assert!(
                head.answered().is_none_or(|status| status < 1000),
                "{code:?}"
            );
            assert_eq!(head.loss(State::Unknown), Some(Loss::from_code(code)));
            assert!(head.loss(State::Running).is_none() && head.loss(State::Completed).is_none());
        }
        let status = |loss| Outcome::Lost(loss).status();
        let losses = [
            Loss::Answered(502),
            Loss::NotJoined(Some(200)),
            Loss::TimedOut,
            Loss::Lapsed,
        ];
        assert_eq!(losses.map(status), [Some(502), Some(200), None, None]);
    }

    #[test]
    fn a_kept_refusal_is_failed_and_a_kept_success_is_completed() {
        let kept = |status| {
            Outcome::Kept {
                status,
                answer: None,
            }
            .state()
        };
        assert_eq!(
            [kept(200), kept(302), kept(404), kept(500)],
            [
                State::Completed,
                State::Completed,
                State::Failed,
                State::Completed
            ]
        );
    }
}
