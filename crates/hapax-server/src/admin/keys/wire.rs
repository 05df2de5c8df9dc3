//! What is said over HTTP, and what `hapax keys --json` prints.

use hapax::core::record::{Head, Record, State};
use hapax::core::time::Timestamp;
use hapax::{Answer, Audit, Principal};
use serde::{Deserialize, Serialize};

use super::base64;
use super::time::Time;

/// The longest `by` and `reason`.
const WORDS_BYTES_MAX: usize = 1_000;

/// Which keys to list. Everything that is said must hold.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Query {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<String>,
    /// A pattern, as routes have them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) method: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) principal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) older_than_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) newer_than_seconds: Option<u64>,
    /// Only ids after this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) after: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<usize>,
}

/// A page of keys.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Page {
    pub(crate) keys: Vec<Entry>,
    /// What to ask for with `after` to go on; there may be more even if this page is empty.
    pub(crate) next: Option<String>,
    /// The time by which states were told.
    pub(crate) now: Time,
}

/// What is known of a key, without its answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) id: String,
    pub(crate) state: String,
    /// Of a tombstone: what it stands for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
    pub(crate) status: Option<u16>,
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

/// A fingerprint and what it was made with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Print {
    pub(crate) digest: String,
    pub(crate) policy: String,
}

/// One key, and its answer if that was asked for and there is one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Shown {
    #[serde(flatten)]
    pub(crate) entry: Entry,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) answer: Option<Replay>,
    pub(crate) now: Time,
}

/// What a repeat is answered with.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settle {
    pub(crate) outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<u16>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) headers: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) body: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) body_base64: Option<String>,
    pub(crate) by: String,
    pub(crate) reason: String,
}

/// What became of an unknown, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    Done,
    DoneWithoutAnswer,
    NotDone,
}

/// Who changes a record by hand, and why.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Signed {
    pub(crate) by: String,
    pub(crate) reason: String,
}

impl Settle {
    pub(crate) fn signed(&self) -> Signed {
        Signed { by: self.by.clone(), reason: self.reason.clone() }
    }
}

impl Signed {
    pub(crate) fn audit(&self) -> Result<Audit<'_>, String> {
        self.check()?;
        Ok(Audit { by: &self.by, reason: &self.reason })
    }

    fn check(&self) -> Result<(), String> {
        for (name, words) in [("by", &self.by), ("reason", &self.reason)] {
            if words.trim().is_empty() {
                return Err(format!("`{name}` is empty: say who changes this record, and what they found out"));
            }
            if words.len() > WORDS_BYTES_MAX {
                return Err(format!("`{name}` is longer than {WORDS_BYTES_MAX} bytes"));
            }
        }
        Ok(())
    }
}

impl Entry {
    pub(crate) fn of(head: &Head, now: Timestamp) -> Entry {
        let state = head.state_at(now);
        // What was never written down as ended has no times of an end.
        let ended = |time| (head.state != State::Running).then_some(Time(time));
        Entry {
            id: head.id.to_string(),
            state: state.word().to_owned(),
            last_state: matches!(state, State::Expired(_)).then(|| state.last().word().to_owned()),
            namespace: head.scope.namespace.to_string(),
            principal: match &head.scope.principal {
                Principal::Anonymous => None,
                Principal::Named(name) => Some(name.to_string()),
            },
            method: head.scope.method.to_string(),
            path: head.scope.path.to_string(),
            key: head.key.as_str().to_owned(),
            attempts: head.attempts,
            fence: head.fence.as_u64(),
            version: head.version,
            status: head.status,
            answer_kept: head.kept,
            fingerprint: head
                .fingerprint
                .as_ref()
                .map(|print| Print { digest: hex(&print.digest), policy: print.policy.to_string() }),
            created_at: Time(head.created_at),
            claimed_at: Time(head.claimed_at),
            lease_until: (state == State::Running).then_some(Time(head.lease_until)),
            finished_at: ended(head.finished_at),
            expires_at: ended(head.expires_at),
            tombstone_until: ended(head.tombstone_until),
        }
    }

    /// Whether somebody has to find out what became of it.
    pub(crate) fn is_unresolved(&self) -> bool {
        self.state == "unknown" || self.last_state.as_deref() == Some("unknown")
    }
}

impl Shown {
    pub(crate) fn of(record: &Record, now: Timestamp, with_answer: bool) -> Shown {
        let answer = record.answer.as_deref().filter(|_| with_answer).map(Replay::of);
        Shown { entry: Entry::of(&record.head, now), answer, now: Time(now) }
    }
}

impl Replay {
    fn of(answer: &Answer) -> Replay {
        let fields = |fields: &[(String, bytes::Bytes)]| {
            fields.iter().map(|(name, value)| (name.clone(), String::from_utf8_lossy(value).into_owned())).collect()
        };
        let (body, body_base64) = match str::from_utf8(&answer.body) {
            Ok(text) => (Some(text.to_owned()), None),
            Err(_) => (None, Some(base64::encode(&answer.body))),
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

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
