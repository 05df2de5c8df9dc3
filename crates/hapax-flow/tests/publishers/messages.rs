//! Messages for the suites of destinations and of sources.

use bytes::Bytes;
use hapax_core::flow::MessageId;
use hapax_core::time::Timestamp;
use hapax_flow::publish::Envelope;

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
