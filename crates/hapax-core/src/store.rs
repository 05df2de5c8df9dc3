//! The store: it keeps records, under the contract below.
//!
//! # The contract
//!
//! 1. **One atomic write.** [`Store::put_if`] judges the condition and writes the change as one
//!    step: no other write changes that record in between.
//!    [`guard::judge`](crate::guard::judge) *is* the judgement. A store that cannot call it inside
//!    its transaction must do the same in its own language; the contract suite of
//!    `hapax-contract` checks this.
//! 2. **Losing returns the record.** A write whose condition does not hold changes nothing and
//!    returns the current record.
//! 3. **Durable before visible.** When `put_if` returns [`Written::Won`], the write survives the
//!    loss of the process and, for a store that promises it, of the machine. `get` and a losing
//!    `put_if` never return anything that is not yet durable.
//! 4. **As of now.** A store returns the head [as it is](crate::record::Head::at) at the store's
//!    time of reading: past its retention a record reads as a tombstone without an answer, whether
//!    or not a sweep has removed the answer.
//! 5. **One clock.** The store has one clock. Leases, retention and fences are judged and stamped
//!    by it, inside the deciding step. It does not run backwards while the store is open.
//! 6. **Fences grow.** A claim, a settlement and a `forget` mint a fence above every earlier one of
//!    the same id, even after the record was removed and the store restarted.
//! 7. **Errors are ambiguous.** After an `Err` the write may have happened, may not have, or may
//!    still happen. A caller that must know sends the same put again: an existing claim with the
//!    caller's [`AttemptToken`] is the caller's own.
//! 8. **Cancel-safe.** Dropping a future leaves the store usable; the write it asked for may or may
//!    not happen.
//! 9. **Logged.** A change by hand (`Settle`, `Forget`) and its [entry in the audit
//!    log](crate::audit) are one step: both exist, or neither. Entries are numbered from one
//!    without gaps, in the order in which they become visible, and stay for
//!    [`audit::KEPT_FOR`](crate::audit::KEPT_FOR), whatever happens to their records.
//! 10. **Forgotten is erased.** When a `Forget` has won, no storage of the store contains the
//!     answer, in used or free space. A store that cannot erase it in time returns an error of the
//!     kind [`StoreErrorKind::Unerased`]. The store cannot erase copies made by others, nor what a
//!     database server retains of a deleted row; a store on such a server documents this.
//! 11. **Counted.** After a sweep that comes at least a second after the previous one, the
//!     [info](Store::info) has the number of records. A store that remembers a principal knows it
//!     until its time and no longer.

use std::error::Error;
use std::fmt;
use std::ops::AddAssign;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::answer::Answer;
use crate::audit::{LogEntry, LogQuery, Note, Signed};
use crate::fingerprint::{Fingerprint, FingerprintPolicy};
use crate::key::Key;
use crate::operation::{OperationIds, Secret};
use crate::policy::Policy;
use crate::record::{AttemptToken, Fence, Head, Record, State, StateFilter};
use crate::request_id::RequestId;
use crate::scope::{PrincipalId, RecordId, Scope};
use crate::time::Timestamp;

/// The reply of a store method. It is boxed, so that a store can be chosen at run time.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Keeps records. See the [module's contract](self).
pub trait Store: Send + Sync + 'static {
    /// Reads records, answers included, in the order of `ids`, with the store's time of reading.
    fn get(&self, ids: Vec<RecordId>) -> Reply<'_, Reading>;

    /// Changes one record if the condition holds.
    fn put_if(&self, put: Put) -> Reply<'_, Written>;

    /// Extends the leases of running attempts that still own their fence. Returns for each whether
    /// it was extended.
    fn renew(&self, renewals: Vec<Renewal>) -> Reply<'_, Vec<bool>>;

    /// Returns a page of heads in the order of their ids.
    fn list(&self, query: ListQuery) -> Reply<'_, Vec<Head>>;

    /// Writes up to `limit` changes that are due by time: attempts that lapsed, answers past their
    /// retention, tombstones that are over, audit log entries that are too old.
    fn sweep(&self, limit: usize) -> Reply<'_, Swept>;

    /// Returns the store's time, its forget-epoch, its secret, and its number of records.
    fn info(&self) -> Reply<'_, StoreInfo>;

    /// Remembers principals that have records, each until a time by the store's clock. If a
    /// principal is remembered already, the later time counts.
    fn remember(&self, principals: Vec<KnownPrincipal>) -> Reply<'_, ()>;

    /// Returns whether a principal is remembered now.
    fn knows(&self, principal: PrincipalId) -> Reply<'_, bool>;

    /// Returns a page of the audit log.
    fn log(&self, query: LogQuery) -> Reply<'_, Vec<LogEntry>>;

    /// Writes an action by hand that changes no record into the audit log. Returns the entry.
    fn note(&self, note: Note) -> Reply<'_, LogEntry>;

    /// How an attempt ends inside the caller's transaction; `None` if the store cannot take part in
    /// one.
    fn joins(&self) -> Option<&dyn Joins> {
        None
    }

    /// How the store tells its nodes of changes; `None` if they only poll.
    fn wakes(&self) -> Option<&dyn Wakes> {
        None
    }
}

/// A store that tells its nodes when a record may have changed, so that a request that waits for an
/// attempt of another node gets its answer at once. It is a hint: a node reads the record before it
/// believes anything, and polls as well, since a hint may be lost.
pub trait Wakes: Send + Sync {
    /// Begins to tell of changes of this record. Once it is told of, the record may have changed
    /// since the call.
    fn watch(&self, id: RecordId);

    /// Ends that.
    fn unwatch(&self, id: RecordId);

    /// Waits until a record that is watched may have changed. Dropping the future loses nothing.
    fn changed(&self) -> Pin<Box<dyn Future<Output = RecordId> + Send + '_>>;
}

/// A store that takes part in callers' transactions: an effect and its record commit together.
///
/// # The contract
///
/// 1. The statement ends the attempt under [`Condition::Held`], judged as in [`Store::put_if`].
///    Otherwise it fails, and its transaction cannot commit anything that came before it. The
///    error is [`FENCED_OUT`] if the attempt no longer owns its record, and [`FINISHED_ALREADY`]
///    if the attempt has ended in an answer.
/// 2. From the statement to the end of its transaction no other write changes the record. Another
///    write waits, or fails with [`StoreErrorKind::Locked`].
/// 3. The change becomes visible as a whole when the transaction commits, and not before.
/// 4. A [start](Joins::start) claims the key inside the transaction, if there is no record, only
///    one whose tombstone is over, or the retryable one that the caller names. Nobody else sees
///    the claim before the commit. If the transaction is rolled back, nothing of it was ever
///    there. Of two open transactions with the same key at most one is told that it has won.
/// 5. A start that is committed without its end either makes the commit fail, or leaves a record
///    that never runs again by itself.
pub trait Joins: Send + Sync {
    /// The statement that makes this change: a [`Change::Finish`] under [`Condition::Held`].
    fn statement(&self, put: &Put) -> Statement;

    /// Makes sure that records can name this policy. Called before [`start`](Joins::start), outside
    /// of the caller's transaction.
    fn prepare_start(&self, _policy: &Arc<FingerprintPolicy>) -> Reply<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// The statement that claims a key in the caller's transaction. It fails with [`IN_FLIGHT`] if
    /// another open transaction has claimed it.
    fn start(&self, start: &Start<'_>) -> Statement;

    /// Reads the row that the statement of [`start`](Joins::start) returned.
    ///
    /// # Errors
    ///
    /// If the row, or the record that it shows, cannot be read.
    fn started(&self, start: &Start<'_>, row: Option<Vec<Value>>) -> Result<Written, StoreError>;

    /// Called after a transaction with such a statement has committed. `head` is the record as of
    /// that commit; the record may have changed since.
    fn joined(&self, _head: &Head, _now: Timestamp) {}
}

/// The error of a [`Joins`] statement if the attempt no longer owns its record: the SQLSTATE in
/// Postgres, the beginning of the message in SQLite.
pub const FENCED_OUT: &str = "HX003";
/// The same if the attempt has ended already.
pub const FINISHED_ALREADY: &str = "HX005";

/// The error of a statement of [`Joins::start`] while another transaction with the key is open.
pub const IN_FLIGHT: &str = "HX409";

/// The claim of a key in the caller's transaction. It has no lease: the open transaction is the
/// right to run.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// Which record.
    pub id: RecordId,
    /// The claim. Its token tells a claim that was won from a record that was found.
    pub claim: &'a Claim,
    /// How long to wait for another open transaction with the same key, where a store can wait.
    pub wait: Duration,
    /// The record that was found by an earlier start in this transaction, and that may run again.
    pub over: Option<&'a Head>,
}

/// One statement for the caller's transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Which database understands it.
    pub dialect: Dialect,
    /// Its text.
    pub sql: &'static str,
    /// The values of its placeholders, in order.
    pub values: Vec<Value>,
    /// The columns of the one row that it returns; empty if it returns none.
    pub columns: &'static [Column],
    /// The store's time of the change, in microseconds; `None` where the statement returns it.
    pub now: Option<Timestamp>,
}

/// The type of a column in the row of a [`Statement`]. Any column may be null.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Column {
    /// Bytes.
    Bytes,
    /// A 64-bit integer.
    Int,
}

/// The SQL dialect of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// Placeholders are `$1` and so on.
    Postgres,
    /// Placeholders are `?1` and so on.
    Sqlite,
}

/// The value of a placeholder, or of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Bytes, or null in a bytes column.
    Bytes(Option<Vec<u8>>),
    /// A 64-bit integer, or null in an integer column.
    Int(Option<i64>),
}

/// A route's rules for answers, stored with the claim. An upstream that completes the record in its
/// own transaction uses them, since the route is not available there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// How long the record is remembered.
    pub lifetime: Lifetime,
    /// Whether answers are kept at all.
    pub keep: bool,
    /// The largest body that is kept, in bytes.
    pub bytes_max: usize,
    /// Whether cookies are kept too.
    pub cookies: bool,
    /// The answer version.
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

/// The condition under which a record may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Condition {
    /// There is no record, or only one whose tombstone is over by the store's clock.
    Absent,
    /// The attempt with this fence still owns the record: it is running, or it counts as lost and
    /// no later change was made.
    Held {
        /// The attempt's fence.
        fence: Fence,
    },
    /// The attempt with this fence is over: its lease has expired by the store's clock, or the
    /// attempt itself has ended.
    Lapsed {
        /// The fence that was read.
        fence: Fence,
    },
    /// The record has not changed since an operator read it.
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

/// A change of a record. Times are durations, because only the store knows the current time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new attempt begins: under `Absent` or `Lapsed`.
    Claim(Claim),
    /// The attempt ends: under `Held`.
    Finish(Finish),
    /// The attempt's lease is over and it did not end: under `Lapsed`.
    Lose(Lifetime),
    /// An operator says what became of an unknown attempt: under `Version`. Mints a fence, so that
    /// the lost attempt can no longer end.
    Settle(Finish, Signed),
    /// The answer, the fingerprint and the request id are erased and a tombstone stays: under
    /// `Version`. Raises the forget-epoch in the same step.
    Forget(Lifetime, Signed),
}

/// A new attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Namespace, principal and operation.
    pub scope: Arc<Scope>,
    /// The caller's key.
    pub key: Key,
    /// The fingerprint of the request.
    pub fingerprint: Fingerprint,
    /// Identifies who claims.
    pub token: AttemptToken,
    /// How long the attempt may run without a renewal.
    pub lease: Duration,
    /// The route's rules for answers, if the attempt may end in the upstream's own transaction.
    pub terms: Option<Arc<Terms>>,
    /// The id of the request that makes the attempt, if there is one.
    pub request_id: Option<RequestId>,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    /// `Completed`, `Failed`, `Retryable` or `Unknown`.
    pub state: State,
    /// The status of the answer, or [why](crate::outcome::Loss::code) it is unknown.
    pub status: Option<u16>,
    /// The answer, if it is kept.
    pub answer: Option<Arc<Answer>>,
    /// How long the record is remembered.
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
    /// The answer to store with the head. A change without one leaves the record without an answer.
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

impl Lifetime {
    /// The lifetime of a record that has ended; the default for one that has not.
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

/// The result of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// The condition held. Contains the record's new head, which is durable.
    Won(Won),
    /// The condition did not hold and nothing changed. Contains the current record.
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

/// One record at one moment.
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
    /// The record as written, without an answer.
    fn from(Won { head, now }: Won) -> Self {
        let record = Some(Record { head, answer: None });
        Seen { record, now }
    }
}

/// Several records at one moment.
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
    /// The record to renew.
    pub id: RecordId,
    /// The attempt that holds the lease.
    pub fence: Fence,
    /// The new lease, counted from now.
    pub lease: Duration,
}

/// Which heads to list. The default is the first hundred of all.
///
/// ```
/// # use hapax_core::record::StateFilter;
/// # use hapax_core::store::ListQuery;
/// let held = ListQuery { state: Some(StateFilter::Unknown), ..ListQuery::default() };
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListQuery {
    /// Only records in this state; `None` includes all.
    pub state: Option<StateFilter>,
    /// Only ids after this one.
    pub after: Option<RecordId>,
    /// The most heads to return.
    pub limit: usize,
}

impl Default for ListQuery {
    fn default() -> Self {
        ListQuery {
            state: None,
            after: None,
            limit: 100,
        }
    }
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
    /// The number of changes.
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

/// How long a node may use copies of answers by one reading of the forget-epoch. `forget` waits that
/// long, so that when it returns no node can serve the answer.
pub const EPOCH_GOOD_FOR: Duration = Duration::from_secs(1);

/// The facts about its store that a node asks for each second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreInfo {
    /// The store's time.
    pub now: Timestamp,
    /// Counts every `forget`. A copy in memory is valid only under the epoch it was made in.
    pub epoch: u64,
    /// The store's secret, the same for every node.
    pub secret: Secret,
    /// From this time on, each life of a key has its own operation id: see [`OperationIds`]. Never
    /// changes.
    pub lives_since: Timestamp,
    /// The number of records. `None` from a store that does not count; then no limit on their
    /// number applies.
    pub counts: Option<Counts>,
}

impl StoreInfo {
    /// Makes the store's operation ids.
    pub const fn operation_ids(&self) -> OperationIds {
        OperationIds::new(self.secret, self.lives_since)
    }
}

/// The number of records in a store, as of now or of its last sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// All records.
    pub records: u64,
    /// Those that are kept for [`REFUSED_FOR`](crate::outcome::REFUSED_FOR) only: see
    /// [`Head::is_refused`].
    pub refused: u64,
}

/// A principal that has records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownPrincipal {
    /// The principal.
    pub id: PrincipalId,
    /// Until when the store remembers it.
    pub until: Timestamp,
}

/// The kind of a store error, by which a program can act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The store is unreachable, too slow or full. It may recover.
    Unavailable,
    /// Another transaction has locked the record. Nothing was written.
    Locked,
    /// The stored data cannot be trusted. The store does not recover by itself.
    Corrupt,
    /// The stored data was written by a newer version.
    Unsupported,
    /// The record is forgotten and its answer is no longer served, but the bytes of the answer may
    /// still be in the store.
    Unerased,
}

/// An operation of a store failed. Whether the operation took place is not known.
#[derive(Clone)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: Arc<str>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// An error with a text for the log. Callers of the service never see it.
    pub fn new(kind: StoreErrorKind, message: impl Into<Arc<str>>) -> Self {
        StoreError {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// The store is unreachable, too slow or full.
    pub fn unavailable(message: impl Into<Arc<str>>) -> Self {
        StoreError::new(StoreErrorKind::Unavailable, message)
    }

    /// The stored data cannot be trusted.
    pub fn corrupt(message: impl Into<Arc<str>>) -> Self {
        StoreError::new(StoreErrorKind::Corrupt, message)
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// The kind, by which a program can act.
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
