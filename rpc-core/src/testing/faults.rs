//! [`Faults`]: fault injection, reproducible from a seed.

use std::cell::Cell;
use std::rc::Rc;

/// Probabilities of the faults on a [`Loopback`](super::Loopback), in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// A reservation finds no free slot.
    pub no_slot: u16,
    /// A poll returns nothing although events are pending.
    pub late: u16,
    /// A poll returns only some of the pending events.
    pub short_batch: u16,
    /// There is no memory for a long message, or for a piece of one.
    pub no_memory: u16,
    /// A connection fails on both sides during a poll.
    pub disconnect: u16,
}

impl Faults {
    /// Returns probabilities of zero.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            no_slot: 0,
            late: 0,
            short_batch: 0,
            no_memory: 0,
            disconnect: 0,
        }
    }

    /// Returns high probabilities for all recoverable faults.
    #[must_use]
    pub const fn rough() -> Self {
        Self {
            no_slot: 200,
            late: 300,
            short_batch: 300,
            no_memory: 200,
            disconnect: 0,
        }
    }
}

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
