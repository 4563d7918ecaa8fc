//! Counters of a device.

/// How often a receiver was not ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RnrCounters {
    /// Times that a message arrived here and found no receive.
    pub nak_sent: u64,
    /// Times that a peer had no receive for a message from this side.
    pub nak_received: u64,
}

/// The counters of one context, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Posted chains of sends; each checks the receiver's wakeup state once.
    pub doorbells: u64,
    /// Messages sent.
    pub sends: u64,
    /// Messages received.
    pub receives: u64,
    /// Times that a message arrived here and found no receive: a flow control bug in the user's
    /// protocol.
    pub rnr_nak_sent: u64,
    /// Times that a peer had no receive for a message from this side.
    pub rnr_nak_received: u64,
    /// Times that a shared receive queue reached its limit.
    pub srq_limit_events: u64,
    /// Rings that senders on this side announced because the receiver was not polling them, once for
    /// each doorbell.
    pub wakes: u64,
    /// Of these, wakeups of a receiver that slept, which needed a system call.
    pub sleepers_woken: u64,
    /// READs that this side executed itself: see [`ReadExecution`](crate::ReadExecution).
    pub reads_in_place: u64,
}
