//! The JSON types of the HTTP API, which `hapax keys --json` prints too.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use hapax::core::operation::OperationIds;
use hapax::core::record::{Head, State};
use hapax::core::time::Timestamp;
use hapax::{Answer, Audit, Principal};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::time::Time;
use crate::admin::caller::Caller;

/// The longest `by`: the limit of the log, minus the room for what is appended.
pub(crate) const BY_BYTES_MAX: usize = 200;
/// The longest `reason`.
pub(crate) const REASON_BYTES_MAX: usize = 2_000;

/// Which keys to list. Everything that is said must hold.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Query {
    /// `running`, `completed`, `failed`, `retryable`, `unknown` or `expired`. `unknown` includes
    /// what nobody settled within its retention.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(pattern = "^(running|completed|failed|retryable|unknown|expired)$")]
    pub(crate) state: Option<String>,
    /// The name of a route of the configuration, for what it applies to; or methods and a pattern,
    /// as in `POST /v1/charges/*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) route: Option<String>,
    /// A pattern, as routes have them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) method: Option<String>,
    /// As a key shows it, or the name that people know: `bob` for `header:x-user bob`, `jwt:sub
    /// https://id.example.com bob` and the like. `(anonymous)` for nobody in particular.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) principal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    /// The key, as the caller sent it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// `Hapax-Operation`, as the upstream was given it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(pattern = "^[0-9a-f]{64}$")]
    pub(crate) operation_id: Option<String>,
    /// First seen longer ago than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(format = "uint64")]
    pub(crate) older_than_seconds: Option<u64>,
    /// First seen since so long.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(format = "uint64")]
    pub(crate) newer_than_seconds: Option<u64>,
    /// The newest of those that one call looks at, newest first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) newest: bool,
    /// Only ids after this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(pattern = "^[0-9a-f]{64}$")]
    pub(crate) after: Option<String>,
    /// At most so many, and never more than 1,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<usize>,
}

/// A page of keys.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Page {
    pub(crate) keys: Vec<Entry>,
    /// How many keys were looked at to find these.
    #[serde(default)]
    pub(crate) looked_at: usize,
    /// What to ask for with `after` to go on; there may be more even if this page is empty.
    pub(crate) next: Option<String>,
    /// The time by which states were told.
    pub(crate) now: Time,
}

/// What is known of a key, without its answer.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Entry {
    #[schema(pattern = "^[0-9a-f]{64}$")]
    pub(crate) id: String,
    /// What the upstream was given as `Hapax-Operation`.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    pub(crate) operation_id: String,
    #[schema(pattern = "^(running|completed|failed|retryable|unknown|expired)$")]
    pub(crate) state: String,
    /// Of a tombstone: what it stands for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^(completed|failed|retryable|unknown)$")]
    pub(crate) last_state: Option<String>,
    pub(crate) namespace: String,
    /// Absent for the anonymous.
    pub(crate) principal: Option<String>,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) key: String,
    pub(crate) attempts: u32,
    pub(crate) fence: u64,
    pub(crate) version: u64,
    /// The HTTP status that the service answered with, if it did.
    pub(crate) status: Option<u16>,
    /// Of an unknown: why nobody knows what became of the latest attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<Cause>,
    /// The `X-Request-Id` of the request that made the latest attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) request_id: Option<String>,
    pub(crate) answer_kept: bool,
    pub(crate) fingerprint: Option<Print>,
    pub(crate) created_at: Time,
    pub(crate) claimed_at: Time,
    /// While running.
    pub(crate) lease_until: Option<Time>,
    /// The three times of what is not running.
    pub(crate) finished_at: Option<Time>,
    pub(crate) expires_at: Option<Time>,
    pub(crate) tombstone_until: Option<Time>,
}

/// Why an attempt was lost.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Cause {
    /// `answered` (with `status`), `not-joined`, `timed-out`, `broke-off`, `no-answer`, `panicked`,
    /// `ran-too-long`, `probe-unknown`, `stopped`, `lapsed` or `newer`.
    pub(crate) code: String,
    /// The same in a sentence.
    pub(crate) detail: String,
}

/// A fingerprint and what it was made with.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Print {
    pub(crate) digest: String,
    pub(crate) policy: String,
}

/// One key, and its answer if that was asked for and there is one.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Shown {
    #[serde(flatten)]
    pub(crate) entry: Entry,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) answer: Option<Replay>,
    pub(crate) now: Time,
}

/// What a repeat is answered with.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Replay {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    /// A body that is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) body: Option<String>,
    /// One that is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) body_base64: Option<String>,
    pub(crate) body_bytes: usize,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) trailers: Vec<(String, String)>,
}

/// What became of an unknown.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settle {
    pub(crate) outcome: Outcome,
    /// Only of the attempt with this fence, as the key was shown: what was found out about one says
    /// nothing of the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "uint64")]
    pub(crate) fence: Option<u64>,
    /// With `done`: what a repeat is answered with. The others take none of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 200, maximum = 599)]
    pub(crate) status: Option<u16>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) headers: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) body: Option<String>,
    /// The body of an answer that is no text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) body_base64: Option<String>,
    /// Who says so, in up to 200 bytes.
    #[schema(min_length = 1)]
    pub(crate) by: String,
    /// What they found out, in up to 2,000 bytes.
    #[schema(min_length = 1)]
    pub(crate) reason: String,
}

/// What became of an unknown, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    Done,
    DoneWithoutAnswer,
    NotDone,
}

/// Whose answer is erased, by whom and why.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Forget {
    /// Only of the record as it was shown, by its `version`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "uint64")]
    pub(crate) version: Option<u64>,
    /// Who, in up to 200 bytes.
    #[schema(min_length = 1)]
    pub(crate) by: String,
    /// Why, in up to 2,000 bytes.
    #[schema(min_length = 1)]
    pub(crate) reason: String,
}

/// Who changes a record manually, and why.
#[derive(Clone, Debug)]
pub(crate) struct Signed {
    pub(crate) by: String,
    pub(crate) reason: String,
}

impl Settle {
    pub(crate) fn signed(&self) -> Signed {
        Signed {
            by: self.by.clone(),
            reason: self.reason.clone(),
        }
    }
}

impl Forget {
    pub(crate) fn signed(&self) -> Signed {
        Signed {
            by: self.by.clone(),
            reason: self.reason.clone(),
        }
    }
}

impl Signed {
    pub(crate) fn audit(&self) -> Audit<'_> {
        Audit {
            by: &self.by,
            reason: &self.reason,
        }
    }

    /// The same, as it is kept in the audit log.
    pub(crate) fn kept(&self) -> Result<hapax::core::audit::Signed, String> {
        hapax::core::audit::Signed::new(&self.by, &self.reason).map_err(|error| error.to_string())
    }

    /// The signature with the caller's token appended. Fails if the texts are not valid.
    pub(in crate::admin) fn signed_by(self, caller: Caller) -> Result<Signed, String> {
        self.check()?;
        Ok(Signed {
            by: caller.signs(&self.by),
            reason: self.reason,
        })
    }

    /// The signature of a caller that gave no name: the token alone.
    pub(in crate::admin) fn of_caller(caller: Caller, reason: String) -> Result<Signed, String> {
        let signed = Signed {
            by: caller.name().to_owned(),
            reason,
        };
        signed.check_words()?;
        Ok(signed)
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        self.check_words()?;
        match Caller::mark_in(&self.by) {
            Some(mark) => Err(format!(
                "`by` says `{mark}`, which the log adds for whoever presents that token: give a name alone"
            )),
            None => Ok(()),
        }
    }

    fn check_words(&self) -> Result<(), String> {
        for (name, words, max) in [
            ("by", &self.by, BY_BYTES_MAX),
            ("reason", &self.reason, REASON_BYTES_MAX),
        ] {
            if words.trim().is_empty() {
                return Err(format!(
                    "`{name}` is empty: say who changes this record, and what they found out"
                ));
            }
            if words.len() > max {
                return Err(format!(
                    "`{name}` is longer than {max} bytes: say it shorter"
                ));
            }
        }
        Ok(())
    }
}

impl Entry {
    pub(crate) fn new(head: &Head, now: Timestamp, ids: &OperationIds) -> Entry {
        let state = head.state_at(now);
        // An attempt that was never recorded as ended has no end times.
        let ended = |time| (head.state != State::Running).then_some(Time(time));
        Entry {
            id: head.id.to_string(),
            operation_id: ids.make(&head.id, head.created_at).to_string(),
            state: state.word().to_owned(),
            last_state: matches!(state, State::Expired(_)).then(|| state.last().word().to_owned()),
            namespace: head.scope.namespace.to_string(),
            principal: name_of(&head.scope.principal),
            method: head.scope.method.to_string(),
            path: head.scope.path.to_string(),
            key: head.key.as_str().to_owned(),
            attempts: head.attempts,
            fence: head.fence.as_u64(),
            version: head.version,
            status: head.answered(),
            cause: head.loss(state).map(|loss| Cause {
                code: loss.word().to_owned(),
                detail: loss.to_string(),
            }),
            request_id: head.request_id.as_ref().map(ToString::to_string),
            answer_kept: head.kept,
            fingerprint: head.fingerprint.as_ref().map(|print| Print {
                digest: hex(&print.digest),
                policy: print.policy.to_string(),
            }),
            created_at: Time(head.created_at),
            claimed_at: Time(head.claimed_at),
            lease_until: (state == State::Running).then_some(Time(head.lease_until)),
            finished_at: ended(head.finished_at),
            expires_at: ended(head.expires_at),
            tombstone_until: ended(head.tombstone_until),
        }
    }

    /// Whether its outcome is unknown and can still be settled.
    pub(crate) fn is_unresolved(&self) -> bool {
        (self.state == "unknown" || self.last_state.as_deref() == Some("unknown"))
            && self.fingerprint.is_some()
    }
}

impl Shown {
    pub(crate) fn new(entry: Entry, answer: Option<&Answer>, now: Timestamp) -> Shown {
        Shown {
            entry,
            answer: answer.map(Replay::new),
            now: Time(now),
        }
    }
}

impl Replay {
    fn new(answer: &Answer) -> Replay {
        let fields = |fields: &[(String, bytes::Bytes)]| {
            fields
                .iter()
                .map(|(name, value)| (name.clone(), String::from_utf8_lossy(value).into_owned()))
                .collect()
        };
        let (body, body_base64) = match str::from_utf8(&answer.body) {
            Ok(text) => (Some(text.to_owned()), None),
            Err(_) => (None, Some(BASE64_STANDARD.encode(&answer.body))),
        };
        Replay {
            status: answer.status,
            headers: fields(&answer.headers),
            body,
            body_base64,
            body_bytes: answer.body.len(),
            trailers: fields(&answer.trailers),
        }
    }
}

/// The principal's name; `None` for the anonymous one.
pub(super) fn name_of(principal: &Principal) -> Option<String> {
    match principal {
        Principal::Anonymous => None,
        Principal::Named(name) => Some(name.to_string()),
    }
}

/// The bytes in lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
