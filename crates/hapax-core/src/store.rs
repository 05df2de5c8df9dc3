//! The store: what keeps records, and the contract it keeps.
//!
//! # The contract
//!
//! 1. **One atomic write.** [`Store::put_if`] judges the condition and writes the change as one
//!    step: between the two nothing else happens to that record.
//!    [`guard::judge`](crate::guard::judge) *is* the judgement; a store that cannot call it inside
//!    its transaction must do the same in its own language, and the contract suite of
//!    `hapax-contract` holds it to that.
//! 2. **Losing tells.** A write whose condition does not hold changes nothing and returns the
//!    current record.
//! 3. **Durable before visible.** When `put_if` returns [`Written::Won`], the write survives the
//!    loss of the process and, for a store that says so, of the machine. Nothing that is not yet
//!    durable is ever returned by `get` or by a losing `put_if`.
//! 4. **As of now.** What is returned is the head [as it is](crate::record::Head::at) at the
//!    store's time of reading: past its retention a record reads as a tombstone without an answer,
//!    whether or not a sweep has come by.
//! 5. **One clock.** The store has one clock. Leases, retention and fences are judged and stamped
//!    by it, inside the deciding step. It does not run backwards while the store is open.
//! 6. **Fences grow.** A claim, a settlement and a forgetting mint a fence above every earlier one
//!    of the same id, also after the record was removed and the store restarted.
//! 7. **Errors are ambiguous.** After an `Err` the write may have happened, may not have, or may
//!    still happen. A caller who must know sends the same put again: a claim that is there with the
//!    caller's [`AttemptToken`] is the caller's own.
//! 8. **Cancel-safe.** Dropping a future leaves the store usable; the write it asked for may or may
//!    not happen.
//! 9. **Written down.** A change by hand (`Settle`, `Forget`) and its [entry in the audit
//!    log](crate::audit) are one step: both are there, or neither. Entries are numbered from one
//!    without gaps, in the order in which they become visible, and stay for
//!    [`audit::KEPT_FOR`](crate::audit::KEPT_FOR), whatever becomes of their records.
//! 10. **Forgotten is erased.** When a `Forget` has won, the answer is in nothing that the store
//!     keeps, in use or free; a store that cannot bring that about in time returns an error of the
//!     kind [`StoreErrorKind::Unerased`]. Copies that others made are beyond it, and so is what a
//!     database server does with a row that it was told to delete: a store on one says so.
//! 11. **Counted.** After a sweep, and at least a second after the sweep before, the
//!     [info](Store::info) tells how many records there are. A store that remembers a principal
//!     knows it until its time, and not longer.

use std::error::Error;
use std::fmt;
use std::ops::AddAssign;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::answer::Answer;
use crate::audit::{LogEntry, LogQuery, Note, Signed};
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::operation::{OperationIds, Secret};
use crate::policy::Policy;
use crate::record::{AttemptToken, Fence, Head, Record, State};
use crate::request_id::RequestId;
use crate::scope::{PrincipalId, RecordId, Scope};
use crate::time::Timestamp;

/// What a verb of a store returns. Boxed, so that a store can be chosen at run time.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Keeps records. See the [module's contract](self).
pub trait Store: Send + Sync + 'static {
    /// Reads records, answers included, in the order of `ids`, with the store's time of reading.
    fn get(&self, ids: Vec<RecordId>) -> Reply<'_, Reading>;

    /// Changes one record if the condition holds.
    fn put_if(&self, put: Put) -> Reply<'_, Written>;

    /// Extends the leases of running attempts that still own their fence; says of each whether it
    /// did.
    fn renew(&self, renewals: Vec<Renewal>) -> Reply<'_, Vec<bool>>;

    /// A page of heads in the order of their ids.
    fn list(&self, query: ListQuery) -> Reply<'_, Vec<Head>>;

    /// Writes down up to `limit` changes that time has brought: attempts that lapsed, answers past
    /// their retention, tombstones that are over, entries of the audit log that are too old.
    fn sweep(&self, limit: usize) -> Reply<'_, Swept>;

    /// The store's time, its forget-epoch, its secret, and how many records it has.
    fn info(&self) -> Reply<'_, StoreInfo>;

    /// Remembers principals who have records, each until a time by the store's clock. Of two times
    /// the later counts.
    fn remember(&self, principals: Vec<KnownPrincipal>) -> Reply<'_, ()>;

    /// Whether a principal is remembered now.
    fn knows(&self, principal: PrincipalId) -> Reply<'_, bool>;

    /// A page of the audit log.
    fn log(&self, query: LogQuery) -> Reply<'_, Vec<LogEntry>>;

    /// Writes into the audit log what was done by hand and changes no record; returns the entry.
    fn note(&self, note: Note) -> Reply<'_, LogEntry>;

    /// How an attempt ends inside a transaction of the caller's, where the store can take part in
    /// one.
    fn joins(&self) -> Option<&dyn Joins> {
        None
    }
}

/// A store that callers can reach in transactions of their own: their effect and its record commit
/// together.
///
/// # The contract
///
/// 1. The statement ends the attempt under [`Condition::Held`], judged as in [`Store::put_if`]; or
///    it fails, and so that the transaction it runs in cannot commit what came before it: with
///    [`FENCED_OUT`] where the attempt no longer owns its record, with [`FINISHED_ALREADY`] where
///    it has ended in an answer.
/// 2. From the statement to the end of its transaction nobody else changes the record: whoever
///    tries waits, or is told [`StoreErrorKind::Locked`].
/// 3. Nothing of it is visible before the transaction has committed, and all of it after that.
pub trait Joins: Send + Sync {
    /// The statement that makes this change: a [`Change::Finish`] under [`Condition::Held`].
    fn statement(&self, put: &Put) -> Statement;

    /// A transaction with such a statement has committed, and this is the record since then, or was
    /// at least so far.
    fn joined(&self, _head: &Head, _now: Timestamp) {}
}

/// What a statement of [`Joins`] fails with when the attempt no longer owns its record: the code of
/// a Postgres error, the beginning of the text of one of SQLite.
pub const FENCED_OUT: &str = "HX003";
/// The same when the attempt has ended already.
pub const FINISHED_ALREADY: &str = "HX005";

/// One statement for somebody else's transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Which database understands it.
    pub dialect: Dialect,
    /// Its text.
    pub sql: &'static str,
    /// What its placeholders stand for, from the first on.
    pub values: Vec<Value>,
    /// The store's time of the change, in microseconds; `None` where the statement returns it.
    pub now: Option<Timestamp>,
}

/// A database's way of speaking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// Placeholders are `$1` and so on; the statement returns one number.
    Postgres,
    /// Placeholders are `?1` and so on; the statement returns nothing.
    Sqlite,
}

/// What a placeholder stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Bytes, or null where bytes could be.
    Bytes(Option<Vec<u8>>),
    /// A number of 64 bits, or null where one could be.
    Int(Option<i64>),
}

/// What a route says about answers that an upstream completes in a transaction of its own, where
/// the route itself is not at hand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// How long the record is remembered.
    pub lifetime: Lifetime,
    /// Whether answers are kept at all.
    pub keep: bool,
    /// The largest body that is.
    pub bytes_max: usize,
    /// Whether cookies are kept too.
    pub cookies: bool,
    /// Under which version.
    pub version: Option<Arc<str>>,
}

impl From<&Policy> for Terms {
    fn from(policy: &Policy) -> Self {
        Terms {
            lifetime: policy.into(),
            keep: policy.keep_answers,
            bytes_max: policy.answer_bytes_max,
            cookies: policy.replay_cookies,
            version: policy.answer_version.clone(),
        }
    }
}

/// Under which condition a record may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Condition {
    /// There is no record, or only one whose tombstone is over by the store's clock.
    Absent,
    /// The attempt with this fence still owns the record: it is running, or was given up for lost
    /// and nobody has acted on that.
    Held {
        /// The attempt's fence.
        fence: Fence,
    },
    /// The attempt with this fence is over: its lease by the store's clock, or by its own word.
    Lapsed {
        /// The fence that was read.
        fence: Fence,
    },
    /// Nothing has changed since an operator looked.
    Version {
        /// The version that was read.
        version: u64,
    },
}

/// One conditional write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// Which record.
    pub id: RecordId,
    /// Under which condition.
    pub condition: Condition,
    /// What it becomes.
    pub change: Change,
}

/// What a write makes of a record. Times are durations, because only the store knows what time it
/// is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new attempt begins: under `Absent` or `Lapsed`.
    Claim(Claim),
    /// The attempt ends: under `Held`.
    Finish(Finish),
    /// The attempt's lease is over and it did not end: under `Lapsed`.
    Lose(Lifetime),
    /// Somebody who knows says what became of an unknown: under `Version`. Mints a fence, so that
    /// the lost attempt can no longer end.
    Settle(Finish, Signed),
    /// The answer, the fingerprint and the request id are erased, a tombstone stays: under
    /// `Version`. Raises the forget-epoch in the same step.
    Forget(Lifetime, Signed),
}

/// A new attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Whose record, for which operation.
    pub scope: Arc<Scope>,
    /// The caller's key.
    pub key: Key,
    /// What the request looks like.
    pub fingerprint: Fingerprint,
    /// Who claims.
    pub token: AttemptToken,
    /// How long the attempt may go without renewing.
    pub lease: Duration,
    /// What its route says of answers, if the attempt may end in a transaction of the upstream's
    /// own.
    pub terms: Option<Arc<Terms>>,
    /// The id of the request that makes the attempt, if it came as one.
    pub request_id: Option<RequestId>,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    /// `Completed`, `Failed`, `Retryable` or `Unknown`.
    pub state: State,
    /// The status it was answered with, or [why](crate::outcome::Loss::code) it is unknown.
    pub status: Option<u16>,
    /// The answer, where it is kept.
    pub answer: Option<Arc<Answer>>,
    /// How long all this is remembered.
    pub lifetime: Lifetime,
}

/// How long a finished record is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lifetime {
    /// How long it replays.
    pub retention: Duration,
    /// How long the tombstone stands after that.
    pub tombstone: Duration,
}

impl Change {
    /// The answer that is stored with the head; every other change leaves the record without one.
    pub fn answer(&self) -> Option<&Arc<Answer>> {
        match self {
            Change::Finish(finish) | Change::Settle(finish, _) => finish.answer.as_ref(),
            Change::Claim(_) | Change::Lose(_) | Change::Forget(..) => None,
        }
    }
}

/// A day and a week, as in [`Policy`].
impl Default for Lifetime {
    fn default() -> Self {
        let day = Duration::from_secs(24 * 60 * 60);
        Lifetime {
            retention: day,
            tombstone: day * 7,
        }
    }
}

/// As the policy says.
impl Lifetime {
    /// How long a record is remembered that has ended; the default for one that has not.
    pub fn of(head: &Head) -> Lifetime {
        if head.finished_at == Timestamp::ZERO || matches!(head.state, State::Expired(_)) {
            return Lifetime::default();
        }
        let (retention, tombstone) = (
            head.expires_at.since(head.finished_at),
            head.tombstone_until.since(head.expires_at),
        );
        Lifetime {
            retention,
            tombstone,
        }
    }
}

impl From<&Policy> for Lifetime {
    fn from(policy: &Policy) -> Self {
        Lifetime {
            retention: policy.retention,
            tombstone: policy.tombstone,
        }
    }
}

/// What became of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// The condition held; this is the record's head now. Durable.
    Won(Won),
    /// The condition did not hold; nothing changed, and this is what is there.
    Lost(Seen),
}

/// A write that took place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Won {
    /// The head as written.
    pub head: Head,
    /// The store's time of the write.
    pub now: Timestamp,
}

/// One record as it was at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The record, if there is one.
    pub record: Option<Record>,
    /// The store's time of the reading.
    pub now: Timestamp,
}

impl Seen {
    /// The record's head, if there is one.
    pub fn head(&self) -> Option<&Head> {
        self.record.as_ref().map(|record| &record.head)
    }

    /// How long ago the record's last attempt was claimed.
    pub fn running_for(&self) -> Duration {
        self.head()
            .map_or(Duration::ZERO, |head| self.now.since(head.claimed_at))
    }
}

impl From<Won> for Seen {
    /// The record as it was written, without an answer.
    fn from(Won { head, now }: Won) -> Self {
        let record = Some(Record { head, answer: None });
        Seen { record, now }
    }
}

/// Several records as they were at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The records, in the order they were asked for.
    pub records: Vec<Option<Record>>,
    /// The store's time of the reading.
    pub now: Timestamp,
}

/// One lease to extend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// Which record.
    pub id: RecordId,
    /// The attempt that holds the lease.
    pub fence: Fence,
    /// How long from now.
    pub lease: Duration,
}

/// Which heads to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListQuery {
    /// Only records in a state with this word (see [`State::word`]), or [`State::OPEN`] for every
    /// one whose end is not known.
    pub state: Option<&'static str>,
    /// Only ids after this one.
    pub after: Option<RecordId>,
    /// At most so many.
    pub limit: usize,
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Swept {
    /// Attempts whose lease was over, now unknown.
    pub lost: usize,
    /// Answers whose retention was over, now dropped.
    pub buried: usize,
    /// Tombstones removed.
    pub removed: usize,
    /// Entries of the audit log removed.
    pub unlogged: usize,
}

impl Swept {
    /// How much was touched.
    pub fn total(self) -> usize {
        self.lost + self.buried + self.removed + self.unlogged
    }
}

impl AddAssign for Swept {
    fn add_assign(&mut self, other: Swept) {
        self.lost += other.lost;
        self.buried += other.buried;
        self.removed += other.removed;
        self.unlogged += other.unlogged;
    }
}

/// What a node asks of its store each second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreInfo {
    /// The store's time.
    pub now: Timestamp,
    /// Counts every `forget`: an in-process copy is good only under the epoch it was made in.
    pub epoch: u64,
    /// The store's secret, the same for every node.
    pub secret: Secret,
    /// From when on each life of a key is an operation of its own: see [`OperationIds`]. Never
    /// changes.
    pub lives_since: Timestamp,
    /// How many records there are. `None` from a store that does not count: then no limit on their
    /// number holds.
    pub counts: Option<Counts>,
}

impl StoreInfo {
    /// What makes the store's operation ids.
    pub const fn operation_ids(&self) -> OperationIds {
        OperationIds::new(self.secret, self.lives_since)
    }
}

/// How many records a store has, as of now or of its last sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// All records.
    pub records: u64,
    /// Those that are kept for [`REFUSED_FOR`](crate::outcome::REFUSED_FOR) only: see
    /// [`Head::is_refused`].
    pub refused: u64,
}

/// A principal who has records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownPrincipal {
    /// Who.
    pub id: PrincipalId,
    /// Until when it is known.
    pub until: Timestamp,
}

/// What a program would act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// Not reachable, too slow, full: it may come back.
    Unavailable,
    /// Somebody's transaction has the record, and has not ended. Nothing was written.
    Locked,
    /// What is stored cannot be trusted. It will not come back by itself.
    Corrupt,
    /// What is stored was written by a newer version.
    Unsupported,
    /// The record is forgotten and nobody is served its answer any more, but its bytes may still be
    /// in the store.
    Unerased,
}

/// A store that could not do what it was asked; whether it did it all the same is not known.
#[derive(Clone)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: Arc<str>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// An error with a text for the log. Callers of a service never see it.
    pub fn new(kind: StoreErrorKind, message: impl Into<Arc<str>>) -> Self {
        StoreError {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// Not reachable, too slow, full.
    pub fn unavailable(message: impl Into<Arc<str>>) -> Self {
        StoreError::new(StoreErrorKind::Unavailable, message)
    }

    /// What is stored cannot be trusted.
    pub fn corrupt(message: impl Into<Arc<str>>) -> Self {
        StoreError::new(StoreErrorKind::Corrupt, message)
    }

    /// Keeps the cause.
    #[must_use]
    pub fn because(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// What a program would act on.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreError")
            .field("kind", &self.kind)
            .field("message", &self.message)
            .field("source", &self.source)
            .finish()
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
