//! How the parts of a record are encoded, the same in every store.

use std::fmt::Display;
use std::sync::Arc;

use hapax_core::fingerprint::FingerprintPolicy;
use hapax_core::key::Key;
use hapax_core::record::{Last, State};
use hapax_core::request_id::RequestId;
use hapax_core::scope::{Principal, Scope};
use hapax_core::store::{StoreError, StoreErrorKind};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use hapax_core::time::Timestamp;

/// The number of each state. Stores contain these numbers: never renumber.
const STATES: [(State, i16); 9] = [
    (State::Running, 1),
    (State::Completed, 2),
    (State::Failed, 3),
    (State::Retryable, 4),
    (State::Unknown, 5),
    (State::Expired(Last::Completed), 10),
    (State::Expired(Last::Failed), 11),
    (State::Expired(Last::Retryable), 12),
    (State::Expired(Last::Unknown), 13),
];

pub(super) fn state_code(state: State) -> i16 {
    let found = STATES.iter().find(|(known, _)| *known == state);
    found.expect("every state has a number").1
}

pub(super) fn state(code: i64) -> Result<State, StoreError> {
    let found = STATES.iter().find(|(_, known)| i64::from(*known) == code);
    found.map(|(state, _)| *state).ok_or_else(|| {
        StoreError::new(
            StoreErrorKind::Unsupported,
            "a record has a state this version does not know",
        )
    })
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
/// A fence, a version or a count as an SQL integer. All of them fit, unless a caller made one up.
pub(super) fn bigint(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
/// A time as an SQL integer, in microseconds.
pub(super) fn micros(time: Timestamp) -> i64 {
    bigint(time.as_micros())
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(super) fn time(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros.unsigned_abs())
}

pub(super) fn key(stored: &str) -> Result<Key, StoreError> {
    Key::new(stored)
        .map_err(|error| StoreError::corrupt("a stored key is not a key").because(error))
}

pub(super) fn request_id(stored: &str) -> Result<RequestId, StoreError> {
    RequestId::new(stored)
        .ok_or_else(|| StoreError::corrupt("a stored request id is not a request id"))
}

pub(super) fn scope(namespace: &str, principal: Option<&str>, method: &str, path: &str) -> Scope {
    Scope {
        namespace: namespace.into(),
        principal: principal.map_or(Principal::Anonymous, Principal::named),
        method: method.into(),
        path: path.into(),
    }
}

/// The principal's name; `None` for an anonymous one.
pub(super) fn principal(scope: &Scope) -> Option<&str> {
    match &scope.principal {
        Principal::Anonymous => None,
        Principal::Named(name) => Some(name),
    }
}

/// Parses a stored fingerprint policy.
pub(super) fn policy(stored: &str) -> Result<Arc<FingerprintPolicy>, StoreError> {
    stored.parse().map(Arc::new).map_err(|error| {
        StoreError::new(
            StoreErrorKind::Unsupported,
            "a record was written by a newer version of Hapax",
        )
        .because(error)
    })
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(super) fn missing_policy() -> StoreError {
    StoreError::corrupt("a record was fingerprinted by a policy that is not there")
}

pub(super) fn damaged_entry(sequence: u64) -> StoreError {
    StoreError::corrupt(format!(
        "entry {sequence} of the audit log is not as it was written: read on after it"
    ))
}

/// Adds the id of the record that stops a copy to its error.
pub(super) fn not_copied(id: impl Display, error: StoreError) -> StoreError {
    let kind = match error.kind() {
        StoreErrorKind::Unavailable => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Corrupt,
    };
    StoreError::new(kind, format!("record {id} cannot be copied: {error}")).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_survive_their_numbers() {
        let states = (0..=20).filter_map(|number| Some((number, state(number).ok()?)));
        assert_eq!(
            states
                .inspect(|(number, state)| assert_eq!(i64::from(state_code(*state)), *number))
                .count(),
            9
        );
    }
}
