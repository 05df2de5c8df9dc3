//! Messages that are tried again later, and those that wait behind them.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::received::{Lane, Received};

/// The deliveries of one message that are remembered. Older ones are most likely over.
const TAGS_MAX: usize = 16;

/// A message of this consumer, with what its deliveries are acknowledged by.
#[derive(Clone, Debug)]
pub(super) struct Item<T> {
    pub(super) received: Received,
    /// More than one if it came again meanwhile: because a connection was lost, or because it was
    /// published twice. In the second case the broker waits for each of them.
    pub(super) tags: Vec<T>,
    /// Tries that failed.
    pub(super) failures: u32,
}

/// What the deliveries of these are acknowledged by.
pub(super) fn tags<'a, T: Clone + 'a>(items: impl IntoIterator<Item = &'a Item<T>>) -> Vec<T> {
    let items = items.into_iter();
    items.flat_map(|item| item.tags.iter().cloned()).collect()
}

/// The longest that others have a turn.
const REST_MAX: Duration = Duration::from_secs(1);

/// Messages that failed, each with the later ones of its lane behind it.
pub(super) struct Backlog<T> {
    lanes: HashMap<Lane, Waiting<T>>,
    len: usize,
    /// Nothing is tried again before, because others have a turn.
    rests_until: Instant,
}

struct Waiting<T> {
    due: Instant,
    items: VecDeque<Item<T>>,
}

impl<T: Clone> Backlog<T> {
    pub(super) fn new() -> Backlog<T> {
        Backlog {
            lanes: HashMap::new(),
            len: 0,
            rests_until: Instant::now(),
        }
    }

    /// The number of messages.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Puts a message first in its lane, to be tried again at `due`.
    pub(super) fn put_first(&mut self, item: Item<T>, due: Instant) {
        let items = VecDeque::new();
        let lane = self.lanes.entry(item.received.lane());
        let waiting = lane.or_insert(Waiting { due, items });
        waiting.due = due;
        waiting.items.push_front(item);
        self.len += 1;
    }

    /// Takes the message if an earlier one of its lane waits; else gives it back. A message that
    /// waits already is known by its id.
    pub(super) fn put_behind(&mut self, item: Item<T>) -> Option<Item<T>> {
        let Some(waiting) = self.lanes.get_mut(&item.received.lane()) else {
            return Some(item);
        };
        let mut items = waiting.items.iter_mut();
        match items.find(|known| known.received.id() == item.received.id()) {
            Some(known) => {
                known.tags.extend(item.tags);
                let over = known.tags.len().saturating_sub(TAGS_MAX);
                known.tags.drain(..over);
            }
            None => {
                waiting.items.push_back(item);
                self.len += 1;
            }
        }
        None
    }

    /// What came for the first time has as much time as this try had. Else a few messages that
    /// wait long, such as for a lock, and are due again at once, would take all of it.
    pub(super) fn rest(&mut self, tried_for: Duration) {
        self.rests_until = Instant::now() + tried_for.min(REST_MAX);
    }

    /// The messages of a lane whose first is due, in their order.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<VecDeque<Item<T>>> {
        if now < self.rests_until {
            return None;
        }
        let mut lanes = self.lanes.iter();
        let (lane, _) = lanes.find(|(_, waiting)| waiting.due <= now)?;
        let lane = lane.clone();
        let items = self.lanes.remove(&lane)?.items;
        self.len -= items.len();
        Some(items)
    }

    /// When the next one is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let due = self.lanes.values().map(|waiting| waiting.due).min()?;
        Some(due.max(self.rests_until))
    }

    /// What their deliveries are acknowledged by.
    pub(super) fn tags(&self) -> Vec<T> {
        tags(self.lanes.values().flat_map(|waiting| &waiting.items))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consume::Incoming;

    fn item(id: &str, key: Option<&str>, tag: u32) -> Item<u32> {
        let incoming = Incoming {
            key: key.map(str::to_owned),
            ..Incoming::default()
        };
        Item {
            received: Received::new(&"test".into(), Some(id.to_owned()), incoming),
            tags: vec![tag],
            failures: 0,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn later_messages_of_a_key_wait_behind_one_that_failed() {
        let mut backlog = Backlog::new();
        let now = Instant::now();
        let due = now + Duration::from_secs(1);
        backlog.put_first(item("1", Some("a"), 1), due);
        assert!(backlog.put_behind(item("2", Some("a"), 2)).is_none());
        assert!(backlog.put_behind(item("3", Some("b"), 3)).is_some());
        assert!(backlog.put_behind(item("4", None, 4)).is_some());
        assert!(backlog.take_due(now).is_none());
        assert_eq!(backlog.next_due(), Some(due));
        let items = backlog.take_due(due).unwrap();
        assert_eq!((tags(&items), backlog.len()), (vec![1, 2], 0));
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_try_others_have_a_turn() {
        let mut backlog = Backlog::new();
        let now = Instant::now();
        backlog.put_first(item("1", None, 1), now);
        backlog.rest(Duration::from_millis(100));
        let later = now + Duration::from_millis(100);
        assert!(backlog.take_due(now).is_none());
        assert_eq!(backlog.next_due(), Some(later));
        assert!(backlog.take_due(later).is_some());
        backlog.rest(Duration::from_secs(300));
        backlog.put_first(item("1", None, 1), now);
        assert_eq!(backlog.next_due(), Some(now + REST_MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn all_deliveries_of_a_message_are_remembered_up_to_a_limit() {
        let mut backlog = Backlog::new();
        let now = Instant::now();
        backlog.put_first(item("1", Some("a"), 1), now);
        assert!(backlog.put_behind(item("1", Some("a"), 9)).is_none());
        assert_eq!((backlog.len(), backlog.tags()), (1, vec![1, 9]));
        for tag in 100..200 {
            assert!(backlog.put_behind(item("1", Some("a"), tag)).is_none());
        }
        assert_eq!(backlog.tags(), (184..200).collect::<Vec<_>>());
    }
}
