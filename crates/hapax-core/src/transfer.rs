//! Moving a store's content into another store, as it is.
//!
//! A second trait beside [`Store`](crate::Store), for tools that manage stores and not for nodes.
//! Records are copied verbatim: as stored, with their fences, versions, times and answers,
//! including expired records that no sweep has removed. The [`Account`] of the store as a whole is
//! copied too: the secret, which keeps operation ids and tokens the same; and the floor, which
//! keeps fences from repeating.
//!
//! # Never two live stores
//!
//! A store and its copy may never be in use at the same time: a key could have its effect in each.
//! So a store has a [`Standing`], and only a [`Live`](Standing::Live) store serves:
//!
//! 1. The source leaves: from now on it refuses to serve, and nothing in it changes.
//! 2. The target arrives: it is empty, or its content [may be replaced](Transfer::arrive) and is
//!    erased. From now on it refuses to serve as well.
//! 3. Records and log are copied page by page. Each page is written together with the [`Position`]
//!    up to which the copy is complete.
//! 4. The source is marked as moved.
//! 5. Only then does the target become live.
//!
//! A copy that is interrupted at any point can be started again with the same two stores and
//! continues from there; a [`CopyId`] on both sides identifies the copy. Between 4 and 5 no store
//! serves: requests are refused for a while, but no effect happens twice.

use std::fmt;

use crate::audit::LogEntry;
use crate::operation::Secret;
use crate::record::{Fence, Head, Record};
use crate::scope::RecordId;
use crate::store::{Reply, StoreError};
use crate::time::Timestamp;

/// A store whose content can be moved. Every method is one atomic, durable step, and repeating it
/// changes nothing more.
pub trait Transfer: Send + Sync + 'static {
    /// Returns the size, the account and the standing of the store.
    fn survey(&self) -> Reply<'_, Survey>;

    /// Takes the store out of use, to be copied. If attempts hold live leases, it returns their
    /// number instead. A store that is leaving already continues under the new copy id.
    fn leave(&self, copy: Passage) -> Reply<'_, Left>;

    /// Returns records as they are stored, in the order of their ids. A store may or may not still
    /// have an answer past its retention: such an answer is left out, and `kept` is not set. A
    /// damaged answer is an error that names its record.
    fn export(&self, after: Option<RecordId>, page: Page) -> Reply<'_, Vec<Record>>;

    /// Returns entries of the audit log after this number, oldest first, at most
    /// [`PAGE_MAX`](crate::audit::PAGE_MAX).
    fn entries(&self, after: u64) -> Reply<'_, Vec<LogEntry>>;

    /// Marks the store as moved for good. Only for a store that is leaving under this copy id.
    fn moved(&self, copy: CopyId) -> Reply<'_, ()>;

    /// Cancels a copy. A store that is leaving becomes [`Live`](Standing::Live) again; a store that
    /// is arriving is emptied and becomes live.
    fn give_up(&self) -> Reply<'_, ()>;

    /// Prepares the store for the copy and takes over the values that operation ids are made with.
    /// Returns `false` and changes nothing if the content of this store may not be replaced.
    ///
    /// Content may be replaced if an unfinished copy brought it, or if it was moved away and now
    /// comes back: the store is [`Moved`](Standing::Moved) and has the secret of the source.
    fn arrive(&self, copy: Passage, account: Account) -> Reply<'_, bool>;

    /// Writes a shipment verbatim, together with its position. A record that exists in the same or
    /// a higher version stays unchanged. Only while arriving under this copy id.
    fn import(&self, copy: CopyId, shipment: Shipment) -> Reply<'_, ()>;

    /// Takes over the rest of the account and becomes live. Only while arriving under this copy id.
    /// Every fence minted afterwards is above every imported one.
    fn settle_in(&self, copy: CopyId, account: Account) -> Reply<'_, ()>;
}

/// Identifies one copy: random, and the same on both sides.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CopyId([u8; 16]);

impl CopyId {
    /// An id from random bytes, or read back from a store.
    pub const fn from_bytes(bytes: [u8; 16]) -> CopyId {
        CopyId(bytes)
    }

    /// The id as a store keeps it.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for CopyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CopyId({})", crate::digest::hex(&self.0[..4]))
    }
}

/// A copy, and the store at its other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passage {
    /// The id of the copy.
    pub copy: CopyId,
    /// The other store, in words for a person, without passwords.
    pub other: String,
}

/// Whether a store is live, is being copied, was moved, or is an unfinished copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// In use, or ready for use.
    Live,
    /// It is being copied and must not change.
    Leaving(Passage),
    /// Everything is in another store. Serving from this one could repeat effects.
    Moved(Passage),
    /// It is an unfinished copy.
    Arriving(Passage, Position),
}

impl Standing {
    /// The name under which stores save this standing.
    pub const fn word(&self) -> &'static str {
        match self {
            Standing::Live => "live",
            Standing::Leaving(_) => "leaving",
            Standing::Moved(_) => "moved",
            Standing::Arriving(..) => "arriving",
        }
    }

    /// The standing with this name and the values stored beside it; `None` for a name of a newer
    /// version.
    pub fn of(word: &str, passage: Passage, position: Position) -> Option<Standing> {
        match word {
            "live" => Some(Standing::Live),
            "leaving" => Some(Standing::Leaving(passage)),
            "moved" => Some(Standing::Moved(passage)),
            "arriving" => Some(Standing::Arriving(passage, position)),
            _ => None,
        }
    }

    /// Why the store may not be used, and what to do; `None` if it may be used.
    pub fn refusal(&self) -> Option<String> {
        match self {
            Standing::Live => None,
            Standing::Leaving(Passage { other, .. }) => Some(format!(
                "is being copied to {other}: run `hapax store copy` again to finish that, or with --give-up to go on here"
            )),
            Standing::Moved(Passage { other, .. }) => Some(format!(
                "was moved to {other}, and goes on there: use that store; to go back, copy back"
            )),
            Standing::Arriving(Passage { other, .. }, _) => Some(format!(
                "is an unfinished copy of {other}: run `hapax store copy` again to finish it, or with --give-up to empty it"
            )),
        }
    }
}

/// How far a copy has come: everything up to this position has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Position {
    /// The last record.
    pub record: Option<RecordId>,
    /// The last entry of the audit log.
    pub entry: u64,
}

/// The size of a page: at least one record, and no further one once either limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// The most records.
    pub records: usize,
    /// The most bytes of answers.
    pub bytes: usize,
}

/// A thousand records, 4 MiB of answers.
impl Default for Page {
    fn default() -> Self {
        Page {
            records: 1_000,
            bytes: 4 << 20,
        }
    }
}

/// What one [`Transfer::import`] writes.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Shipment {
    /// Records, in the order of their ids.
    pub records: Vec<Record>,
    /// Entries of the audit log with their numbers, in their order.
    pub log: Vec<LogEntry>,
    /// The position after this shipment.
    pub position: Position,
}

/// The values of a store as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// The secret that operation ids and issued tokens are made with.
    pub secret: Secret,
    /// From this time on, each life of a key has its own operation id.
    pub lives_since: Timestamp,
    /// Counts every `forget`.
    pub epoch: u64,
    /// The highest fence of any removed record.
    pub floor: Fence,
    /// The number of the last entry in the audit log, whether or not it is still there.
    pub logged: u64,
    /// The store's time. The clock of the copy may not begin earlier.
    pub now: Timestamp,
}

/// What a store has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// The store's standing.
    pub standing: Standing,
    /// The values of the store as a whole.
    pub account: Account,
    /// How many records there are, tombstones included.
    pub records: u64,
    /// How many of them are stored as running. Their nodes are gone, so their outcome is unknown.
    pub running: u64,
}

impl Survey {
    /// Whether the store has never kept a record or a log entry that is worth keeping.
    pub fn is_empty(&self) -> bool {
        self.records == 0 && self.account.logged == 0
    }

    /// Whether a copy of a store with this secret may replace the content of this store. See
    /// [`Transfer::arrive`].
    pub fn is_outlived(&self, secret: &Secret) -> bool {
        match &self.standing {
            Standing::Live => self.is_empty(),
            Standing::Arriving(..) => true,
            Standing::Moved(_) => self.account.secret == *secret,
            Standing::Leaving(_) => false,
        }
    }
}

/// The result of [`Transfer::leave`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The store is leaving: nothing changes any more.
    Left,
    /// The store is in use: this many attempts hold a live lease.
    Busy(u64),
}

/// A record as it is copied: without an answer past its retention, and without its lease, since its
/// holder is gone.
pub fn shipped(record: Record, now: Timestamp) -> Record {
    let kept = record.head.kept && record.head.expires_at > now;
    let head = Head {
        kept,
        lease_until: Timestamp::ZERO,
        ..record.head
    };
    Record {
        answer: record.answer.filter(|_| kept),
        head,
    }
}

/// The error for a step that does not fit the standing of the store: another process has changed
/// it.
pub fn out_of_turn() -> StoreError {
    StoreError::unavailable(
        "the store takes no part in this copy any more: another was begun, or it was given up",
    )
}
