//! What the service of a connection knows of its wire.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::Refusal;

/// Joins a connection's [`Wire`](super::Wire) and the service that answers its requests. Clones are the same handle.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handle(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    served: AtomicU64,
    refused: OnceLock<(u64, Refusal)>,
    open: AtomicBool,
}

impl Handle {
    /// Why the request that the service was just given stands for one that was refused, if it does.
    ///
    /// To be called exactly once for each request, in their order, because it counts them.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        let ordinal = self.0.served.fetch_add(1, Ordering::AcqRel);
        self.0.refused.get().filter(|(refused, _)| *refused == ordinal).map(|(_, refusal)| *refusal)
    }

    /// The request at hand is answered with 101: what follows it is another protocol and passes unread.
    ///
    /// To be called before that answer is given to the HTTP library. A request without `Upgrade` opens nothing.
    pub(crate) fn open(&self) {
        self.0.open.store(true, Ordering::Release);
    }

    pub(super) fn refuse(&self, ordinal: u64, refusal: Refusal) {
        // A connection is refused once: nothing is scanned after it.
        let _ = self.0.refused.set((ordinal, refusal));
    }

    pub(super) fn is_open(&self) -> bool {
        self.0.open.load(Ordering::Acquire)
    }
}
