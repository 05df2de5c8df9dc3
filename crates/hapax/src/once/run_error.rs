//! The errors of work without HTTP.

use std::time::Duration;

use hapax_core::key::KeyError;
use hapax_core::policy::KEY_FIELD;
use hapax_core::record::Last;
use hapax_core::rejection::{Rejection, Retry};

use super::BoxError;

/// Why [`Once::run`](super::Once::run) has no value.
///
/// `source()` is the work's own error, if the work failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The text is not a key. Nothing was begun.
    #[error("the key cannot be used: {0}")]
    Key(KeyError),
    /// The work failed and says that this attempt had no effect: see
    /// [`NotDoneExt`](super::NotDoneExt). A repeat runs it again.
    #[error("the work failed, and this attempt had no effect: run it again with the same key")]
    NotDone(#[source] BoxError),
    /// The work failed, panicked or took too long, and may have had its effect.
    #[error("the work returned no value and may have had its effect: {}", after_loss(*.repeat))]
    Lost {
        /// What the work failed with. A text, if it panicked or has not ended.
        #[source]
        error: BoxError,
        /// Whether the mode lets a repeat run the work again. In mode `hold` it does not, and the
        /// key is held until somebody [settles](crate::Hapax::settle) it.
        repeat: bool,
    },
    /// Hapax did not run the work, or has no value of it.
    #[error("{}", sentence(.0))]
    Rejected(Rejection),
    /// What the work is asked to do cannot be written as JSON. Nothing was begun.
    #[cfg(feature = "json")]
    #[error("what the work is asked to do cannot be written as JSON")]
    Request(#[source] serde_json::Error),
    /// The work was done, but the kept value cannot be read as the type asked for. Other code kept
    /// it, or the work stored another body in its transaction.
    #[cfg(feature = "json")]
    #[error(
        "the work was done under this key, but its kept value is not JSON of the type asked for"
    )]
    Value(#[source] serde_json::Error),
}

/// How long to wait before the work runs again, if nothing better is known.
const SOON: Duration = Duration::from_secs(1);

impl RunError {
    /// How long to wait before running the work again with the same key. `None` if a repeat does
    /// not help, or if a person must decide.
    pub fn retry(&self) -> Option<Duration> {
        match self {
            RunError::NotDone(_) | RunError::Lost { repeat: true, .. } => Some(SOON),
            RunError::Rejected(rejection) => match rejection.row().retry {
                Retry::After(delay) => Some(delay),
                Retry::No => None,
            },
            _ => None,
        }
    }
}

/// An attempt that was given up is lost like one that failed, so callers match one variant.
impl From<Rejection> for RunError {
    fn from(rejection: Rejection) -> Self {
        let Rejection::Lost { timed_out, repeat } = rejection else {
            return RunError::Rejected(rejection);
        };
        let why = match timed_out {
            true => {
                "the attempt has not ended (longest_attempt is over, or this process is stopping)"
            }
            false => "the attempt ended without a word",
        };
        RunError::Lost {
            error: why.into(),
            repeat,
        }
    }
}

/// What the caller should do after an attempt that may have had its effect.
fn after_loss(repeat: bool) -> &'static str {
    match repeat {
        true => "run it again with the same key",
        false => {
            "its key is held until somebody finds out what happened and settles it; do not use a new key"
        }
    }
}

/// The message of a rejection, for the caller of a job. Rejections that only an HTTP request can
/// get have the message that they have there.
fn sentence(rejection: &Rejection) -> String {
    use Rejection as R;
    let text = match rejection {
        R::InFlight { .. } => {
            "the work is running under this key already: run it again later with the same key, or wait for it (Once::wait)"
        }
        R::OutcomeUnknown => {
            "an earlier attempt under this key may have had its effect, and the key is held until somebody finds out what happened and \
             settles it; do not use a new key"
        }
        R::AnswerNotKept { .. } => {
            "the work was done under this key, but its value was not kept: look up what it did; do not use a new key"
        }
        R::KeyReused => {
            "this key was used before to ask for something else: use a new key for new work, or ask for the same as before"
        }
        R::KeyExpired {
            last: Some(last),
            is_forgotten,
        } => return expired(*last, *is_forgotten),
        R::KeyGuessable { bits_min } => {
            return format!(
                "a new key must hold at least {bits_min} random bits (key_bits_min): use a random UUID, for example; nothing was begun"
            );
        }
        R::AttemptsExhausted => {
            "the work was tried under this key as often as attempts_max allows; the last attempt had no effect: find out whether an \
             earlier one was lost before you use a new key"
        }
        R::TooManyKeys => {
            "this node runs as many attempts as it may (attempts_in_flight_max): nothing was begun; run it again later with the same key"
        }
        R::KeysTooFast { .. } => {
            "more new keys came in a short time than velocity allows: nothing was begun; run it again later with the same key"
        }
        R::QuotaReached => {
            "this principal has as many records or kept bytes as one may have (records_per_principal_max, \
             bytes_per_principal_max): nothing was begun; there is room when older records have expired"
        }
        R::StoreFull => {
            "the store holds as many records as it may (records_max): nothing was begun; there is room when older records have expired"
        }
        R::NotJoined => {
            "the work returned a value, but did not complete its record in its transaction (Operation::finish), so its outcome is unknown: \
             find out what happened and settle it; do not use a new key"
        }
        R::StoreUnavailable => {
            "the store did not answer in time (store_timeout): run it again later with the same key; do not use a new key"
        }
        R::Draining => {
            "this process is stopping and begins nothing new: run it again with the same key, elsewhere or later"
        }
        R::AnswerCorrupt => {
            "what the store holds under this key is damaged, and the work may have been done: do not use a new key"
        }
        other => return other.detail(KEY_FIELD),
    };
    text.to_owned()
}

fn expired(last: Last, is_forgotten: bool) -> String {
    let why = match is_forgotten {
        true => "an operator had the record of this key erased",
        false => "the time for which the value is kept under this key (retention) is over",
    };
    let what = match last {
        Last::Completed => "the work was done: do not use a new key",
        Last::Failed => "the work was refused",
        Last::Retryable => {
            "the last attempt had no effect: find out whether an earlier one was lost before you use a new key"
        }
        Last::Unknown => {
            "an attempt may have had its effect: find out what happened before you use a new key"
        }
    };
    format!("{why}; {what}")
}

#[cfg(test)]
mod tests {
    use hapax_core::time::Timestamp;

    use super::*;
    use crate::once::because;

    /// Every rejection that the engine gives to a caller without HTTP, except `Lost`.
    fn of_jobs() -> Vec<Rejection> {
        use Rejection as R;
        let mut all = vec![
            R::in_flight(Duration::ZERO),
            R::OutcomeUnknown,
            R::AnswerNotKept {
                status: Some(200),
                at: Timestamp::from_micros(1),
            },
            R::KeyReused,
            R::KeyGuessable { bits_min: 60 },
            R::AttemptsExhausted,
            R::TooManyKeys,
            R::KeysTooFast { retry_after: SOON },
            R::QuotaReached,
            R::StoreFull,
            R::NotJoined,
            R::StoreUnavailable,
            R::Draining,
            R::AnswerCorrupt,
        ];
        for last in [
            Last::Completed,
            Last::Failed,
            Last::Retryable,
            Last::Unknown,
        ] {
            all.extend([true, false].map(|is_forgotten| R::KeyExpired {
                last: Some(last),
                is_forgotten,
            }));
        }
        all
    }

    #[test]
    fn rejections_of_jobs_do_not_speak_of_http() {
        const OF_HTTP: [&str; 9] = [
            "request",
            "retry-after",
            "header",
            "upstream",
            "service",
            "answered",
            "connection",
            "idempotency-",
            "send",
        ];
        let mut errors: Vec<_> = of_jobs().into_iter().map(RunError::from).collect();
        for timed_out in [true, false] {
            errors.extend([true, false].map(|repeat| Rejection::Lost { timed_out, repeat }.into()));
        }
        for error in errors {
            let said = because(&error).to_lowercase();
            for word in OF_HTTP {
                assert!(!said.contains(word), "{word} in {said:?}");
            }
        }
    }

    #[test]
    fn it_says_when_to_run_again() {
        let error = || BoxError::from("no");
        let lost = |repeat| RunError::Lost {
            error: error(),
            repeat,
        };
        assert_eq!(RunError::Key(KeyError::Empty).retry(), None);
        assert_eq!(RunError::NotDone(error()).retry(), Some(SOON));
        assert_eq!(lost(true).retry(), Some(SOON));
        assert_eq!(lost(false).retry(), None);
        for rejection in of_jobs() {
            let after = match rejection.row().retry {
                Retry::After(delay) => Some(delay),
                Retry::No => None,
            };
            assert_eq!(RunError::Rejected(rejection).retry(), after);
        }
    }
}
