//! [`Counters`] and [`SlotsByPlace`] say what a transport has done and where its slots are.

use std::fmt;
use std::iter::Sum;

/// Reads what a transport counts, for as long as anybody asks, from any thread.
pub trait Meter: Send + Sync {
    /// What it has counted since it was opened. May make system calls.
    fn counters(&self) -> Counters;
}

/// What a transport counts, all since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames given to the device.
    pub sends: u64,
    /// Of these, those that asked for a completion.
    pub signaled: u64,
    /// Chains given to the device: one doorbell each.
    pub doorbells: u64,
    /// Frames received.
    pub receives: u64,
    /// Times that the shared receive queue fell below its limit because this poller lagged.
    pub srq_limit_events: u64,
    /// Receives that were posted from the reserve because of that.
    pub reserve_posted: u64,
    /// Frames that found no receive posted: a bug in flow control, or a hostile peer.
    pub rnr: u64,
    /// Completions that named nothing any more and were ignored: of connections that were given up.
    pub stale: u64,
    /// Peers that were given up since they did not answer the keepalive.
    pub silent_peers: u64,
}

impl Counters {
    const LEN: usize = 9;

    /// Each with its name.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); Self::LEN] {
        [
            ("sends", self.sends),
            ("signaled", self.signaled),
            ("doorbells", self.doorbells),
            ("receives", self.receives),
            ("srq_limit_events", self.srq_limit_events),
            ("reserve_posted", self.reserve_posted),
            ("rnr", self.rnr),
            ("stale", self.stale),
            ("silent_peers", self.silent_peers),
        ]
    }

    fn from_array(counts: [u64; Self::LEN]) -> Self {
        let [
            sends,
            signaled,
            doorbells,
            receives,
            srq_limit_events,
            reserve_posted,
            rnr,
            stale,
            silent_peers,
        ] = counts;
        Self {
            sends,
            signaled,
            doorbells,
            receives,
            srq_limit_events,
            reserve_posted,
            rnr,
            stale,
            silent_peers,
        }
    }

    fn with(&self, other: &Self, join: impl Fn(u64, u64) -> u64) -> Self {
        let (mine, others) = (self.named(), other.named());
        Self::from_array(std::array::from_fn(|n| join(mine[n].1, others[n].1)))
    }

    /// What was counted since an earlier look.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.with(earlier, u64::saturating_sub)
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.with(other, u64::saturating_add)
    }
}

/// How many slots are in each place at one moment.
///
/// In a transport's own look, the free ones are counted by looking and the others when a slot changes
/// its place, so that the sum is a check: it is [`Limits::slots`](crate::Limits::slots) as long as
/// none was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotsByPlace {
    /// Waiting to be posted.
    pub receives_free: u32,
    /// In the shared receive queue, or consumed by the device and not polled yet.
    pub receives_posted: u32,
    /// In reserve, for when the poller lags.
    pub receives_reserved: u32,
    /// In the driver's hands.
    pub receives_held: u32,
    /// Waiting to be reserved.
    pub sends_free: u32,
    /// In the driver's hands.
    pub sends_in_hand: u32,
    /// Queued for the device, or in flight.
    pub sends_in_flight: u32,
}

impl SlotsByPlace {
    /// The sum of all places.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.named().iter().map(|(_, count)| count).sum()
    }

    /// Each place with its name.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u32); 7] {
        [
            ("receives_free", self.receives_free),
            ("receives_posted", self.receives_posted),
            ("receives_reserved", self.receives_reserved),
            ("receives_held", self.receives_held),
            ("sends_free", self.sends_free),
            ("sends_in_hand", self.sends_in_hand),
            ("sends_in_flight", self.sends_in_flight),
        ]
    }
}

/// Place by place.
impl Sum for SlotsByPlace {
    fn sum<I: Iterator<Item = Self>>(pools: I) -> Self {
        pools.fold(Self::default(), |sum, pool| Self {
            receives_free: sum.receives_free + pool.receives_free,
            receives_posted: sum.receives_posted + pool.receives_posted,
            receives_reserved: sum.receives_reserved + pool.receives_reserved,
            receives_held: sum.receives_held + pool.receives_held,
            sends_free: sum.sends_free + pool.sends_free,
            sends_in_hand: sum.sends_in_hand + pool.sends_in_hand,
            sends_in_flight: sum.sends_in_flight + pool.sends_in_flight,
        })
    }
}

impl fmt::Display for SlotsByPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} slots: receives {} free + {} posted + {} in reserve + {} held; sends {} free + {} in hand + {} in flight",
            self.total(),
            self.receives_free,
            self.receives_posted,
            self.receives_reserved,
            self.receives_held,
            self.sends_free,
            self.sends_in_hand,
            self.sends_in_flight
        )
    }
}
