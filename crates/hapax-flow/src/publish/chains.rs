//! Which messages of a batch follow each other.

use std::collections::HashMap;

use super::Envelope;

/// The places of messages that are sent one after the other: those of one ordered key. A message
/// without a place in an order is alone.
pub(super) fn chains(batch: &[Envelope]) -> Vec<Vec<usize>> {
    let mut chains: Vec<Vec<usize>> = Vec::new();
    let mut of_key = HashMap::new();
    for (place, message) in batch.iter().enumerate() {
        let new = chains.len();
        let chain = match message.ordered_key() {
            Some(key) => *of_key.entry(key).or_insert(new),
            None => new,
        };
        if chain == new {
            chains.push(Vec::new());
        }
        chains[chain].push(place);
    }
    chains
}
