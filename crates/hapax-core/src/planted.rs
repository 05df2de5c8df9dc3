//! Known bugs that can be compiled into the production code, to check that the tests detect them.
//!
//! Without the feature `planted`, every check here is the constant `false` and the branches vanish.
//! With it, the environment variable `HAPAX_PLANTED` names the one bug that is active. The feature
//! is only for the project's own checks.

/// The bugs. Each is a mistake that some real system has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A claim is decided by an earlier read and written without its condition.
    CheckThenAct,
    /// A takeover does not check whether the lease is over.
    UnconditionalTakeover,
    /// A release does not check whether the attempt still owns the record.
    UnownedRelease,
    /// A completion does not check whether the attempt still owns the record.
    UnfencedCompletion,
    /// A renewal makes a new fence, so the store refuses the attempt's own completion.
    RenewalBumpsFence,
    /// Postgres: a takeover is decided by a reading that may be stale when it is written.
    PgStaleTakeover,
    /// Postgres: the write that claims a key anew does not check again that the tombstone is over.
    PgStaleTombstone,
    /// Postgres: a completion sent alone does not check the fence of its attempt.
    PgUnfencedCompletion,
    /// Postgres: batched completions do not check the fences of their attempts.
    PgUnfencedBatch,
    /// Postgres: an insert that conflicts with another attempt's row counts as won.
    PgConflictIsWon,
    /// Postgres: an answer is found by its fence alone, but records claimed together share a fence.
    PgAnswerByFence,
    /// Postgres: answers that end together go into one table, regardless of their retention.
    PgAnswersInOneTable,
    /// Postgres: a table of answers is emptied when its period begins instead of when it ends.
    PgRingTurnsEarly,
    /// Postgres: removing a record does not raise the floor for fences.
    PgFloorForgotten,
    /// Postgres: a new log entry gets the highest present number plus one, instead of the next
    /// number of a counter.
    PgLogByMaximum,
    /// Postgres: a renewal does not check whether the attempt still owns the record.
    PgRenewalOfAnyFence,
    /// Postgres: a settlement does not mint a new fence, so the lost attempt keeps its own.
    PgSettlementKeepsFence,
    /// Postgres: the sweep removes records whose outcome is unknown.
    PgSweepRemovesUnresolved,
    /// Postgres: a `forget` does not raise the forget-epoch, so nodes keep the answer in memory.
    PgForgetKeepsEpoch,
    /// Postgres: a database with asynchronous commit is used as it is.
    PgCommitsAreNotWaitedFor,
    /// Postgres: a standby behind a pooler is read as if it were the primary.
    PgStandbyIsRead,
    /// Postgres: a completion in the caller's transaction does not check the fence of its attempt.
    PgUnfencedJoin,
    /// Postgres: an attempt that completes twice in the caller's transactions replaces the first
    /// answer with the second.
    PgJoinReplacesAnswer,
    /// Postgres: the signature of an operation id is not checked.
    PgJoinOfAnyOperation,
    /// Postgres: an operation of an earlier life of its key completes the record of the current
    /// life.
    PgJoinOfAnyLife,
    /// Postgres: a clock that jumps ahead by days is trusted at once.
    PgClockIsBelieved,
    /// Postgres: `hapax.start` relies on its advisory lock, and replaces a record that it finds.
    PgStartOnlyLocks,
    /// Postgres: `hapax.start` does not compare fingerprints.
    PgStartOfAnyFingerprint,
    /// Postgres: a transaction may commit a key that it has begun and not completed, so that the
    /// answer can be written outside of it.
    PgAnswerOutside,
    /// Redis: a completion does not check the fence of its attempt.
    RedisUnfencedCompletion,
    /// Redis: a live lease can be taken over.
    RedisLiveLeaseIsOver,
    /// Redis: a record whose outcome is unknown leaves by itself.
    RedisUnknownExpires,
    /// Redis: the highest fence is not remembered, so that a removed record's fence is given again.
    RedisFloorForgotten,
    /// Redis: a `forget` does not raise the forget-epoch.
    RedisForgetKeepsEpoch,
    /// Redis: a settlement does not check the version that the operator has read.
    RedisSettlesAnyVersion,
    /// Redis over Postgres: a key that Redis does not have is taken for new.
    RedisTierBelievesAbsence,
    /// Redis over Postgres: a copy counts whatever the forget-epoch is.
    RedisTierIgnoresEpoch,
    /// Redis over Postgres: a copy counts for any request with the key.
    RedisTierIgnoresFingerprint,
    /// A consumer acknowledges messages before their effects commit.
    FlowAcknowledgesFirst,
    /// A consumer commits receipts before the effects.
    FlowReceiptsOutside,
    /// A consumer takes the place of a delivery for the id of its message.
    FlowPlaceIsTheId,
    /// A consumer starts although its window is shorter than what the broker keeps.
    FlowWindowIsNotChecked,
    /// Postgres: tables of receipts are emptied while their receipts still count.
    FlowReceiptsDroppedEarly,
}

/// Every bug with its name in `HAPAX_PLANTED`. Names of bugs in the Postgres store begin with
/// [`POSTGRES`].
pub const BUGS: &[(&str, Bug)] = &[
    ("check-then-act", Bug::CheckThenAct),
    ("unconditional-takeover", Bug::UnconditionalTakeover),
    ("unowned-release", Bug::UnownedRelease),
    ("unfenced-completion", Bug::UnfencedCompletion),
    ("renewal-bumps-fence", Bug::RenewalBumpsFence),
    ("pg-stale-takeover", Bug::PgStaleTakeover),
    ("pg-stale-tombstone", Bug::PgStaleTombstone),
    ("pg-unfenced-completion", Bug::PgUnfencedCompletion),
    ("pg-unfenced-batch", Bug::PgUnfencedBatch),
    ("pg-conflict-is-won", Bug::PgConflictIsWon),
    ("pg-answer-by-fence", Bug::PgAnswerByFence),
    ("pg-answers-in-one-table", Bug::PgAnswersInOneTable),
    ("pg-ring-turns-early", Bug::PgRingTurnsEarly),
    ("pg-floor-forgotten", Bug::PgFloorForgotten),
    ("pg-log-by-maximum", Bug::PgLogByMaximum),
    ("pg-renewal-of-any-fence", Bug::PgRenewalOfAnyFence),
    ("pg-settlement-keeps-fence", Bug::PgSettlementKeepsFence),
    ("pg-sweep-removes-unresolved", Bug::PgSweepRemovesUnresolved),
    ("pg-forget-keeps-epoch", Bug::PgForgetKeepsEpoch),
    (
        "pg-commits-are-not-waited-for",
        Bug::PgCommitsAreNotWaitedFor,
    ),
    ("pg-standby-is-read", Bug::PgStandbyIsRead),
    ("pg-unfenced-join", Bug::PgUnfencedJoin),
    ("pg-join-replaces-answer", Bug::PgJoinReplacesAnswer),
    ("pg-join-of-any-operation", Bug::PgJoinOfAnyOperation),
    ("pg-join-of-any-life", Bug::PgJoinOfAnyLife),
    ("pg-clock-is-believed", Bug::PgClockIsBelieved),
    ("pg-start-only-locks", Bug::PgStartOnlyLocks),
    ("pg-start-of-any-fingerprint", Bug::PgStartOfAnyFingerprint),
    ("pg-answer-outside", Bug::PgAnswerOutside),
    ("redis-unfenced-completion", Bug::RedisUnfencedCompletion),
    ("redis-live-lease-is-over", Bug::RedisLiveLeaseIsOver),
    ("redis-unknown-expires", Bug::RedisUnknownExpires),
    ("redis-floor-forgotten", Bug::RedisFloorForgotten),
    ("redis-forget-keeps-epoch", Bug::RedisForgetKeepsEpoch),
    ("redis-settles-any-version", Bug::RedisSettlesAnyVersion),
    ("redis-tier-believes-absence", Bug::RedisTierBelievesAbsence),
    ("redis-tier-ignores-epoch", Bug::RedisTierIgnoresEpoch),
    (
        "redis-tier-ignores-fingerprint",
        Bug::RedisTierIgnoresFingerprint,
    ),
    ("flow-acknowledges-first", Bug::FlowAcknowledgesFirst),
    ("flow-receipts-outside", Bug::FlowReceiptsOutside),
    ("flow-place-is-the-id", Bug::FlowPlaceIsTheId),
    ("flow-window-is-not-checked", Bug::FlowWindowIsNotChecked),
    ("flow-receipts-dropped-early", Bug::FlowReceiptsDroppedEarly),
];

/// The prefix of the names of bugs in the Postgres store. Only that store's suites can detect them.
pub const POSTGRES: &str = "pg-";

/// The prefix of the names of bugs in the Redis store and in the tier.
pub const REDIS: &str = "redis-";

/// How the names of bugs in consumers of messages begin.
pub const FLOW: &str = "flow-";

/// Whether this bug is active in this process.
#[cfg(feature = "planted")]
pub fn is(bug: Bug) -> bool {
    use std::sync::OnceLock;
    static PLANTED: OnceLock<Option<Bug>> = OnceLock::new();
    let planted = PLANTED.get_or_init(|| {
        let name = std::env::var("HAPAX_PLANTED").ok()?;
        let (_, bug) = BUGS
            .iter()
            .find(|(known, _)| *known == name)
            .unwrap_or_else(|| panic!("no bug is called {name:?}"));
        Some(*bug)
    });
    *planted == Some(bug)
}

/// Whether this bug is active in this process: never, in a build without the feature.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn is(_: Bug) -> bool {
    false
}
