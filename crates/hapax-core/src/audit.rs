//! The audit log: what operators did by hand, who did it and why.
//!
//! A store writes an entry in the same step as the change it describes: either both exist or
//! neither. A change whose condition did not hold leaves no entry. Entries outlive their records:
//! forgetting a key does not erase who forgot it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::key::Key;
use crate::record::{Fence, Head, State};
use crate::scope::{RecordId, Scope};
use crate::store::{Change, Put};
use crate::time::Timestamp;

/// How long an entry is kept: a year and some time to read it. The sweep removes older entries;
/// nothing else removes any.
pub const KEPT_FOR: Duration = Duration::from_secs(400 * 24 * 60 * 60);
/// The longest `by`, in bytes.
pub const BY_BYTES_MAX: usize = 255;
/// The longest `reason`, in bytes.
pub const REASON_BYTES_MAX: usize = 2_000;
/// The longest name of an action, in bytes.
pub const ACTION_BYTES_MAX: usize = 64;
/// The most entries in one page.
pub const PAGE_MAX: usize = 1_000;

/// Who did something by hand, and why. Neither text is empty or longer than its limit; both are
/// kept verbatim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Signed {
    by: Arc<str>,
    reason: Arc<str>,
}

/// Why a signature is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignedError {
    /// Who or why is missing.
    #[error("say who does this and why")]
    Unsaid,
    /// A text is longer than its limit.
    #[error("`{what}` is {found} bytes long, and at most {max} are kept: say it shorter")]
    TooLong {
        /// `by`, `reason` or `action`.
        what: &'static str,
        /// Its length in bytes.
        found: usize,
        /// The limit in bytes.
        max: usize,
    },
}

impl Signed {
    /// Checks and keeps both texts.
    pub fn new(by: &str, reason: &str) -> Result<Signed, SignedError> {
        if by.trim().is_empty() || reason.trim().is_empty() {
            return Err(SignedError::Unsaid);
        }
        Ok(Signed {
            by: bounded("by", by, BY_BYTES_MAX)?,
            reason: bounded("reason", reason, REASON_BYTES_MAX)?,
        })
    }

    /// Who did it.
    pub fn by(&self) -> &str {
        &self.by
    }

    /// Why it was done.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

fn bounded(what: &'static str, text: &str, max: usize) -> Result<Arc<str>, SignedError> {
    if text.len() > max {
        Err(SignedError::TooLong {
            what,
            found: text.len(),
            max,
        })
    } else {
        Ok(text.into())
    }
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// An unknown was settled.
    Settle,
    /// A record was forgotten.
    Forget,
    /// An action that changes no record, with its own name.
    Other(Arc<str>),
}

impl Action {
    /// The name of this action, as stored and printed.
    pub fn word(&self) -> &str {
        match self {
            Action::Settle => "settle",
            Action::Forget => "forget",
            Action::Other(word) => word,
        }
    }

    /// The action with this name.
    pub fn of(word: &str) -> Action {
        match word {
            "settle" => Action::Settle,
            "forget" => Action::Forget,
            word => Action::Other(word.into()),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// An action by hand that changes no record but belongs in the log, such as a configuration reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    action: Arc<str>,
    signed: Signed,
}

impl Note {
    /// Makes a note. The author chooses the name of the action; names of changes to records are
    /// refused.
    pub fn new(action: &str, signed: Signed) -> Result<Note, SignedError> {
        if action.trim().is_empty() || !matches!(Action::of(action), Action::Other(_)) {
            return Err(SignedError::Unsaid);
        }
        Ok(Note {
            action: bounded("action", action, ACTION_BYTES_MAX)?,
            signed,
        })
    }
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// The entry's number. Numbers count up from one without gaps, in the order in which entries
    /// became visible, so a reader that has read up to a number has missed no earlier entry.
    pub sequence: u64,
    /// The store's time of the change.
    pub at: Timestamp,
    /// What was done.
    pub action: Action,
    /// Who did it, and why.
    pub signed: Signed,
    /// The record that was changed, if any.
    pub touched: Option<Touched>,
}

/// A record that was changed by hand, before and after the change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Its id in the store.
    pub id: RecordId,
    /// Namespace, principal and operation.
    pub scope: Arc<Scope>,
    /// The caller's key.
    pub key: Key,
    /// When this life of the key began. Zero in entries from versions that did not write it.
    pub created_at: Timestamp,
    /// Its state before the change, by the store's clock.
    pub before: State,
    /// Its state after the change.
    pub after: State,
    /// Its status after the change, if it has one.
    pub status: Option<u16>,
    /// The fence that the change minted.
    pub fence: Fence,
    /// Its version after the change.
    pub version: u64,
}

impl LogEntry {
    /// The entry for a write that won. Only a change by hand has one. The store assigns the number.
    pub fn of(put: &Put, before: Option<&Head>, after: &Head, now: Timestamp) -> Option<LogEntry> {
        let (action, signed) = match &put.change {
            Change::Settle(_, signed) => (Action::Settle, signed.clone()),
            Change::Forget(_, signed) => (Action::Forget, signed.clone()),
            Change::Claim(_) | Change::Finish(_) | Change::Lose(_) => return None,
        };
        let touched = Touched {
            id: after.id,
            scope: after.scope.clone(),
            key: after.key.clone(),
            created_at: after.created_at,
            before: before?.state_at(now),
            after: after.state,
            status: after.status,
            fence: after.fence,
            version: after.version,
        };
        Some(LogEntry {
            sequence: 0,
            at: now,
            action,
            signed,
            touched: Some(touched),
        })
    }

    /// The entry for a note. The store assigns the number.
    pub fn noted(note: Note, now: Timestamp) -> LogEntry {
        LogEntry {
            sequence: 0,
            at: now,
            action: Action::Other(note.action),
            signed: note.signed,
            touched: None,
        }
    }
}

/// Which entries to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogQuery {
    /// Only entries about this record.
    pub record: Option<RecordId>,
    /// Where to start, and in which direction.
    pub from: Start,
    /// The most entries to return; [`PAGE_MAX`] applies as well.
    pub limit: usize,
}

/// Where a page of the log begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// After this number, oldest first: to continue from an earlier page. Zero is the beginning.
    After(u64),
    /// Before this number, newest first.
    Before(u64),
    /// At the end, newest first.
    End,
}

impl LogQuery {
    /// The latest entries.
    pub fn latest(limit: usize) -> LogQuery {
        LogQuery {
            record: None,
            from: Start::End,
            limit,
        }
    }

    /// The entries after this number.
    pub fn after(sequence: u64, limit: usize) -> LogQuery {
        LogQuery {
            record: None,
            from: Start::After(sequence),
            limit,
        }
    }

    /// Limits the query to one record.
    #[must_use]
    pub fn of(self, record: RecordId) -> LogQuery {
        LogQuery {
            record: Some(record),
            ..self
        }
    }

    /// The most entries a store returns for this query.
    pub fn rows(&self) -> usize {
        self.limit.min(PAGE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_signs_without_saying_who_and_why_or_at_any_length() {
        assert_eq!(Signed::new("ada", " \n"), Err(SignedError::Unsaid));
        assert_eq!(Signed::new("", "because"), Err(SignedError::Unsaid));
        assert!(Signed::new(&"a".repeat(BY_BYTES_MAX), &"b".repeat(REASON_BYTES_MAX)).is_ok());
        let error = Signed::new("ada", &"b".repeat(REASON_BYTES_MAX + 1)).unwrap_err();
        assert_eq!(
            error,
            SignedError::TooLong {
                what: "reason",
                found: REASON_BYTES_MAX + 1,
                max: REASON_BYTES_MAX
            }
        );
        assert!(
            Signed::new(&"é".repeat(BY_BYTES_MAX / 2 + 1), "because").is_err(),
            "bytes count, not characters"
        );
    }

    #[test]
    fn a_note_cannot_pass_for_a_change_of_a_record() {
        let signed = Signed::new("ada", "because").unwrap();
        for word in ["settle", "forget", "", " "] {
            assert!(Note::new(word, signed.clone()).is_err(), "{word:?}");
        }
        assert!(Note::new("reload", signed).is_ok());
    }
}
