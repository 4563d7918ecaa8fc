//! The seed of the suite's random choices, and the numbers that are drawn from it.

use std::sync::OnceLock;

/// Returns the seed of this run: `SEED`, or one of the clock.
pub(crate) fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| match std::env::var("SEED") {
        Ok(seed) => seed.parse().expect("SEED is a number"),
        Err(_) => std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |now| now.as_nanos() as u64 % 1_000_000_007),
    })
}

/// Random numbers (splitmix64), the same in each run with the same seed.
pub(crate) struct Random(u64);

impl Random {
    /// Begins at the seed of this run and prints it.
    pub(crate) fn new() -> Self {
        let seed = seed();
        println!("           SEED={seed}");
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// Returns the key with one random bit changed, the same bit everywhere in this run.
pub(crate) fn flip(key: u32) -> u32 {
    key ^ 1 << Random::new().below(32)
}
