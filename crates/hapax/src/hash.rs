//! Hashing record ids for maps in memory.
//!
//! An id is already a digest, so little hashing is needed. But callers choose their keys, and must
//! not be able to choose ids that all fall into one bucket. So the hash multiplies in a seed of
//! this process, which callers do not know.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Makes hashers for ids. All hashers of one `Ids` have the same seed.
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

/// Hashes the first eight bytes of an id, and whole numbers beside it, such as its fence.
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        let first = bytes.first_chunk().copied().unwrap_or_default();
        self.write_u64(u64::from_le_bytes(first));
    }

    fn write_u64(&mut self, number: u64) {
        // Fold both halves of the product: with the lower half alone, ids with equal low bits would
        // have hashes with equal low bits.
        let product = u128::from(self.0 ^ number) * u128::from(ODD);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn write_usize(&mut self, _len: usize) {
        // All ids have the same length, so it is not hashed.
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The fractional digits of the golden ratio: odd, and without a pattern in the bits.
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
            // A good hash puts 1024 ids into about 900 different values of 4096.
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
