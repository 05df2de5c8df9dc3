//! Reproducible randomness: the same seed gives the same choices on every machine and with every
//! version of the standard library.

use std::time::Duration;

/// A random generator (SplitMix64: one word of state, good enough to pick steps).
pub struct Random(u64);

impl Random {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// A generator with the seed in `HAPAX_SEED`, which repeats a run, or with the default. Prints
    /// the seed.
    pub fn from_env(default: u64) -> Self {
        let seed = std::env::var("HAPAX_SEED").ok();
        let seed = seed.map_or(default, |seed| seed.parse().expect("a seed is a number"));
        println!("HAPAX_SEED={seed}");
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below this limit.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// True with this probability in percent.
    pub(crate) fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    pub(crate) fn millis(&mut self, choices: &[u64]) -> Duration {
        Duration::from_millis(self.pick(choices))
    }

    /// One of the choices, with a probability in proportion to its weight.
    pub(crate) fn weighted<T: Copy>(&mut self, choices: &[(usize, T)]) -> T {
        let mut rest = self.below(choices.iter().map(|(weight, _)| weight).sum());
        for &(weight, choice) in choices {
            if rest < weight {
                return choice;
            }
            rest -= weight;
        }
        unreachable!("the rest is below the sum of the weights")
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next() as u8)
    }
}
