//! [`Random`]: what a seed decides.

use std::cell::Cell;
use std::rc::Rc;

/// A pseudorandom sequence that is reproducible from its seed (SplitMix64, Steele and others, "Fast
/// splittable pseudorandom number generators"). Clones draw from the same sequence.
#[derive(Clone, Debug)]
pub struct Random(Rc<Cell<u64>>);

impl Random {
    /// Creates the sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Rc::new(Cell::new(seed)))
    }

    /// Returns the next number.
    pub fn next_u64(&self) -> u64 {
        let state = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(state);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`, which must not be zero.
    pub fn below(&self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// Returns true with the given probability, in thousandths.
    pub fn happens(&self, thousandths: u16) -> bool {
        thousandths > 0 && self.below(1000) < u64::from(thousandths)
    }
}
