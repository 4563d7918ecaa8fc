//! [`Faults`]: what goes wrong, from a seed.

use std::cell::Cell;
use std::rc::Rc;

/// Probabilities of what can go wrong on a [`Loopback`](super::Loopback), in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// A reservation finds no slot.
    pub no_slot: u16,
    /// A poll finds nothing, though something has come.
    pub late: u16,
    /// A poll finds less than has come.
    pub short_batch: u16,
    /// A connection fails, on both sides, in a poll.
    pub disconnect: u16,
}

impl Faults {
    /// Nothing goes wrong.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            no_slot: 0,
            late: 0,
            short_batch: 0,
            disconnect: 0,
        }
    }

    /// Everything goes wrong often, but nothing for good.
    #[must_use]
    pub const fn rough() -> Self {
        Self {
            no_slot: 200,
            late: 300,
            short_batch: 300,
            disconnect: 0,
        }
    }
}

/// Numbers that look random and are the same for the same seed (SplitMix64, Steele and others,
/// "Fast splittable pseudorandom number generators"). Clones draw from the same sequence.
#[derive(Clone, Debug)]
pub struct Random(Rc<Cell<u64>>);

impl Random {
    /// The sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Rc::new(Cell::new(seed)))
    }

    /// The next number.
    pub fn next_u64(&self) -> u64 {
        let state = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(state);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// Whether something happens that happens so many times in a thousand.
    pub fn happens(&self, thousandths: u16) -> bool {
        thousandths > 0 && self.below(1000) < u64::from(thousandths)
    }
}
