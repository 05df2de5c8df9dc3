//! The policy of a route: what it promises, and every limit it keeps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::field;
use crate::fingerprint::FingerprintPolicy;
use crate::outcome::Class;

/// What a route promises, and does after a lost attempt. See `docs/guarantees.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// At most one dispatch, until the upstream itself answers with a release-class status. A lost attempt is held as unknown.
    #[default]
    Hold,
    /// The owner says that running twice is harmless: a lost attempt is followed by another.
    Rerun,
}

impl Mode {
    /// The word for it, as configuration and metrics spell it.
    pub const fn word(self) -> &'static str {
        match self {
            Mode::Hold => "hold",
            Mode::Rerun => "rerun",
        }
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

/// What a route promises, and every limit it keeps. The defaults are those of `docs/http.md`.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// What it promises, and does after a lost attempt.
    pub mode: Mode,
    /// Whether it wants a key.
    pub key: KeyRule,
    /// The field that carries the key.
    pub key_field: Arc<str>,
    /// Take only the quoted form of a key.
    pub strict_key: bool,
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
    /// Hold every 5xx as unknown.
    pub strict: bool,
    /// What a status means on this route, where it differs from the general rule.
    pub classes: BTreeMap<u16, Class>,
    /// Keep answers for replay.
    pub keep_answers: bool,
    /// The largest answer that is kept; a larger one is sent but not kept.
    pub answer_bytes_max: usize,
    /// Replay `Set-Cookie` to later callers too.
    pub replay_cookies: bool,
    /// How much of a request body is held in memory before the rest is spilled to a file.
    pub body_memory_bytes_max: usize,
    /// The largest request body; a larger one is refused.
    pub body_bytes_max: u64,
    /// How long one step of a request waits for the store.
    pub store_timeout: Duration,
    /// The owner declares that a repeated effect is harmless here, with or without a record.
    pub naturally_idempotent: bool,
    /// Let requests through unguarded while the store is unreachable. Only where [`Policy::naturally_idempotent`].
    pub fail_open: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            mode: Mode::Hold,
            key: KeyRule::Optional,
            key_field: "idempotency-key".into(),
            strict_key: false,
            methods: vec!["POST".into(), "PATCH".into()],
            fingerprint: Arc::default(),
            retention: Duration::from_secs(24 * 60 * 60),
            tombstone: Duration::from_secs(7 * 24 * 60 * 60),
            lease: Duration::from_secs(10),
            longest_attempt: Duration::from_secs(5 * 60),
            // Enough for a client that backs off through a day of release-class answers; a bound all the same.
            attempts_max: 100,
            wait: Duration::ZERO,
            wait_max: Duration::from_secs(30),
            strict: false,
            classes: BTreeMap::new(),
            keep_answers: true,
            answer_bytes_max: 1 << 20,
            replay_cookies: false,
            body_memory_bytes_max: 1 << 20,
            body_bytes_max: 64 << 20,
            store_timeout: Duration::from_secs(2),
            naturally_idempotent: false,
            fail_open: false,
        }
    }
}

/// Shorter leases could not be renewed in time by anybody.
const LEASE_MIN: Duration = Duration::from_millis(1);

/// Fields that a request carries for another purpose, or that are taken off it.
const KEY_FIELDS_RESERVED: [&str; 15] = [
    "accept-encoding",
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "hapax-fence",
    "hapax-keep",
    "hapax-operation",
    "host",
    "idempotency-deadline",
    "idempotency-expires",
    "idempotent-replayed",
    "prefer",
    "transfer-encoding",
];

/// Longer than any of this is meant for, and short enough for every store's and runtime's arithmetic.
const DURATION_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// A policy that contradicts itself. Found at start, never at a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A repeat could find the record expired while its attempt still runs.
    #[error("lease ({lease:?}) is longer than retention ({retention:?}): shorten `lease` or lengthen `retention`")]
    LeaseOverRetention {
        /// The lease as set.
        lease: Duration,
        /// The retention as set.
        retention: Duration,
    },
    /// Without a store nothing stops a second effect.
    #[error("`fail_open` lets repeats through while the store is away: set `naturally_idempotent` too, or leave it off")]
    FailOpen,
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
        ];
        if let Some((name, _)) = durations.into_iter().find(|(_, duration)| *duration > DURATION_MAX) {
            return Err(PolicyError::TooLong(name));
        }
        if self.lease > self.retention {
            return Err(PolicyError::LeaseOverRetention { lease: self.lease, retention: self.retention });
        }
        if self.fail_open && !self.naturally_idempotent {
            return Err(PolicyError::FailOpen);
        }
        if self.body_memory_bytes_max as u64 > self.body_bytes_max {
            return Err(PolicyError::MemoryOverBody { memory: self.body_memory_bytes_max, all: self.body_bytes_max });
        }
        if self.wait > self.wait_max {
            return Err(PolicyError::Wait { wait: self.wait, wait_max: self.wait_max });
        }
        if !field::is_name(&self.key_field) || KEY_FIELDS_RESERVED.iter().any(|name| self.key_field.eq_ignore_ascii_case(name)) {
            return Err(PolicyError::KeyField(self.key_field.clone()));
        }
        // Methods are compared as they are sent: in lower case this one would guard nothing.
        let is_method = |method: &str| field::is_name(method) && !method.bytes().any(|b| b.is_ascii_lowercase());
        if let Some(method) = self.methods.iter().find(|method| !is_method(method)) {
            return Err(PolicyError::Method(method.clone()));
        }
        if self.lease < LEASE_MIN {
            return Err(PolicyError::LeaseTooShort);
        }
        Ok(())
    }

    /// Whether requests with this method are guarded at all.
    pub fn guards(&self, method: &str) -> bool {
        self.key != KeyRule::Off && self.methods.iter().any(|guarded| **guarded == *method)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_make_sense() {
        Policy::default().validate().unwrap();
    }

    #[test]
    fn contradictions_are_refused() {
        let second = Duration::from_secs(1);
        let cases = [
            (Policy { retention: second, ..Policy::default() }, "lease (10s) is longer than retention (1s)"),
            (Policy { fail_open: true, ..Policy::default() }, "`fail_open` lets repeats through"),
            (Policy { attempts_max: 0, ..Policy::default() }, "`attempts_max` is zero"),
            (Policy { tombstone: Duration::MAX, ..Policy::default() }, "`tombstone` is over a hundred years"),
            (Policy { methods: vec![], ..Policy::default() }, "`methods` is zero"),
            (Policy { body_bytes_max: 10, ..Policy::default() }, "`body_memory_bytes_max` (1048576) is over"),
            (Policy { wait: second * 60, ..Policy::default() }, "`wait` (60s) is over"),
            (Policy { key_field: "idempotency key".into(), ..Policy::default() }, "`key_field` is not the name"),
            (Policy { key_field: "Hapax-Fence".into(), ..Policy::default() }, "`key_field` is not the name"),
            (Policy { methods: vec!["post".into()], ..Policy::default() }, "`methods` holds \"post\""),
            (Policy { lease: Duration::from_micros(999), ..Policy::default() }, "`lease` is under a millisecond"),
        ];
        for (policy, message) in cases {
            let error = policy.validate().unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
        Policy { fail_open: true, naturally_idempotent: true, ..Policy::default() }.validate().unwrap();
    }
}
