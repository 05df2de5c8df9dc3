//! Whether an upstream's connections may be used again at once.
//!
//! Bytes that follow an answer too late to be noticed are read as the answer to the next request,
//! which may be another caller's. So until an upstream has shown that nothing follows its answers,
//! each connection must stay quiet for [`QUIET`] before it serves another request. If an upstream
//! ever sends surplus bytes, each of its connections is used only once from then on.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// How long a connection must stay quiet. A handler that writes more than it declared sends the
/// late bytes within milliseconds of the answer.
pub(crate) const QUIET: Duration = Duration::from_millis(100);

/// How many connections must have stayed quiet before all connections are trusted.
const QUIET_CONNECTIONS: u32 = 8;

/// What an upstream's behaviour so far has shown.
#[derive(Debug, Default)]
pub(super) struct Trust {
    quiet: AtomicU32,
    is_lost: AtomicBool,
}

/// When a connection may serve another request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reuse {
    AtOnce,
    WhenQuiet,
    Never,
}

impl Trust {
    /// When a connection may be used again. `ends_with_head` says that its last answer had no body;
    /// after such answers, servers most often send one by mistake.
    pub(super) fn reuse(&self, ends_with_head: bool) -> Reuse {
        if self.is_lost.load(Ordering::Relaxed) {
            Reuse::Never
        } else if ends_with_head || self.quiet.load(Ordering::Relaxed) < QUIET_CONNECTIONS {
            Reuse::WhenQuiet
        } else {
            Reuse::AtOnce
        }
    }

    /// Records that a connection stayed quiet for [`QUIET`].
    pub(super) fn was_quiet(&self) {
        // Races may count a few too many, which does no harm; the check keeps the counter from
        // wrapping.
        if self.quiet.load(Ordering::Relaxed) < QUIET_CONNECTIONS {
            self.quiet.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that the upstream sent surplus bytes. Returns whether this is the first time.
    pub(super) fn lose(&self) -> bool {
        !self.is_lost.swap(true, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_is_earned_by_quiet_connections_and_lost_for_good() {
        let trust = Trust::default();
        for _ in 0..QUIET_CONNECTIONS {
            assert_eq!(trust.reuse(false), Reuse::WhenQuiet);
            trust.was_quiet();
        }
        assert_eq!(trust.reuse(false), Reuse::AtOnce);
        assert_eq!(
            trust.reuse(true),
            Reuse::WhenQuiet,
            "a body may always follow by mistake"
        );
        assert!(trust.lose() && !trust.lose());
        trust.was_quiet();
        assert_eq!(trust.reuse(false), Reuse::Never);
    }
}
