//! What the service of a connection knows of its wire.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::Refusal;

/// Joins a connection's [`Wire`](super::Wire) and the service that answers its requests. Clones are
/// the same handle.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handle(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    served: AtomicU64,
    refused: OnceLock<(u64, Refusal)>,
    /// How many requests were read to their end, bodies included.
    ended: AtomicU64,
    open: AtomicBool,
}

/// Knows whether the body of one request was read to its end. The HTTP library does not always
/// tell: it ends a chunked body without an error when it drops a connection in the middle of one.
#[derive(Clone, Debug)]
pub(crate) struct BodyEnd {
    shared: Arc<Shared>,
    ordinal: u64,
}

impl BodyEnd {
    pub(crate) fn was_seen(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire) > self.ordinal
    }
}

impl Handle {
    /// Takes up the next request that the service was given: why it stands for one that was
    /// refused, if it does, and how to tell that its body has ended.
    ///
    /// To be called exactly once for each request, in their order, because it counts them.
    pub(crate) fn next_request(&self) -> (Option<Refusal>, BodyEnd) {
        let ordinal = self.0.served.fetch_add(1, Ordering::AcqRel);
        let refusal = self
            .0
            .refused
            .get()
            .filter(|(refused, _)| *refused == ordinal)
            .map(|(_, refusal)| *refusal);
        (
            refusal,
            BodyEnd {
                shared: self.0.clone(),
                ordinal,
            },
        )
    }

    /// The request at hand is answered with 101: what follows it is another protocol and passes
    /// unread.
    ///
    /// To be called before that answer is given to the HTTP library. A request without `Upgrade`
    /// opens nothing.
    pub(crate) fn open(&self) {
        self.0.open.store(true, Ordering::Release);
    }

    pub(super) fn refuse(&self, ordinal: u64, refusal: Refusal) {
        // A connection is refused once: nothing is scanned after it.
        let _ = self.0.refused.set((ordinal, refusal));
    }

    /// So many requests have been read to their end.
    pub(super) fn note_ended(&self, ended: u64) {
        self.0.ended.store(ended, Ordering::Release);
    }

    pub(super) fn is_open(&self) -> bool {
        self.0.open.load(Ordering::Acquire)
    }
}
