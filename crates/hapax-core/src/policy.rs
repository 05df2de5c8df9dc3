//! The policy of a route: what it promises, and every limit it keeps.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::field;
use crate::fingerprint::{FingerprintPolicy, Pointer};
use crate::outcome::Class;

/// What a route promises, and does after a lost attempt. See `docs/guarantees.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// At most one dispatch, until the upstream itself answers with a release-class status. A lost
    /// attempt is held as unknown.
    #[default]
    Hold,
    /// The owner says that running twice is harmless: a lost attempt is followed by another.
    Rerun,
    /// Effect and record commit in one transaction, or neither does. A lost attempt was rolled
    /// back, so it is followed by another, which fences it out.
    Transaction,
    /// The upstream keeps fence, mark and answer for each operation, and refuses lower fences: a
    /// lost attempt is followed by another.
    Fenced,
    /// The upstream is asked what became of a lost attempt, and bars it: only then is it followed
    /// by another.
    Probe,
}

impl Mode {
    /// All of them, the strongest promise first.
    pub const ALL: [Mode; 5] = [
        Mode::Transaction,
        Mode::Fenced,
        Mode::Probe,
        Mode::Hold,
        Mode::Rerun,
    ];

    /// The word for it, as configuration and metrics spell it.
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

/// Whether a route wants a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum KeyRule {
    /// A request without a key is refused.
    Required,
    /// A request without a key passes untouched.
    #[default]
    Optional,
    /// Only keys this server issued are taken; a request without one is refused.
    Issued,
    /// Keys are ignored.
    Off,
}

impl KeyRule {
    /// The word for it, as configuration and listings spell it.
    pub const fn word(self) -> &'static str {
        match self {
            KeyRule::Required => "required",
            KeyRule::Optional => "optional",
            KeyRule::Issued => "issued",
            KeyRule::Off => "off",
        }
    }
}

/// Where a request says which key it means.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum KeySource {
    /// In the field [`Policy::key_field`].
    #[default]
    Field,
    /// In the JSON body, at this place: as APIs with a `ClientToken` have it.
    Body(Pointer),
    /// Nowhere: it is made of these, so that requests which agree in all of them have the same one.
    /// For callers that send no key, and for a short time only ([`DERIVED_RETENTION_MAX`]), since
    /// somebody may well mean two things with the same words. Whether two requests with one key are
    /// the same still says the fingerprint.
    Derived(Vec<Part>),
}

/// A part of a request by which others are told apart or counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Who is asking.
    Principal,
    /// A header field, in lower case.
    Header(Arc<str>),
    /// A value of the JSON body.
    Body(Pointer),
}

/// How many new keys there may be in a time, of those that have a part in common. Replays are free.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Velocity {
    /// What they have in common.
    pub by: Part,
    /// So many new keys
    pub keys: u32,
    /// in this time.
    pub per: Duration,
}

/// What a route promises, and every limit it keeps. The defaults are those of `docs/http.md`.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// What it promises, and does after a lost attempt.
    pub mode: Mode,
    /// Whether it wants a key.
    pub key: KeyRule,
    /// The field that carries the key.
    pub key_field: Arc<str>,
    /// Where the key is.
    pub key_source: KeySource,
    /// Take only the quoted form of a key.
    pub strict_key: bool,
    /// Refuse keys that carry less than so many bits, as far as their spelling tells. None are,
    /// with zero.
    pub key_bits_min: u32,
    /// The methods that are guarded; others pass untouched.
    pub methods: Vec<Arc<str>>,
    /// What the fingerprint covers.
    pub fingerprint: Arc<FingerprintPolicy>,
    /// How long a finished record replays.
    pub retention: Duration,
    /// How long a tombstone stands after that.
    pub tombstone: Duration,
    /// How long an attempt may go without renewing.
    pub lease: Duration,
    /// How long an attempt may run before it counts as lost.
    pub longest_attempt: Duration,
    /// How many attempts one key may begin.
    pub attempts_max: u32,
    /// How long a repeat waits for a running attempt when it does not say.
    pub wait: Duration,
    /// How long a repeat may wait at the most (`Prefer: wait`).
    pub wait_max: Duration,
    /// What a status means on this route, where it differs from the general rule.
    pub classes: BTreeMap<u16, Class>,
    /// How many new keys there may be in a time.
    pub velocity: Vec<Velocity>,
    /// Keep answers for replay.
    pub keep_answers: bool,
    /// What shape answers have now. One that was kept under another is not replayed: its effect is
    /// done, its answer counts as not kept.
    pub answer_version: Option<Arc<str>>,
    /// The largest answer that is kept; a larger one is sent but not kept.
    pub answer_bytes_max: usize,
    /// Replay `Set-Cookie` to later callers too.
    pub replay_cookies: bool,
    /// Whether an answer is kept whose end was only the end of its connection: one that broke off
    /// looks the same.
    pub keep_close_delimited: bool,
    /// How much of a request body is held in memory before the rest is spilled to a file.
    pub body_memory_bytes_max: usize,
    /// The largest request body; a larger one is refused.
    pub body_bytes_max: u64,
    /// How long one step of a request waits for the store.
    pub store_timeout: Duration,
    /// The owner declares that a repeated effect is harmless here, with or without a record.
    pub naturally_idempotent: bool,
    /// Let requests through unguarded while the store is unreachable. Only where
    /// [`Policy::naturally_idempotent`].
    pub fail_open: bool,
    /// Only watch: count what would have been replayed or refused, and let everything through.
    pub shadow: bool,
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
            // Enough for a client that backs off through a day of release-class answers; a bound
            // all the same.
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
        }
    }
}

/// Shorter leases could not be renewed in time by anybody.
const LEASE_MIN: Duration = Duration::from_millis(1);

/// Fields that a request carries for another purpose, or that are taken off it.
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

/// The longest retention of a key that is derived. A caller who says the same again after that
/// means it.
pub const DERIVED_RETENTION_MAX: Duration = Duration::from_secs(60 * 60);

/// The longest name of a version of answers.
const ANSWER_VERSION_BYTES_MAX: usize = 255;

/// Longer than any of this is meant for, and short enough for every store's and runtime's
/// arithmetic.
const DURATION_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// A policy that contradicts itself. Found at start, never at a request.
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
    /// Without a store nothing stops a second effect.
    #[error(
        "`fail_open` lets repeats through while the store is away: set `naturally_idempotent` too, or leave it off"
    )]
    FailOpen,
    /// What the mode needs is in no request that is let through.
    #[error("`fail_open` lets requests through without operation and fence, and mode {} cannot do without: leave it off", .0.word())]
    FailOpenMode(Mode),
    /// A limit that would refuse everything.
    #[error("`{0}` is zero: nothing could ever run")]
    Zero(&'static str),
    /// Memory would hold more than a body may have.
    #[error("`body_memory_bytes_max` ({memory}) is over `body_bytes_max` ({all})")]
    MemoryOverBody {
        /// The part held in memory, as set.
        memory: usize,
        /// The whole, as set.
        all: u64,
    },
    /// Nothing is remembered for that long.
    #[error("`{0}` is over a hundred years")]
    TooLong(&'static str),
    /// The field name is not one HTTP allows, or one that means something else.
    #[error("`key_field` is not the name of a header field that can carry a key: {0:?}")]
    KeyField(Arc<str>),
    /// The method is not spelled as it is sent.
    #[error("`methods` holds {0:?}: write methods as they are sent, in upper case")]
    Method(Arc<str>),
    /// Renewing could not keep up.
    #[error("`lease` is under a millisecond")]
    LeaseTooShort,
    /// The route would wait longer than it allows anyone to.
    #[error("`wait` ({wait:?}) is over `wait_max` ({wait_max:?})")]
    Wait {
        /// The wait as set.
        wait: Duration,
        /// Its limit as set.
        wait_max: Duration,
    },
    /// Issued keys come in a field.
    #[error(
        "`key` is issued, but `key_source` does not take it from the key field: a caller could not send what it was issued"
    )]
    IssuedElsewhere,
    /// A legitimate second request would be answered with what the first one got.
    #[error(
        "`retention` ({0:?}) is too long for a derived key: at most an hour, since somebody may mean the same words twice"
    )]
    DerivedRetention(Duration),
    /// A legitimate later request would find that its key has expired, and has no other to send.
    #[error(
        "`tombstone` ({0:?}) must be zero where the key is derived: a later request could not use a new key"
    )]
    DerivedTombstone(Duration),
    /// Every request of a path would be the same one.
    #[error("`key_source` derives a key from nothing: name at least one part")]
    DerivedFromNothing,
    /// The field name is not one HTTP allows.
    #[error("{0:?} is not the name of a header field")]
    PartHeader(Arc<str>),
    /// A `*` names any number of values.
    #[error("{0} may name more than one value: write a pointer without `*`")]
    PointerToMany(Pointer),
    /// Nothing of the caller's could commit together with its record.
    #[error(
        "`mode` is transaction, but this store takes no part in a caller's transaction: keep records in the Postgres database of \
         the effects, or in its SQLite file"
    )]
    NoTransactions,
    /// Nobody can be asked what became of a lost attempt.
    #[error("`mode` is probe, but there is no probe to ask what became of a lost attempt")]
    NoProbe,
    /// No version at all is `None`.
    #[error(
        "`answer_version` must be 1 to {ANSWER_VERSION_BYTES_MAX} bytes without control characters"
    )]
    AnswerVersion,
}

/// As configuration spells it.
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
    /// Whether the settings make sense together.
    pub fn validate(&self) -> Result<(), PolicyError> {
        let zeros = [
            ("lease", self.lease.is_zero()),
            ("retention", self.retention.is_zero()),
            ("longest_attempt", self.longest_attempt.is_zero()),
            ("attempts_max", self.attempts_max == 0),
            ("body_bytes_max", self.body_bytes_max == 0),
            ("store_timeout", self.store_timeout.is_zero()),
            ("methods", self.methods.is_empty()),
            (
                "velocity.keys",
                self.velocity.iter().any(|velocity| velocity.keys == 0),
            ),
            (
                "velocity.per",
                self.velocity.iter().any(|velocity| velocity.per.is_zero()),
            ),
        ];
        if let Some((name, _)) = zeros.into_iter().find(|(_, is_zero)| *is_zero) {
            return Err(PolicyError::Zero(name));
        }
        let durations = [
            ("lease", self.lease),
            ("retention", self.retention),
            ("tombstone", self.tombstone),
            ("longest_attempt", self.longest_attempt),
            ("wait_max", self.wait_max),
            ("store_timeout", self.store_timeout),
            (
                "velocity.per",
                self.velocity
                    .iter()
                    .map(|velocity| velocity.per)
                    .max()
                    .unwrap_or_default(),
            ),
        ];
        if let Some((name, _)) = durations
            .into_iter()
            .find(|(_, duration)| *duration > DURATION_MAX)
        {
            return Err(PolicyError::TooLong(name));
        }
        if self.lease > self.retention {
            return Err(PolicyError::LeaseOverRetention {
                lease: self.lease,
                retention: self.retention,
            });
        }
        if self.fail_open && !self.naturally_idempotent {
            return Err(PolicyError::FailOpen);
        }
        if self.fail_open && matches!(self.mode, Mode::Transaction | Mode::Fenced | Mode::Probe) {
            return Err(PolicyError::FailOpenMode(self.mode));
        }
        if self.body_memory_bytes_max as u64 > self.body_bytes_max {
            return Err(PolicyError::MemoryOverBody {
                memory: self.body_memory_bytes_max,
                all: self.body_bytes_max,
            });
        }
        if self.wait > self.wait_max {
            return Err(PolicyError::Wait {
                wait: self.wait,
                wait_max: self.wait_max,
            });
        }
        if !field::is_name(&self.key_field)
            || KEY_FIELDS_RESERVED
                .iter()
                .any(|name| self.key_field.eq_ignore_ascii_case(name))
        {
            return Err(PolicyError::KeyField(self.key_field.clone()));
        }
        // Methods are compared as they are sent: in lower case this one would guard nothing.
        let is_method = |method: &str| {
            field::is_name(method) && !method.bytes().any(|b| b.is_ascii_lowercase())
        };
        if let Some(method) = self.methods.iter().find(|method| !is_method(method)) {
            return Err(PolicyError::Method(method.clone()));
        }
        if self.lease < LEASE_MIN {
            return Err(PolicyError::LeaseTooShort);
        }
        let is_version = |version: &str| {
            (1..=ANSWER_VERSION_BYTES_MAX).contains(&version.len())
                && !version.chars().any(char::is_control)
        };
        if self
            .answer_version
            .as_deref()
            .is_some_and(|version| !is_version(version))
        {
            return Err(PolicyError::AnswerVersion);
        }
        self.validate_source()?;
        self.parts().try_for_each(validate_part)
    }

    fn validate_source(&self) -> Result<(), PolicyError> {
        if self.key == KeyRule::Issued && self.key_source != KeySource::Field {
            return Err(PolicyError::IssuedElsewhere);
        }
        match &self.key_source {
            KeySource::Field => Ok(()),
            KeySource::Body(pointer) => validate_pointer(pointer),
            KeySource::Derived(parts) if parts.is_empty() => Err(PolicyError::DerivedFromNothing),
            KeySource::Derived(_) if self.retention > DERIVED_RETENTION_MAX => {
                Err(PolicyError::DerivedRetention(self.retention))
            }
            KeySource::Derived(_) if !self.tombstone.is_zero() => {
                Err(PolicyError::DerivedTombstone(self.tombstone))
            }
            KeySource::Derived(_) => Ok(()),
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

    /// The places of the JSON body that have to be read, each once: for the key, and for what new
    /// keys are counted by.
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

fn validate_part(part: &Part) -> Result<(), PolicyError> {
    match part {
        Part::Principal => Ok(()),
        Part::Header(name) if field::is_name(name) => Ok(()),
        Part::Header(name) => Err(PolicyError::PartHeader(name.clone())),
        Part::Body(pointer) => validate_pointer(pointer),
    }
}

fn validate_pointer(pointer: &Pointer) -> Result<(), PolicyError> {
    if pointer.is_exact() {
        Ok(())
    } else {
        Err(PolicyError::PointerToMany(pointer.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_make_sense() {
        Policy::default().validate().unwrap();
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
        policy.validate().unwrap();
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
            let error = policy.validate().unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
        Policy {
            fail_open: true,
            naturally_idempotent: true,
            ..Policy::default()
        }
        .validate()
        .unwrap();
    }
}
