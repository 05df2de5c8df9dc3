//! Chance that can be repeated: the same seed throws the same numbers.

use std::time::Duration;

/// A small generator (splitmix64). Nothing here needs a better one.
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    /// Dice of their own for each purpose, so that throwing more for one leaves the others as they
    /// were.
    pub(super) fn new(seed: u64, purpose: &str) -> Dice {
        let mixed = purpose
            .bytes()
            .fold(seed, |mixed, byte| Dice(mixed ^ u64::from(byte)).throw());
        Dice(mixed)
    }

    pub(super) fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From `least` to `most`, both included.
    pub(super) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.throw() % (most - least + 1)
    }

    pub(super) fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.between(least, most))
    }

    pub(super) fn one_in(&mut self, many: u64) -> bool {
        self.throw().is_multiple_of(many)
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = (self.throw() % (last as u64 + 1)) as usize;
            items.swap(last, other);
        }
    }
}
