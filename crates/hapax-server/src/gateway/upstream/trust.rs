//! Whether an upstream's connections may be used again at once.
//!
//! Bytes that follow an answer too late to be noticed are read as the answer to the next request,
//! which may be somebody else's. So until an upstream has shown that nothing follows its answers,
//! each connection has to stay quiet for [`QUIET`] before it serves another request. An upstream
//! that sends a byte nobody asked for has its connections used once each from then on.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// How long a connection has to be quiet. Late bytes of a handler that writes more than it declared
/// come within milliseconds of the answer.
pub(crate) const QUIET: Duration = Duration::from_millis(100);

/// Connections that have to have been quiet before all are trusted to be.
const QUIET_CONNECTIONS: u32 = 8;

/// What an upstream has shown so far.
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
    /// When a connection may be used again; `ends_with_head` says that its last answer was one
    /// without a body, after which servers send one by mistake most often.
    pub(super) fn reuse(&self, ends_with_head: bool) -> Reuse {
        if self.is_lost.load(Ordering::Relaxed) {
            Reuse::Never
        } else if ends_with_head || self.quiet.load(Ordering::Relaxed) < QUIET_CONNECTIONS {
            Reuse::WhenQuiet
        } else {
            Reuse::AtOnce
        }
    }

    /// A connection was quiet for as long as it had to be.
    pub(super) fn was_quiet(&self) {
        // A few more than needed do no harm; a counter that comes round would.
        if self.quiet.load(Ordering::Relaxed) < QUIET_CONNECTIONS {
            self.quiet.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The upstream sent bytes that nobody had asked for. Whether this is the first time.
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
