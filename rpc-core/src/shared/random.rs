//! [`Random`]: numbers that differ between processes and uses, for times that should.

use std::hash::{BuildHasher, RandomState};

/// A generator of numbers between 0 and 1 (xorshift64*, Vigna, "An experimental exploration of
/// Marsaglia's xorshift generators, scrambled").
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new() -> Self {
        // The standard library's hasher uses different keys for each process and each use.
        Self::seeded(RandomState::new().hash_one(()))
    }

    pub(super) fn seeded(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// Returns the next number.
    pub(super) fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
    }
}
