//! Connections that have not sent a byte yet. Their number is limited: a new one over the limit
//! evicts the oldest.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The silent connections, in the order in which they came.
#[derive(Clone, Default)]
pub(super) struct Silent {
    inside: Arc<Mutex<Inside>>,
}

#[derive(Default)]
struct Inside {
    next: u64,
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
}

/// A silent connection's place. Given up when dropped.
pub(super) struct Place {
    silent: Silent,
    number: u64,
}

impl Silent {
    /// Registers a connection, of `max` at most. The receiver fires if it is evicted.
    pub(super) fn enter(&self, max: usize) -> (Place, oneshot::Receiver<()>) {
        let (sender, evicted) = oneshot::channel();
        let mut inside = self.inside.lock();
        let number = inside.next;
        inside.next += 1;
        inside.waiting.insert(number, sender);
        while inside.waiting.len() > max {
            // Its receiver fires when the sender is dropped.
            inside.waiting.pop_first();
        }
        (
            Place {
                silent: self.clone(),
                number,
            },
            evicted,
        )
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.silent.inside.lock().waiting.remove(&self.number);
    }
}
