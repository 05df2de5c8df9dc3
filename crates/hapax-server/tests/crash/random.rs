//! Chance that repeats with its seed (SplitMix64).

pub struct Random(u64);

impl Random {
    /// From `HAPAX_SEED`, if it is there to repeat a run. Says which.
    pub fn from_env(default: u64) -> Random {
        let seed = std::env::var("HAPAX_SEED").map_or(default, |seed| seed.parse().unwrap());
        println!("HAPAX_SEED={seed}");
        Random(seed)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }
}
