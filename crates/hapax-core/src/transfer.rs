//! Moving a store's content into another store, as it is.
//!
//! A second trait beside [`Store`](crate::Store), for whoever looks after stores and not for a
//! node. Records go over verbatim: as they are stored, with their fences, versions, times and
//! answers, also those that time has used up and no sweep has removed. With them goes what belongs
//! to the store as a whole, its [`Account`]: the secret, without which no operation id and no token
//! would be the same; the floor, without which a fence could come again.
//!
//! # Never two
//!
//! At no moment may two stores be in use that stem from each other: a key would have its effect in
//! each. So a store says where it [stands](Standing), and only one that is [`Live`](Standing::Live)
//! serves:
//!
//! 1. The source leaves: from now on it refuses to serve, and nothing in it changes.
//! 2. The target arrives: it is empty, or is made so where its content is outlived, and refuses to
//!    serve as well.
//! 3. Records and log go over, page by page. Each page is written together with the [`Position`] up
//!    to which everything has come.
//! 4. The source is marked as moved, and only then
//! 5. the target becomes live.
//!
//! Whoever is killed at any point begins again with the same two stores and goes on from there; a
//! [`CopyId`] on both sides tells this copy from every other. Between 4 and 5 no store serves,
//! which costs patience and never an effect.

use std::fmt;

use crate::audit::LogEntry;
use crate::operation::Secret;
use crate::record::{Fence, Head, Record};
use crate::scope::RecordId;
use crate::store::{Reply, StoreError};
use crate::time::Timestamp;

/// A store whose content can be moved. Every verb is one atomic, durable step, and the same step
/// again changes nothing more.
pub trait Transfer: Send + Sync + 'static {
    /// What there is, and where the store stands.
    fn survey(&self) -> Reply<'_, Survey>;

    /// Takes the store out of use, to be copied; says what stands in the way, if something does.
    /// One that leaves already does so under the new name.
    fn leave(&self, copy: Passage) -> Reply<'_, Left>;

    /// Records as they are stored, in the order of their ids. Of an answer past its retention
    /// nobody can say whether it is still there: it is left out, and `kept` is not set. One that is
    /// not as it was written is an error that names its record.
    fn export(&self, after: Option<RecordId>, page: Page) -> Reply<'_, Vec<Record>>;

    /// Entries of the audit log after this number, oldest first, at most
    /// [`PAGE_MAX`](crate::audit::PAGE_MAX).
    fn entries(&self, after: u64) -> Reply<'_, Vec<LogEntry>>;

    /// Says for good that everything is in another store now. Only of a store that leaves under
    /// this name.
    fn moved(&self, copy: CopyId) -> Reply<'_, ()>;

    /// Puts a store that leaves, or that has half arrived, back into use or out of its half: the
    /// one is [`Live`](Standing::Live) again, the other empty and live.
    fn give_up(&self) -> Reply<'_, ()>;

    /// Prepares for what is to come, and takes over what operation ids are made with. `false`:
    /// there is something here that is not outlived, and nothing was changed.
    ///
    /// Outlived is what an unfinished copy has brought, and what has been moved away and comes
    /// back: a store that is [`Moved`](Standing::Moved) and has the secret of the one that is
    /// copied.
    fn arrive(&self, copy: Passage, account: Account) -> Reply<'_, bool>;

    /// Writes what has come, verbatim, with the position up to which everything has. What is there
    /// in the same or a higher version stays as it is. Only while arriving under this name.
    fn import(&self, copy: CopyId, shipment: Shipment) -> Reply<'_, ()>;

    /// Takes over the rest of the account and becomes live. Only while arriving under this name.
    /// Every fence minted from then on is above every one that has come.
    fn settle_in(&self, copy: CopyId, account: Account) -> Reply<'_, ()>;
}

/// What tells one copy from every other: random, and the same on both sides.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CopyId([u8; 16]);

impl CopyId {
    /// An id from a good source of randomness, or read back from a store.
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
    /// Which copy.
    pub copy: CopyId,
    /// The other store, as a person would call it; no password is in it.
    pub other: String,
}

/// Where a store stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// In use, or ready to be.
    Live,
    /// It is being copied, and must not change meanwhile.
    Leaving(Passage),
    /// Everything is in another store. Whoever would go on here would do again what is done there.
    Moved(Passage),
    /// It is being filled, and something is missing.
    Arriving(Passage, Position),
}

impl Standing {
    /// The word for it, as stores write it down.
    pub const fn word(&self) -> &'static str {
        match self {
            Standing::Live => "live",
            Standing::Leaving(_) => "leaving",
            Standing::Moved(_) => "moved",
            Standing::Arriving(..) => "arriving",
        }
    }

    /// What a word stands for, with what is stored beside it; `None` for a word of a newer version.
    pub fn of(word: &str, passage: Passage, position: Position) -> Option<Standing> {
        match word {
            "live" => Some(Standing::Live),
            "leaving" => Some(Standing::Leaving(passage)),
            "moved" => Some(Standing::Moved(passage)),
            "arriving" => Some(Standing::Arriving(passage, position)),
            _ => None,
        }
    }

    /// Why nobody may use the store, and what to do; `None` if it may be used.
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

/// Up to where everything has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Position {
    /// The last record.
    pub record: Option<RecordId>,
    /// The last entry of the audit log.
    pub entry: u64,
}

/// How much at a time: at least one record, and no further one once it is that many or that much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Records.
    pub records: usize,
    /// Bytes of answers.
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

/// What comes in one step.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Shipment {
    /// Records, in the order of their ids.
    pub records: Vec<Record>,
    /// Entries of the audit log with their numbers, in their order.
    pub log: Vec<LogEntry>,
    /// Up to where everything has come, with these.
    pub position: Position,
}

/// What belongs to a store as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// Operation ids and issued tokens are made with it.
    pub secret: Secret,
    /// From when on each life of a key is an operation of its own.
    pub lives_since: Timestamp,
    /// Counts every `forget`.
    pub epoch: u64,
    /// The highest fence of any record that was ever removed.
    pub floor: Fence,
    /// The number of the last entry in the audit log, whether or not it is still there.
    pub logged: u64,
    /// The store's time: where it goes on, no clock begins earlier.
    pub now: Timestamp,
}

/// What there is in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// Where it stands.
    pub standing: Standing,
    /// What belongs to it as a whole.
    pub account: Account,
    /// How many records there are, tombstones included.
    pub records: u64,
    /// How many of them are running as they are stored: whoever ran them is gone, so that their end
    /// is unknown.
    pub running: u64,
}

impl Survey {
    /// Whether nothing has ever been kept here that could be lost.
    pub fn is_empty(&self) -> bool {
        self.records == 0 && self.account.logged == 0
    }

    /// Whether a copy of a store with this secret may take the place of what is here. See
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

/// What became of a wish to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Nothing changes any more.
    Left,
    /// So many attempts hold a live lease: somebody uses the store.
    Busy(u64),
}

/// A record as it goes over: an answer that may be gone by its time is none, and whoever held a
/// lease is gone.
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

/// What a store says to a step that is not its turn: somebody else has changed where it stands.
pub fn out_of_turn() -> StoreError {
    StoreError::unavailable(
        "the store takes no part in this copy any more: another was begun, or it was given up",
    )
}
