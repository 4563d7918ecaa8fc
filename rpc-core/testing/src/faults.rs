//! [`Faults`]: fault injection, reproducible from a seed.

/// Probabilities of the faults on a [`Loopback`](crate::Loopback), in thousandths.
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
