//! Hashing record ids for maps in memory.
//!
//! An id is a digest already, so most of what a general hasher does is done. What is left is to
//! keep callers, who choose their keys, from choosing ids that all fall into one bucket: a seed of
//! this process, multiplied in, which they do not know.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Makes hashers for ids; those of one are alike.
#[derive(Clone)]
pub(crate) struct Ids {
    seed: u64,
}

impl Default for Ids {
    fn default() -> Self {
        Ids {
            seed: RandomState::new().hash_one(0),
        }
    }
}

impl BuildHasher for Ids {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher(self.seed)
    }
}

/// Takes eight bytes of each id; numbers beside it, such as its fence, whole.
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        let first = bytes.first_chunk().copied().unwrap_or_default();
        self.write_u64(u64::from_le_bytes(first));
    }

    fn write_u64(&mut self, number: u64) {
        // Both halves of the product: the lower one alone would show equal low bits of two ids in
        // their hashes.
        let product = u128::from(self.0 ^ number) * u128::from(ODD);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn write_usize(&mut self, _len: usize) {
        // Every id has the same length.
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The golden ratio's digits: odd, with no pattern in its bits.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use hapax_core::scope::RecordId;

    use super::*;

    fn id(number: u64) -> RecordId {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        RecordId::from_bytes(bytes)
    }

    #[test]
    fn ids_that_are_alike_in_their_low_bits_spread_all_the_same() {
        let ids = Ids::default();
        for shift in [0, 16, 32, 48] {
            let low_bits: HashSet<_> = (0..1024)
                .map(|number| ids.hash_one(id(number << shift)) & 0xfff)
                .collect();
            // Of a thousand balls in four thousand urns about nine hundred find one of their own.
            assert!(
                low_bits.len() > 700,
                "shifted by {shift}: {}",
                low_bits.len()
            );
        }
    }

    #[test]
    fn two_processes_hash_differently() {
        assert_ne!(
            Ids::default().hash_one(id(1)),
            Ids::default().hash_one(id(1))
        );
    }

    #[test]
    fn what_stands_beside_an_id_counts() {
        let ids = Ids::default();
        assert_ne!(ids.hash_one((id(1), 1_u64)), ids.hash_one((id(1), 2_u64)));
    }
}
