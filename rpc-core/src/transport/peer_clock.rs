//! [`PeerClock`]: the difference between two hosts' clocks.

/// The monotonic clock (`CLOCK_MONOTONIC`) of a peer's host, compared with the one of this host.
///
/// A request carries its deadline on the receiver's clock, so that the time which it spends waiting
/// counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerClock {
    /// Microseconds by which the peer's clock is ahead of this host's, negative if it is behind.
    pub ahead_us: i64,
    /// Microseconds by which `ahead_us` may be wrong in either direction.
    pub error_us: u32,
}

impl PeerClock {
    /// The clock of a process on the same host: both read the same one.
    pub const SAME_HOST: Self = Self {
        ahead_us: 0,
        error_us: 0,
    };
}
