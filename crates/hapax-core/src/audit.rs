//! The audit log: what was done by hand, by whom and why.
//!
//! A store writes an entry in the same step as the change it is about, so that neither is there
//! without the other; a change that lost leaves none. Entries outlive their records: forgetting a
//! key does not forget who had it forgotten.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::key::Key;
use crate::record::{Fence, Head, State};
use crate::scope::{RecordId, Scope};
use crate::store::{Change, Put};
use crate::time::Timestamp;

/// How long an entry is kept: a year, and time to look at it. Older ones go with the sweep; nothing
/// else removes any.
pub const KEPT_FOR: Duration = Duration::from_secs(400 * 24 * 60 * 60);
/// The longest `by`.
pub const BY_BYTES_MAX: usize = 255;
/// The longest `reason`.
pub const REASON_BYTES_MAX: usize = 2_000;
/// The longest word for what was done.
pub const ACTION_BYTES_MAX: usize = 64;
/// Entries in one page, however many are asked for.
pub const PAGE_MAX: usize = 1_000;

/// Who did something by hand, and why. Both are said, and neither is longer than its limit;
/// otherwise they are kept as they are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Signed {
    by: Arc<str>,
    reason: Arc<str>,
}

/// Why nobody can sign like this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignedError {
    /// Who or why was not said.
    #[error("say who does this and why")]
    Unsaid,
    /// More was said than is kept.
    #[error("`{what}` is {found} bytes long, and at most {max} are kept: say it shorter")]
    TooLong {
        /// `by`, `reason` or `action`.
        what: &'static str,
        /// How long it is.
        found: usize,
        /// How long it may be.
        max: usize,
    },
}

impl Signed {
    /// Signs.
    pub fn new(by: &str, reason: &str) -> Result<Signed, SignedError> {
        if by.trim().is_empty() || reason.trim().is_empty() {
            return Err(SignedError::Unsaid);
        }
        Ok(Signed {
            by: bounded("by", by, BY_BYTES_MAX)?,
            reason: bounded("reason", reason, REASON_BYTES_MAX)?,
        })
    }

    /// Who.
    pub fn by(&self) -> &str {
        &self.by
    }

    /// Why.
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
    /// Something that changes no record, in a word of its own.
    Other(Arc<str>),
}

impl Action {
    /// The word for it, as it is stored and printed.
    pub fn word(&self) -> &str {
        match self {
            Action::Settle => "settle",
            Action::Forget => "forget",
            Action::Other(word) => word,
        }
    }

    /// What a word stands for.
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

/// Something done by hand that changes no record, and is to be found in the log all the same: a
/// configuration that was loaded anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    action: Arc<str>,
    signed: Signed,
}

impl Note {
    /// A note. Its word is its author's own, and not one of those for changes of records.
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
    /// Its number: counted up from one without gaps, in the order in which entries became visible,
    /// so that whoever has read up to one of them has missed none.
    pub sequence: u64,
    /// The store's time of the change.
    pub at: Timestamp,
    /// What was done.
    pub action: Action,
    /// Who, and why.
    pub signed: Signed,
    /// The record that was changed, if it was one.
    pub touched: Option<Touched>,
}

/// A record that was changed by hand, as it was and as it became.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Its name in the store.
    pub id: RecordId,
    /// Whose it was, for which operation.
    pub scope: Arc<Scope>,
    /// The caller's key.
    pub key: Key,
    /// When this life of the key began. Zero in an entry that was written before entries had it.
    pub created_at: Timestamp,
    /// Its state before, by the store's clock.
    pub before: State,
    /// Its state after.
    pub after: State,
    /// The status it has now, if it has one.
    pub status: Option<u16>,
    /// The fence it was given.
    pub fence: Fence,
    /// Its version after.
    pub version: u64,
}

impl LogEntry {
    /// The entry that belongs to a write that won: a change by hand has one. The store gives it its
    /// number.
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

    /// The entry of a note. The store gives it its number.
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
    /// Only of this record.
    pub record: Option<RecordId>,
    /// From where, and in which direction.
    pub from: Start,
    /// At most so many, and never more than [`PAGE_MAX`].
    pub limit: usize,
}

/// Where a page of the log begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// After this number, oldest first: to read on from where one was. Zero is the beginning.
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

    /// What came after the entry with this number.
    pub fn after(sequence: u64, limit: usize) -> LogQuery {
        LogQuery {
            record: None,
            from: Start::After(sequence),
            limit,
        }
    }

    /// The same, of one record only.
    #[must_use]
    pub fn of(self, record: RecordId) -> LogQuery {
        LogQuery {
            record: Some(record),
            ..self
        }
    }

    /// How many entries a store returns at most.
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
