//! The policy of a route: what it promises, and every limit it keeps.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::field;
use crate::fingerprint::{FingerprintPolicy, Pointer};
use crate::outcome::Class;

/// What a route promises, and what it does after a lost attempt. See `docs/guarantees.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// At most one dispatch, until the upstream itself answers with a release-class status. A lost
    /// attempt is held as unknown.
    #[default]
    Hold,
    /// The owner of the service declares that running twice is harmless: a lost attempt is followed
    /// by another.
    Rerun,
    /// Effect and record commit in one transaction, or neither does. A lost attempt was rolled
    /// back, so it is followed by another, which fences it out.
    Transaction,
    /// The upstream keeps fence, mark and answer for each operation, and refuses lower fences: a
    /// lost attempt is followed by another.
    Fenced,
    /// The upstream is asked what became of a lost attempt, and bars it. Only then does another
    /// attempt follow.
    Probe,
}

impl Mode {
    /// All modes, the strongest promise first.
    pub const ALL: [Mode; 5] = [
        Mode::Transaction,
        Mode::Fenced,
        Mode::Probe,
        Mode::Hold,
        Mode::Rerun,
    ];

    /// The name of this mode in configuration and metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Mode::Hold => "hold",
            Mode::Rerun => "rerun",
            Mode::Transaction => "transaction",
            Mode::Fenced => "fenced",
            Mode::Probe => "probe",
        }
    }

    /// Whether a 5xx releases the key: a second attempt is safe whatever the first one did.
    pub const fn releases_errors(self) -> bool {
        matches!(self, Mode::Transaction | Mode::Rerun)
    }

    /// Whether a repeat may lead to another attempt after one was lost.
    pub const fn repeats_lost(self) -> bool {
        !matches!(self, Mode::Hold)
    }
}

/// Whether a route requires a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum KeyRule {
    /// A request without a key is refused.
    Required,
    /// A request without a key passes untouched.
    #[default]
    Optional,
    /// Only keys that this server issued are accepted; a request without one is refused.
    Issued,
    /// Keys are ignored.
    Off,
}

impl KeyRule {
    /// The name of this rule in configuration and listings.
    pub const fn word(self) -> &'static str {
        match self {
            KeyRule::Required => "required",
            KeyRule::Optional => "optional",
            KeyRule::Issued => "issued",
            KeyRule::Off => "off",
        }
    }
}

/// Where the key of a request comes from.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum KeySource {
    /// In the field [`Policy::key_field`].
    #[default]
    Field,
    /// The value at this place in the JSON body, as in APIs with a `ClientToken`.
    Body(Pointer),
    /// Derived from these parts: requests that agree in all of them have the same key. For callers
    /// that send no key. The retention is short ([`DERIVED_RETENTION_MAX`]), since a caller may
    /// legitimately send the same content twice. The fingerprint still decides whether two requests
    /// with one key are the same.
    Derived(Vec<Part>),
}

/// A part of a request that keys are derived from, or by which new keys are counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The principal.
    Principal,
    /// A header field; the name is in lower case.
    Header(Arc<str>),
    /// A value of the JSON body.
    Body(Pointer),
}

/// A limit on new keys in a time, among requests that agree in one part. Replays do not count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Velocity {
    /// The part that the requests have in common.
    pub by: Part,
    /// The most new keys.
    pub keys: u32,
    /// The time in which they are counted.
    pub per: Duration,
}

/// What a route promises, and every limit it keeps. The defaults are those of `docs/http.md`.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// What the route promises, and what it does after a lost attempt.
    pub mode: Mode,
    /// Whether it requires a key.
    pub key: KeyRule,
    /// The field that carries the key.
    pub key_field: Arc<str>,
    /// Where the key comes from.
    pub key_source: KeySource,
    /// Accept only the quoted form of a key.
    pub strict_key: bool,
    /// Refuse keys whose spelling carries fewer bits than this. Zero refuses none.
    pub key_bits_min: u32,
    /// The methods that are guarded; others pass untouched.
    pub methods: Vec<Arc<str>>,
    /// What the fingerprint covers.
    pub fingerprint: Arc<FingerprintPolicy>,
    /// How long a finished record replays.
    pub retention: Duration,
    /// How long a tombstone stands after that.
    pub tombstone: Duration,
    /// How long an attempt may run without a renewal.
    pub lease: Duration,
    /// How long an attempt may run before it counts as lost.
    pub longest_attempt: Duration,
    /// How many attempts one key may begin.
    pub attempts_max: u32,
    /// How long a repeat waits for a running attempt if the request does not say.
    pub wait: Duration,
    /// The longest wait a request may ask for (`Prefer: wait`).
    pub wait_max: Duration,
    /// Classes of statuses on this route, where they differ from the general rule.
    pub classes: BTreeMap<u16, Class>,
    /// Limits on new keys in a time.
    pub velocity: Vec<Velocity>,
    /// Keep answers for replay.
    pub keep_answers: bool,
    /// The current version of the route's answers. An answer kept under another version is not
    /// replayed: its effect is done, but its answer counts as not kept.
    pub answer_version: Option<Arc<str>>,
    /// The largest answer that is kept; a larger one is sent but not kept.
    pub answer_bytes_max: usize,
    /// Replay `Set-Cookie` to later callers too.
    pub replay_cookies: bool,
    /// Keep an answer whose end is only the end of its connection. Such an answer looks the same if
    /// it broke off.
    pub keep_close_delimited: bool,
    /// How much of a request body is held in memory before the rest is spilled to a file.
    pub body_memory_bytes_max: usize,
    /// The largest request body; a larger one is refused.
    pub body_bytes_max: u64,
    /// How long one step of a request waits for the store.
    pub store_timeout: Duration,
    /// The owner of the service declares that a repeated effect is harmless here, with or without a
    /// record.
    pub naturally_idempotent: bool,
    /// Let requests through unguarded while the store is unreachable. Only where
    /// [`Policy::naturally_idempotent`].
    pub fail_open: bool,
    /// Only observe: count what would have been replayed or refused, and let everything through.
    pub shadow: bool,
    /// Whether retry advice is also sent in the dialects of widespread SDKs: `X-Should-Retry`,
    /// `Stripe-Should-Retry`, `Retry-After-Ms`, and the member `error` of problems. The gateway
    /// sends them; the library only if asked to. `Retry-After` is always sent.
    pub retry_dialects: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            mode: Mode::Hold,
            key: KeyRule::Optional,
            key_field: KEY_FIELD.into(),
            key_source: KeySource::Field,
            strict_key: false,
            key_bits_min: 0,
            methods: vec!["POST".into(), "PATCH".into()],
            fingerprint: Arc::default(),
            retention: Duration::from_secs(24 * 60 * 60),
            tombstone: Duration::from_secs(7 * 24 * 60 * 60),
            lease: Duration::from_secs(10),
            longest_attempt: Duration::from_secs(5 * 60),
            // Enough for a client that backs off through a day of release-class answers, but
            // bounded.
            attempts_max: 100,
            wait: Duration::ZERO,
            wait_max: Duration::from_secs(30),
            classes: BTreeMap::new(),
            velocity: Vec::new(),
            keep_answers: true,
            answer_version: None,
            answer_bytes_max: 1 << 20,
            replay_cookies: false,
            keep_close_delimited: false,
            body_memory_bytes_max: 1 << 20,
            body_bytes_max: 64 << 20,
            store_timeout: Duration::from_secs(2),
            naturally_idempotent: false,
            fail_open: false,
            shadow: false,
            retry_dialects: false,
        }
    }
}

/// Shorter leases could not be renewed in time.
const LEASE_MIN: Duration = Duration::from_millis(1);

/// Fields that have another purpose in a request, or that Hapax removes.
const KEY_FIELDS_RESERVED: [&str; 19] = [
    "accept-encoding",
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "hapax-fence",
    "hapax-keep",
    "hapax-operation",
    "hapax-outcome",
    "hapax-probe",
    "hapax-refused",
    "hapax-status",
    "host",
    "idempotency-deadline",
    "idempotency-expires",
    "idempotent-replayed",
    "prefer",
    "transfer-encoding",
];

/// The field that carries keys unless a route says otherwise.
pub const KEY_FIELD: &str = "idempotency-key";

/// The longest retention of a derived key. The same content after that is meant as a new request.
pub const DERIVED_RETENTION_MAX: Duration = Duration::from_secs(60 * 60);

/// The longest name of an answer version, in bytes.
const ANSWER_VERSION_BYTES_MAX: usize = 255;

/// Longer than any sensible setting, and short enough for the arithmetic of every store and
/// runtime.
const DURATION_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// A policy that contradicts itself. It is found at start, never during a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A repeat could find the record expired while its attempt still runs.
    #[error(
        "lease ({lease:?}) is longer than retention ({retention:?}): shorten `lease` or lengthen `retention`"
    )]
    LeaseOverRetention {
        /// The lease as set.
        lease: Duration,
        /// The retention as set.
        retention: Duration,
    },
    /// Without a store, a second effect is possible.
    #[error(
        "`fail_open` lets repeats through while the store is away: set `naturally_idempotent` too, or leave it off"
    )]
    FailOpen,
    /// A request that is let through has no operation id and no fence, which this mode needs.
    #[error("`fail_open` lets requests through without operation and fence, and mode {} cannot do without: leave it off", .0.word())]
    FailOpenMode(Mode),
    /// This limit would refuse everything.
    #[error("`{0}` is zero: nothing could ever run")]
    Zero(&'static str),
    /// The part of a body held in memory would exceed the largest body.
    #[error("`body_memory_bytes_max` ({memory}) is over `body_bytes_max` ({all})")]
    MemoryOverBody {
        /// The limit in memory, as set.
        memory: usize,
        /// The limit of the whole body, as set.
        all: u64,
    },
    /// The duration exceeds the longest that is supported.
    #[error("`{0}` is over a hundred years")]
    TooLong(&'static str),
    /// The field name is not valid in HTTP, or has another meaning.
    #[error("`key_field` is not the name of a header field that can carry a key: {0:?}")]
    KeyField(Arc<str>),
    /// The method is not valid in HTTP or has lower-case letters.
    #[error("`methods` holds {0:?}: write methods as they are sent, in upper case")]
    Method(Arc<str>),
    /// Renewals could not keep up.
    #[error("`lease` is under a millisecond")]
    LeaseTooShort,
    /// The default wait is longer than the longest allowed wait.
    #[error("`wait` ({wait:?}) is over `wait_max` ({wait_max:?})")]
    Wait {
        /// The wait as set.
        wait: Duration,
        /// Its limit as set.
        wait_max: Duration,
    },
    /// An issued key must come in the key field.
    #[error(
        "`key` is issued, but `key_source` does not take it from the key field: a caller could not send what it was issued"
    )]
    IssuedElsewhere,
    /// A legitimate second request would get the answer of the first.
    #[error(
        "`retention` ({0:?}) is too long for a derived key: at most an hour, since somebody may mean the same words twice"
    )]
    DerivedRetention(Duration),
    /// A legitimate later request would find its key expired, and could not send another.
    #[error(
        "`tombstone` ({0:?}) must be zero where the key is derived: a later request could not use a new key"
    )]
    DerivedTombstone(Duration),
    /// Every request to a path would have the same key.
    #[error("`key_source` derives a key from nothing: name at least one part")]
    DerivedFromNothing,
    /// The field name is not valid in HTTP.
    #[error("{0:?} is not the name of a header field")]
    PartHeader(Arc<str>),
    /// A pointer with `*` may name several values.
    #[error("{0} may name more than one value: write a pointer without `*`")]
    PointerToMany(Pointer),
    /// A guard in one transaction cannot follow this setting.
    #[error(
        "`{0}` has no effect on a guard in one transaction (`in_transaction`): leave it as it is"
    )]
    NotInTransaction(&'static str),
    /// The store cannot commit a record together with the caller's effect.
    #[error(
        "`mode` is transaction, but this store takes no part in a caller's transaction: keep records in the Postgres database of \
         the effects, or in its SQLite file"
    )]
    NoTransactions,
    /// There is no probe to ask what became of a lost attempt.
    #[error("`mode` is probe, but there is no probe to ask what became of a lost attempt")]
    NoProbe,
    /// The name of the answer version is not valid. Use `None` for no version.
    #[error(
        "`answer_version` must be 1 to {ANSWER_VERSION_BYTES_MAX} bytes without control characters"
    )]
    AnswerVersion,
    /// A builder was given a whole policy after single settings of it.
    #[error(
        "`policy` was called after single settings such as `required`, and has undone them: call it first"
    )]
    Undone,
    /// A builder was given one mode after another.
    #[error(
        "two modes were set, of which one guard can have one: call only one of `transaction`, `rerun`, `fenced` and `probe`, and leave `mode` of the policy to it"
    )]
    TwoModes,
}

/// The part as spelled in configuration.
impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Principal => f.write_str("principal"),
            Part::Header(name) => write!(f, "header:{name}"),
            Part::Body(pointer) => write!(f, "body:{pointer}"),
        }
    }
}

impl Policy {
    /// Every setting that contradicts itself or another. A policy without mistakes can be used.
    pub fn mistakes(&self) -> Vec<PolicyError> {
        let mut mistakes = self.limits_mistakes();
        mistakes.extend(self.mode_mistakes());
        mistakes.extend(self.name_mistakes());
        mistakes.extend(self.source_mistake());
        mistakes.extend(self.parts().filter_map(part_mistake));
        mistakes
    }

    fn limits_mistakes(&self) -> Vec<PolicyError> {
        let is_velocity = |is_wrong: fn(&Velocity) -> bool| self.velocity.iter().any(is_wrong);
        let zeros = [
            ("lease", self.lease.is_zero()),
            ("retention", self.retention.is_zero()),
            ("longest_attempt", self.longest_attempt.is_zero()),
            ("attempts_max", self.attempts_max == 0),
            ("body_bytes_max", self.body_bytes_max == 0),
            ("store_timeout", self.store_timeout.is_zero()),
            ("methods", self.methods.is_empty()),
            ("velocity.keys", is_velocity(|velocity| velocity.keys == 0)),
            (
                "velocity.per",
                is_velocity(|velocity| velocity.per.is_zero()),
            ),
        ];
        let zeros: Vec<_> = zeros
            .into_iter()
            .filter(|(_, is_zero)| *is_zero)
            .map(|(name, _)| PolicyError::Zero(name))
            .collect();
        // Zeros break the comparisons below as well, which would only repeat the mistake.
        if !zeros.is_empty() {
            return zeros;
        }
        let velocity_per_max = self.velocity.iter().map(|velocity| velocity.per).max();
        let durations = [
            ("lease", self.lease),
            ("retention", self.retention),
            ("tombstone", self.tombstone),
            ("longest_attempt", self.longest_attempt),
            ("wait_max", self.wait_max),
            ("store_timeout", self.store_timeout),
            ("velocity.per", velocity_per_max.unwrap_or_default()),
        ];
        let too_long = durations
            .into_iter()
            .filter(|(_, duration)| *duration > DURATION_MAX)
            .map(|(name, _)| PolicyError::TooLong(name));
        let mut mistakes: Vec<_> = too_long.collect();
        if self.lease > self.retention {
            mistakes.push(PolicyError::LeaseOverRetention {
                lease: self.lease,
                retention: self.retention,
            });
        }
        if self.body_memory_bytes_max as u64 > self.body_bytes_max {
            mistakes.push(PolicyError::MemoryOverBody {
                memory: self.body_memory_bytes_max,
                all: self.body_bytes_max,
            });
        }
        if self.wait > self.wait_max {
            mistakes.push(PolicyError::Wait {
                wait: self.wait,
                wait_max: self.wait_max,
            });
        }
        if self.lease < LEASE_MIN {
            mistakes.push(PolicyError::LeaseTooShort);
        }
        mistakes
    }

    fn mode_mistakes(&self) -> Option<PolicyError> {
        let needs_store = matches!(self.mode, Mode::Transaction | Mode::Fenced | Mode::Probe);
        match self.fail_open {
            true if !self.naturally_idempotent => Some(PolicyError::FailOpen),
            true if needs_store => Some(PolicyError::FailOpenMode(self.mode)),
            _ => None,
        }
    }

    fn name_mistakes(&self) -> Vec<PolicyError> {
        let mut mistakes = Vec::new();
        let is_reserved = |name: &&str| self.key_field.eq_ignore_ascii_case(name);
        if !field::is_name(&self.key_field) || KEY_FIELDS_RESERVED.iter().any(is_reserved) {
            mistakes.push(PolicyError::KeyField(self.key_field.clone()));
        }
        // Methods are compared as sent: a lower-case name would match no request.
        let is_method = |method: &str| {
            field::is_name(method) && !method.bytes().any(|b| b.is_ascii_lowercase())
        };
        let bad_methods = self.methods.iter().filter(|method| !is_method(method));
        mistakes.extend(bad_methods.cloned().map(PolicyError::Method));
        let is_version = |version: &str| {
            (1..=ANSWER_VERSION_BYTES_MAX).contains(&version.len())
                && !version.chars().any(char::is_control)
        };
        if self
            .answer_version
            .as_deref()
            .is_some_and(|version| !is_version(version))
        {
            mistakes.push(PolicyError::AnswerVersion);
        }
        mistakes
    }

    fn source_mistake(&self) -> Option<PolicyError> {
        if self.key == KeyRule::Issued && self.key_source != KeySource::Field {
            return Some(PolicyError::IssuedElsewhere);
        }
        match &self.key_source {
            KeySource::Field => None,
            KeySource::Body(pointer) => pointer_mistake(pointer),
            KeySource::Derived(parts) if parts.is_empty() => Some(PolicyError::DerivedFromNothing),
            KeySource::Derived(_) if self.retention > DERIVED_RETENTION_MAX => {
                Some(PolicyError::DerivedRetention(self.retention))
            }
            KeySource::Derived(_) if !self.tombstone.is_zero() => {
                Some(PolicyError::DerivedTombstone(self.tombstone))
            }
            KeySource::Derived(_) => None,
        }
    }

    /// The parts of a request by which keys are derived or counted.
    fn parts(&self) -> impl Iterator<Item = &Part> {
        let derived = if let KeySource::Derived(parts) = &self.key_source {
            &parts[..]
        } else {
            &[]
        };
        derived
            .iter()
            .chain(self.velocity.iter().map(|velocity| &velocity.by))
    }

    /// The places of the JSON body that have to be read, each once: for the key, and for the
    /// counting of new keys.
    pub fn pointers(&self) -> Vec<Pointer> {
        let key = if let KeySource::Body(pointer) = &self.key_source {
            Some(pointer)
        } else {
            None
        };
        let parts = self.parts().filter_map(|part| {
            if let Part::Body(pointer) = part {
                Some(pointer)
            } else {
                None
            }
        });
        let mut pointers = Vec::new();
        for pointer in key.into_iter().chain(parts) {
            if !pointers.contains(pointer) {
                pointers.push(pointer.clone());
            }
        }
        pointers
    }

    /// Whether requests with this method are guarded at all.
    pub fn guards(&self, method: &str) -> bool {
        self.key != KeyRule::Off && self.methods.iter().any(|guarded| **guarded == *method)
    }
}

fn part_mistake(part: &Part) -> Option<PolicyError> {
    match part {
        Part::Principal => None,
        Part::Header(name) if field::is_name(name) => None,
        Part::Header(name) => Some(PolicyError::PartHeader(name.clone())),
        Part::Body(pointer) => pointer_mistake(pointer),
    }
}

fn pointer_mistake(pointer: &Pointer) -> Option<PolicyError> {
    (!pointer.is_exact()).then(|| PolicyError::PointerToMany(pointer.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_make_sense() {
        assert_eq!(Policy::default().mistakes(), []);
    }

    fn by(by: Part, keys: u32, per: Duration) -> Policy {
        Policy {
            velocity: vec![Velocity { by, keys, per }],
            ..Policy::default()
        }
    }

    fn derived() -> KeySource {
        KeySource::Derived(vec![Part::Principal])
    }

    fn from(key_source: KeySource) -> Policy {
        Policy {
            key_source,
            retention: DERIVED_RETENTION_MAX,
            tombstone: Duration::ZERO,
            ..Policy::default()
        }
    }

    #[test]
    fn what_is_read_of_a_body_is_read_once() {
        let pointer = |text: &str| text.parse::<Pointer>().unwrap();
        let policy = Policy {
            key_source: KeySource::Derived(vec![
                Part::Body(pointer("/a")),
                Part::Principal,
                Part::Body(pointer("/b")),
            ]),
            velocity: vec![Velocity {
                by: Part::Body(pointer("/a")),
                keys: 1,
                per: Duration::from_secs(1),
            }],
            ..from(derived())
        };
        assert_eq!(policy.mistakes(), []);
        assert_eq!(policy.pointers(), [pointer("/a"), pointer("/b")]);
        assert_eq!(
            from(KeySource::Body(pointer("/k"))).pointers(),
            [pointer("/k")]
        );
    }

    #[test]
    fn contradictions_are_refused() {
        let second = Duration::from_secs(1);
        let cases = [
            (
                Policy {
                    retention: second,
                    ..Policy::default()
                },
                "lease (10s) is longer than retention (1s)",
            ),
            (
                Policy {
                    fail_open: true,
                    ..Policy::default()
                },
                "`fail_open` lets repeats through",
            ),
            (
                Policy {
                    fail_open: true,
                    naturally_idempotent: true,
                    mode: Mode::Fenced,
                    ..Policy::default()
                },
                "`fail_open` lets requests through without operation and fence, and mode fenced",
            ),
            (
                Policy {
                    attempts_max: 0,
                    ..Policy::default()
                },
                "`attempts_max` is zero",
            ),
            (
                Policy {
                    tombstone: Duration::MAX,
                    ..Policy::default()
                },
                "`tombstone` is over a hundred years",
            ),
            (
                Policy {
                    methods: vec![],
                    ..Policy::default()
                },
                "`methods` is zero",
            ),
            (
                Policy {
                    body_bytes_max: 10,
                    ..Policy::default()
                },
                "`body_memory_bytes_max` (1048576) is over",
            ),
            (
                Policy {
                    wait: second * 60,
                    ..Policy::default()
                },
                "`wait` (60s) is over",
            ),
            (
                Policy {
                    key_field: "idempotency key".into(),
                    ..Policy::default()
                },
                "`key_field` is not the name",
            ),
            (
                Policy {
                    key_field: "Hapax-Fence".into(),
                    ..Policy::default()
                },
                "`key_field` is not the name",
            ),
            (
                Policy {
                    methods: vec!["post".into()],
                    ..Policy::default()
                },
                "`methods` holds \"post\"",
            ),
            (
                Policy {
                    lease: Duration::from_micros(999),
                    ..Policy::default()
                },
                "`lease` is under a millisecond",
            ),
            (
                Policy {
                    answer_version: Some("".into()),
                    ..Policy::default()
                },
                "`answer_version` must be 1 to 255",
            ),
            (
                Policy {
                    answer_version: Some("a\nb".into()),
                    ..Policy::default()
                },
                "`answer_version` must be 1 to 255",
            ),
            (by(Part::Principal, 0, second), "`velocity.keys` is zero"),
            (
                by(Part::Principal, 1, Duration::ZERO),
                "`velocity.per` is zero",
            ),
            (
                by(Part::Principal, 1, Duration::MAX),
                "`velocity.per` is over a hundred years",
            ),
            (
                by(Part::Header("x card".into()), 1, second),
                "\"x card\" is not the name of a header field",
            ),
            (
                by(Part::Body("/cards/*".parse().unwrap()), 1, second),
                "/cards/* may name more than one value",
            ),
            (
                from(KeySource::Body("/*".parse().unwrap())),
                "/* may name more than one value",
            ),
            (
                from(KeySource::Derived(vec![])),
                "`key_source` derives a key from nothing",
            ),
            (
                from(KeySource::Derived(vec![Part::Header("".into())])),
                "\"\" is not the name of a header field",
            ),
            (
                Policy {
                    key: KeyRule::Issued,
                    ..from(derived())
                },
                "`key` is issued, but",
            ),
            (
                Policy {
                    key: KeyRule::Issued,
                    ..from(KeySource::Body("/k".parse().unwrap()))
                },
                "`key` is issued, but",
            ),
            (
                Policy {
                    retention: second * 3601,
                    ..from(derived())
                },
                "`retention` (3601s) is too long for a derived key",
            ),
            (
                Policy {
                    tombstone: second,
                    ..from(derived())
                },
                "`tombstone` (1s) must be zero",
            ),
        ];
        for (policy, message) in cases {
            let mistakes: Vec<_> = policy.mistakes().iter().map(ToString::to_string).collect();
            assert_eq!(mistakes.len(), 1, "{mistakes:?}");
            assert!(mistakes[0].starts_with(message), "{mistakes:?}");
        }
        let harmless = Policy {
            fail_open: true,
            naturally_idempotent: true,
            ..Policy::default()
        };
        assert_eq!(harmless.mistakes(), []);
    }

    #[test]
    fn all_mistakes_are_found_at_once() {
        let policy = Policy {
            lease: DURATION_MAX,
            fail_open: true,
            key_field: "content-type".into(),
            methods: vec!["post".into(), "patch".into()],
            ..Policy::default()
        };
        assert_eq!(
            policy.mistakes(),
            [
                PolicyError::LeaseOverRetention {
                    lease: DURATION_MAX,
                    retention: policy.retention
                },
                PolicyError::FailOpen,
                PolicyError::KeyField("content-type".into()),
                PolicyError::Method("post".into()),
                PolicyError::Method("patch".into()),
            ]
        );
    }
}
