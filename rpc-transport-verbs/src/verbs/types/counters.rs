//! What a device counts.

/// How often a receiver was not ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RnrCounters {
    /// Times that a message found no receive here.
    pub nak_sent: u64,
    /// Times that a peer had no receive for a message from here.
    pub nak_received: u64,
}

/// What the device has counted for one context since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Lists of sends that were posted, each with one look at the receiver.
    pub doorbells: u64,
    /// Messages sent.
    pub sends: u64,
    /// Messages received.
    pub receives: u64,
    /// Times that a message found no receive here: a bug in the users' flow control.
    pub rnr_nak_sent: u64,
    /// Times that a peer had no receive for a message from here.
    pub rnr_nak_received: u64,
    /// Times that a limit of a shared receive queue was reached.
    pub srq_limit_events: u64,
    /// Ready bits and wake-ups that senders here had to write for cold receivers.
    pub wakes: u64,
    /// Of these, times that it slept, so that it had to be woken by a system call.
    pub sleepers_woken: u64,
}
