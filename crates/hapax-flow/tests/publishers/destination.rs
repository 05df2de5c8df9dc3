//! What the suite needs of a destination.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use hapax_flow::publish::{Envelope, Publisher};

/// A message as a consumer of the destination gets it.
#[derive(Clone, Debug)]
pub(crate) struct Arrived {
    /// The id that makes a repeat known.
    pub(crate) id: String,
    pub(crate) key: Option<String>,
    /// Names in lower case. There may be more than were sent.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) payload: Vec<u8>,
}

impl Arrived {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(given, _)| given == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// A destination of its own for one test.
pub(crate) trait Destination {
    type Publisher: Publisher;

    /// A publisher to it, with a time limit for each message of [`LIMIT`].
    fn publisher(&self) -> Self::Publisher;

    /// A topic that it takes.
    fn topic(&self) -> &'static str {
        "orders"
    }

    /// Everything that has arrived so far, in this order, repeats included.
    async fn arrived(&self) -> Vec<Arrived>;
}

/// A destination that refuses some messages.
pub(crate) trait Refusing: Destination {
    /// Changes a message so that the destination refuses it, but not its topic or key.
    fn spoil(&self, message: &mut Envelope);
}

/// A destination that can be down.
pub(crate) trait Mortal: Destination {
    /// Ends it at once. What it has accepted it has again after a restart.
    fn kill(&mut self);

    fn restart(&mut self);

    /// Has it stand still: connections stay, but nothing is answered.
    fn pause(&self);

    fn resume(&self);

    /// How often a test kills it that does so again and again.
    fn kills(&self) -> usize {
        10
    }
}

/// The time limit of a publisher in tests: a slow machine must not fail them.
pub(crate) const LIMIT: Duration = Duration::from_secs(3);

/// A call may take longer than the limit of a message, but not by much.
pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(8);

fn ids<'a>(messages: impl IntoIterator<Item = &'a Envelope>) -> Vec<String> {
    let messages = messages.into_iter();
    messages.map(|message| message.id.to_string()).collect()
}

/// Each message arrived once, and no other one.
pub(crate) fn assert_once(sent: &[Envelope], arrived: &[Arrived]) {
    let arrived_ids: HashSet<&str> = arrived.iter().map(|one| one.id.as_str()).collect();
    assert_eq!(arrived.len(), sent.len(), "messages");
    assert!(ids(sent).iter().all(|id| arrived_ids.contains(id.as_str())));
}

/// Each message arrived, and for each key: in the order in which they were sent, where a repeat is
/// followed by repeats of everything behind it.
pub(crate) fn assert_in_order(sent: &[Envelope], arrived: &[Arrived]) {
    let mut sent_by_key: BTreeMap<Option<&str>, Vec<String>> = BTreeMap::new();
    for message in sent {
        let of_key = sent_by_key.entry(message.key.as_deref()).or_default();
        of_key.push(message.id.to_string());
    }
    for (key, sent) in sent_by_key {
        let places: Vec<usize> = arrived
            .iter()
            .filter(|one| one.key.as_deref() == key)
            .map(|one| sent.iter().position(|id| *id == one.id).expect("sent"))
            .collect();
        let mut next = 0;
        for place in &places {
            assert!(*place <= next, "key {key:?} arrived as {places:?}");
            next = place + 1;
        }
        assert_eq!(next, sent.len(), "key {key:?} arrived as {places:?}");
    }
}
