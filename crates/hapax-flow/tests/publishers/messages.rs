//! Messages for the suite, and what is said of those that arrived.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use hapax_core::flow::MessageId;
use hapax_core::time::Timestamp;
use hapax_flow::publish::Envelope;

use super::destination::Arrived;

/// A message with a number that is also its id and, unless changed, its payload.
pub(crate) fn message(topic: &str, number: u64, key: Option<String>) -> Envelope {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&number.to_be_bytes());
    Envelope {
        sequence: i64::try_from(number).unwrap(),
        id: MessageId::from_bytes(id),
        at: Timestamp::from_micros(1_700_000_000_000_000 + number),
        topic: topic.to_owned(),
        key,
        ordered: true,
        version: None,
        headers: Vec::new(),
        payload: Bytes::from(number.to_string()),
    }
}

/// Messages with the numbers from `first` on, spread over some keys.
pub(crate) fn batch(topic: &str, first: u64, count: u64, keys: u64) -> Vec<Envelope> {
    let spread = |number: u64| Some(format!("key {}", number * 7919 % keys));
    (first..first + count)
        .map(|number| message(topic, number, spread(number)))
        .collect()
}

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
