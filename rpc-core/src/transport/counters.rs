//! [`Counters`] and [`SlotsByState`]: a transport's counters, and the state of its slots.

use std::fmt;
use std::iter::Sum;

/// Reads a transport's counters from any thread. It remains usable after the transport ends.
pub trait CounterReader: Send + Sync {
    /// Returns the counters, all since the transport was opened. May make system calls.
    fn counters(&self) -> Counters;
}

/// Declares the counters, with the functions that visit each of them.
macro_rules! counters {
    ($($(#[doc = $about:literal])* $counter:ident,)*) => {
        /// A transport's counters, all since it was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[doc = $about])* pub $counter: u64,)*
        }

        impl Counters {
            /// Returns the counters: the name, the meaning and the count of each.
            #[must_use = "it is a list"]
            pub fn counters(self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((
                    stringify!($counter),
                    concat!($($about),*).trim_ascii_start(),
                    self.$counter,
                ),)*]
                .into_iter()
            }

            fn with(&self, other: &Self, join: impl Fn(u64, u64) -> u64) -> Self {
                Self {
                    $($counter: join(self.$counter, other.$counter),)*
                }
            }
        }
    };
}

counters! {
    /// Frames posted to the device.
    sends,
    /// Of these, frames that requested a completion.
    signaled,
    /// Chains posted to the device: one doorbell each.
    doorbells,
    /// Frames received.
    receives,
    /// Times that the shared receive queue fell below its limit because the poller fell behind.
    srq_limit_events,
    /// Receives posted from the reserve for that reason.
    reserve_posted,
    /// Frames that found no receive posted: a bug in flow control, or a hostile peer.
    rnr,
    /// Completions ignored because they match nothing any more, such as those of a queue pair that
    /// was destroyed after its time limit.
    stale,
    /// Look-ups that did not find a connection or transfer that must be there: a bug in the transport,
    /// which has left out the work for it.
    missed,
    /// Peers whose connections were closed because they did not answer keepalive probes.
    silent_peers,
}

impl Counters {
    /// Returns the difference to an earlier snapshot.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.with(earlier, u64::saturating_sub)
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.with(other, u64::saturating_add)
    }
}

/// The number of slots in each state at one moment.
///
/// A transport counts the free slots in its lists at that moment, and keeps running counts of the
/// others. The sum is therefore a check: it equals [`Limits::slots`](crate::Limits::slots) as long
/// as no slot was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotsByState {
    /// Waiting to be posted.
    pub receives_free: u32,
    /// In the shared receive queue, or consumed by the device and not polled yet.
    pub receives_posted: u32,
    /// In the reserve, for a poller that falls behind.
    pub receives_reserved: u32,
    /// Held by the driver.
    pub receives_held: u32,
    /// Waiting to be reserved.
    pub sends_free: u32,
    /// Reserved by the driver.
    pub sends_reserved: u32,
    /// Queued for the device, or in flight.
    pub sends_in_flight: u32,
}

impl SlotsByState {
    /// Returns the sum over all states.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.named().iter().map(|(_, count)| count).sum()
    }

    /// Returns the count of each state with its name.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u32); 7] {
        [
            ("receives_free", self.receives_free),
            ("receives_posted", self.receives_posted),
            ("receives_reserved", self.receives_reserved),
            ("receives_held", self.receives_held),
            ("sends_free", self.sends_free),
            ("sends_reserved", self.sends_reserved),
            ("sends_in_flight", self.sends_in_flight),
        ]
    }
}

/// Adds up each state separately.
impl Sum for SlotsByState {
    fn sum<I: Iterator<Item = Self>>(pools: I) -> Self {
        pools.fold(Self::default(), |sum, pool| Self {
            receives_free: sum.receives_free + pool.receives_free,
            receives_posted: sum.receives_posted + pool.receives_posted,
            receives_reserved: sum.receives_reserved + pool.receives_reserved,
            receives_held: sum.receives_held + pool.receives_held,
            sends_free: sum.sends_free + pool.sends_free,
            sends_reserved: sum.sends_reserved + pool.sends_reserved,
            sends_in_flight: sum.sends_in_flight + pool.sends_in_flight,
        })
    }
}

impl fmt::Display for SlotsByState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} slots: receives {} free + {} posted + {} in reserve + {} held; sends {} free + {} reserved + {} in flight",
            self.total(),
            self.receives_free,
            self.receives_posted,
            self.receives_reserved,
            self.receives_held,
            self.sends_free,
            self.sends_reserved,
            self.sends_in_flight
        )
    }
}
