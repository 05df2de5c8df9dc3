//! Known bugs, compiled into the production path on demand, to see whether the tests would notice.
//!
//! Without the feature `planted` every question here is the constant `false` and the branches vanish. With it, the environment
//! variable `HAPAX_PLANTED` names the one bug that is alive. The feature is for the project's own checks and for nothing else.

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
    /// A replay from the in-process cache does not compare fingerprints.
    CacheSkipsFingerprint,
    /// A claim holds its lease for as long as answers are kept.
    RetentionAsLease,
    /// A renewal makes a new fence, so that the attempt's own completion is refused.
    RenewalBumpsFence,
    /// A waiter gets the first caller's cookies.
    CookieToWaiters,
    /// A claim that lands after its caller gave up is left behind.
    LateClaimForgotten,
    /// Whether a lease is over is judged by the clock of the node that asks.
    LapseByNodeClock,
    /// The answer leaves before its record is durable.
    AnswerBeforeDurable,
    /// A stored answer is sent without looking at its checksum.
    ChecksumIgnored,
    /// `forget` leaves the answer in the in-process cache.
    ForgetKeepsCache,
    /// Waiters of an attempt that ended retryable all try again at once.
    RetryableStampede,
}

/// Every bug with the name `HAPAX_PLANTED` knows it by.
pub const BUGS: &[(&str, Bug)] = &[
    ("check-then-act", Bug::CheckThenAct),
    ("unconditional-takeover", Bug::UnconditionalTakeover),
    ("unowned-release", Bug::UnownedRelease),
    ("unfenced-completion", Bug::UnfencedCompletion),
    ("cache-skips-fingerprint", Bug::CacheSkipsFingerprint),
    ("retention-as-lease", Bug::RetentionAsLease),
    ("renewal-bumps-fence", Bug::RenewalBumpsFence),
    ("cookie-to-waiters", Bug::CookieToWaiters),
    ("late-claim-forgotten", Bug::LateClaimForgotten),
    ("lapse-by-node-clock", Bug::LapseByNodeClock),
    ("answer-before-durable", Bug::AnswerBeforeDurable),
    ("checksum-ignored", Bug::ChecksumIgnored),
    ("forget-keeps-cache", Bug::ForgetKeepsCache),
    ("retryable-stampede", Bug::RetryableStampede),
];

/// Whether this bug is alive in this process.
#[cfg(feature = "planted")]
pub fn is(bug: Bug) -> bool {
    use std::sync::OnceLock;
    static PLANTED: OnceLock<Option<Bug>> = OnceLock::new();
    let planted = PLANTED.get_or_init(|| {
        let name = std::env::var("HAPAX_PLANTED").ok()?;
        let (_, bug) = BUGS.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no bug is called {name:?}"));
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
