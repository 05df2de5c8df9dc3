//! Known bugs, compiled into the production path on demand, to see whether the tests would notice.
//!
//! Without the feature `planted` every question here is the constant `false` and the branches
//! vanish. With it, the environment variable `HAPAX_PLANTED` names the one bug that is alive. The
//! feature is for the project's own checks and for nothing else.

/// The bugs. Each is a mistake some real system has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A claim is decided by an earlier read and written without its condition.
    CheckThenAct,
    /// A takeover does not ask whether the lease is over.
    UnconditionalTakeover,
    /// A release does not ask whether the attempt still owns the record.
    UnownedRelease,
    /// A completion does not ask whether the attempt still owns the record.
    UnfencedCompletion,
    /// A renewal makes a new fence, so that the attempt's own completion is refused.
    RenewalBumpsFence,
    /// Postgres: a takeover is decided by a reading that may be old by the time it is written.
    PgStaleTakeover,
    /// Postgres: that a tombstone is over is not asked again by the write that claims its key anew.
    PgStaleTombstone,
    /// Postgres: a completion sent alone does not name the fence of its attempt.
    PgUnfencedCompletion,
    /// Postgres: completions sent together do not name the fences of their attempts.
    PgUnfencedBatch,
    /// Postgres: an insert that meets another's row is taken for one that has made it.
    PgConflictIsWon,
    /// Postgres: an answer is found by its fence alone, which records claimed together share.
    PgAnswerByFence,
    /// Postgres: answers that end together go into one table, however long each is kept.
    PgAnswersInOneTable,
    /// Postgres: a table of answers is emptied when its time begins, not when it is over.
    PgRingTurnsEarly,
    /// Postgres: what is removed takes the memory of its fence along.
    PgFloorForgotten,
    /// Postgres: an entry of the log has the number after the highest that is there.
    PgLogByMaximum,
    /// Postgres: a renewal does not ask whether the attempt still owns the record.
    PgRenewalOfAnyFence,
    /// Postgres: a settlement leaves the lost attempt its fence.
    PgSettlementKeepsFence,
    /// Postgres: the sweep removes what nobody knows the end of.
    PgSweepRemovesUnresolved,
    /// Postgres: a forgetting does not tell the nodes that have the answer in memory.
    PgForgetKeepsEpoch,
    /// Postgres: a database that does not wait for its disk is left to it.
    PgCommitsAreNotWaitedFor,
    /// Postgres: a standby behind a pooler is read from as if it were the server.
    PgStandbyIsRead,
    /// Postgres: an end in the caller's transaction does not name the fence of its attempt.
    PgUnfencedJoin,
    /// Postgres: an attempt that ends twice in transactions of the caller's puts the second answer
    /// in the place of the first.
    PgJoinReplacesAnswer,
    /// Postgres: an operation is believed whatever it is signed with.
    PgJoinOfAnyOperation,
    /// Postgres: an operation of an earlier life of its key completes the record of the present
    /// one.
    PgJoinOfAnyLife,
    /// Postgres: a clock that jumps ahead by days is believed at once.
    PgClockIsBelieved,
}

/// Every bug with the name `HAPAX_PLANTED` knows it by. Those of the Postgres store begin with
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
];

/// What the names of bugs in the Postgres store begin with: only its own suites can notice them.
pub const POSTGRES: &str = "pg-";

/// Whether this bug is alive in this process.
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

/// Whether this bug is alive in this process: never, in a build without the feature.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn is(_: Bug) -> bool {
    false
}
