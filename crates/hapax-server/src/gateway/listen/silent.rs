//! Connections that have not sent a byte yet: there may be so many. Over it the oldest goes, so
//! that whoever speaks up is heard.

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
    /// A place among at most so many, and the word that it is lost to a newer one.
    pub(super) fn enter(&self, max: usize) -> (Place, oneshot::Receiver<()>) {
        let (sender, evicted) = oneshot::channel();
        let mut inside = self.inside.lock();
        let number = inside.next;
        inside.next += 1;
        inside.waiting.insert(number, sender);
        while inside.waiting.len() > max {
            // Dropping its sender is the word.
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
