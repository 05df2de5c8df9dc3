//! The requests that reached an origin.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// A request that was read to its end.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The key: the field `Idempotency-Key`, or the whole body if there is no such field or it
    /// cannot be read.
    pub key: String,
    /// The head as received, for HTTP/1.1.
    pub head: String,
    /// The body without its framing.
    pub body: Vec<u8>,
}

/// The counts that a test can wait for.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    requests: usize,
    connections: usize,
    closed: usize,
    marks: usize,
}

/// The requests that reached an origin. Clones share the same ledger.
#[derive(Clone, Debug)]
pub struct Ledger {
    seen: Arc<Mutex<Vec<Seen>>>,
    tally: Arc<watch::Sender<Tally>>,
}

impl Default for Ledger {
    fn default() -> Self {
        Ledger {
            seen: Arc::default(),
            tally: Arc::new(watch::Sender::new(Tally::default())),
        }
    }
}

impl Ledger {
    /// How many complete requests with this key were read.
    pub fn count(&self, key: &str) -> usize {
        self.seen().iter().filter(|seen| seen.key == key).count()
    }

    /// All complete requests, in order.
    pub fn all(&self) -> Vec<Seen> {
        self.seen().clone()
    }

    /// How many connections were made.
    pub fn connections(&self) -> usize {
        self.tally.borrow().connections
    }

    /// How many connections have ended.
    pub fn closed(&self) -> usize {
        self.tally.borrow().closed
    }

    /// Returns when `count` complete requests have been read.
    pub async fn until_requests(&self, count: usize) {
        self.until(|tally| tally.requests >= count).await;
    }

    /// Returns when `count` connections have ended.
    pub async fn until_closed(&self, count: usize) {
        self.until(|tally| tally.closed >= count).await;
    }

    /// Returns when `count` marks have been passed, see [`Step::Mark`](super::Step::Mark).
    pub async fn until_marks(&self, count: usize) {
        self.until(|tally| tally.marks >= count).await;
    }

    pub(super) fn connected(&self) {
        self.tally.send_modify(|tally| tally.connections += 1);
    }

    pub(super) fn ended(&self) {
        self.tally.send_modify(|tally| tally.closed += 1);
    }

    pub(super) fn mark(&self) {
        self.tally.send_modify(|tally| tally.marks += 1);
    }

    pub(super) fn enter(&self, seen: Seen) {
        self.seen().push(seen);
        self.tally.send_modify(|tally| tally.requests += 1);
    }

    async fn until(&self, reached: impl FnMut(&Tally) -> bool) {
        let mut tally = self.tally.subscribe();
        let mut reached = reached;
        // Cannot fail: the sender lives as long as this handle.
        let _ = tally.wait_for(|tally| reached(tally)).await;
    }

    fn seen(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
