//! Messages that were not applied, and are kept for an operator.

use bytes::Bytes;
use hapax_core::time::Timestamp;

/// Why a message is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Its handler failed too often.
    Failed,
    /// It is older than the consumer's receipts, so nobody can tell whether it was applied.
    TooOld,
    /// Its time is ahead of the clock.
    Ahead,
    /// An earlier version of its entity was not applied yet.
    Gap,
    /// It has no id.
    NoId,
}

impl Cause {
    /// Its name.
    pub const fn word(self) -> &'static str {
        match self {
            Cause::Failed => "failed",
            Cause::TooOld => "too-old",
            Cause::Ahead => "ahead",
            Cause::Gap => "gap",
            Cause::NoId => "no-id",
        }
    }

    /// Its number in the tables.
    pub(super) const fn code(self) -> i64 {
        match self {
            Cause::Failed => 1,
            Cause::TooOld => 2,
            Cause::Ahead => 3,
            Cause::Gap => 4,
            Cause::NoId => 5,
        }
    }

    pub(super) const fn from_code(code: i64) -> Option<Cause> {
        match code {
            1 => Some(Cause::Failed),
            2 => Some(Cause::TooOld),
            3 => Some(Cause::Ahead),
            4 => Some(Cause::Gap),
            5 => Some(Cause::NoId),
            _ => None,
        }
    }
}

/// A message to park.
#[derive(Clone, Copy, Debug)]
pub struct ToPark<'a> {
    /// Its id. `None` only with [`Cause::NoId`]: it then gets one that is made of its content.
    pub id: Option<&'a str>,
    /// Why it is parked.
    pub cause: Cause,
    /// The reason in words, for an operator.
    pub reason: &'a str,
    /// Where it came from.
    pub topic: Option<&'a str>,
    /// Its key.
    pub key: Option<&'a str>,
    /// Its entity and the version of that, as it was received.
    pub entity: Option<(&'a str, i64)>,
    /// Its time, as it was received.
    pub at: Option<Timestamp>,
    /// Its headers.
    pub headers: &'a [(String, String)],
    /// Its content.
    pub payload: &'a [u8],
}

/// A parked message that is to be tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parked {
    /// Its id.
    pub id: String,
    /// Why it was parked.
    pub cause: Cause,
    /// How often it was tried since an operator or another message let it be tried again.
    pub attempts: u32,
    /// The reason in words.
    pub reason: Option<String>,
    /// Where it came from.
    pub topic: Option<String>,
    /// Its key.
    pub key: Option<String>,
    /// The version of its entity.
    pub version: Option<i64>,
    /// Its time.
    pub at: Option<Timestamp>,
    /// Its headers, sorted by name.
    pub headers: Vec<(String, String)>,
    /// Its content.
    pub payload: Bytes,
}
