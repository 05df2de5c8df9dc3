//! What a connection's [`Wire`](super::Wire) and its service tell each other.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::Refusal;

/// Connects a connection's [`Wire`](super::Wire) with the service that answers its requests. Clones
/// are the same handle.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handle(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    served: AtomicU64,
    refused: OnceLock<(u64, Refusal)>,
    /// The number of requests that were read to their end, including the body.
    ended: AtomicU64,
    open: AtomicBool,
}

/// Knows whether the body of one request was read to its end. The HTTP library does not always
/// report that: when it drops a connection in the middle of a chunked body, it ends the body
/// without an error.
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
    /// Takes the next request that the service was given. Returns the refusal, if the request
    /// stands for a refused one, and a handle that knows whether its body has ended.
    ///
    /// Must be called exactly once for each request, in order, because it counts them.
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

    /// Says that the current request is answered with 101: the bytes that follow are another
    /// protocol and are not scanned.
    ///
    /// Must be called before the answer is given to the HTTP library. It has no effect if the
    /// request has no `Upgrade`.
    pub(crate) fn open(&self) {
        self.0.open.store(true, Ordering::Release);
    }

    pub(super) fn refuse(&self, ordinal: u64, refusal: Refusal) {
        // A connection is refused only once: nothing is scanned afterwards.
        let _ = self.0.refused.set((ordinal, refusal));
    }

    /// Records how many requests have been read to their end.
    pub(super) fn note_ended(&self, ended: u64) {
        self.0.ended.store(ended, Ordering::Release);
    }

    pub(super) fn is_open(&self) -> bool {
        self.0.open.load(Ordering::Acquire)
    }
}
