//! [`Pending`]: one word that says what a lane has to do besides polling its device.
//!
//! A poll that finds the word zero does nothing but poll the device. Each of the rare tasks has a
//! bit. Other threads set [`NOTICES`](Pending::NOTICES) and [`SENDS`](Pending::SENDS); the poller sets
//! and clears the other bits.

use std::sync::atomic::{AtomicU32, Ordering};

/// On its own cache line. It is written only when a rare task begins or ends, so the line stays in
/// the poller's cache.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Pending(AtomicU32);

impl Pending {
    /// There may be notices in the queue.
    pub(crate) const NOTICES: u32 = 1;
    /// Events are queued for the driver, or indexes of connections that it has seen closed are to
    /// be freed.
    pub(crate) const EVENTS: u32 = 1 << 1;
    /// Connections are being closed.
    pub(crate) const CLOSING: u32 = 1 << 2;
    /// The last poll ended although the device may have more completions.
    pub(crate) const MORE: u32 = 1 << 3;
    /// The lane has no connections. It is polled until a poll finds nothing.
    pub(crate) const NO_CONNECTIONS: u32 = 1 << 4;
    /// The lane has no connections and is not polled until a notice adds one.
    pub(crate) const IDLE: u32 = 1 << 5;
    /// READs or invalidations of windows are to be posted.
    pub(crate) const LONG_MESSAGES: u32 = 1 << 6;
    /// The poller is to look whether its sends are stuck.
    pub(crate) const SENDS: u32 = 1 << 7;

    /// Returns true if any bit is set.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Returns true if any of `bits` is set.
    #[inline]
    pub(crate) fn has(&self, bits: u32) -> bool {
        self.0.load(Ordering::Relaxed) & bits != 0
    }

    /// Sets bits of the poller.
    pub(crate) fn set(&self, bits: u32) {
        self.0.fetch_or(bits, Ordering::Relaxed);
    }

    /// Clears bits of the poller.
    pub(crate) fn clear(&self, bits: u32) {
        self.0.fetch_and(!bits, Ordering::Relaxed);
    }

    /// Publishes a notice that was put into the queue.
    pub(crate) fn announce_notice(&self) {
        // Release: whoever sees the bit finds the notice.
        self.0.fetch_or(Self::NOTICES, Ordering::Release);
    }

    /// Clears the bit for notices, before the queue is read.
    pub(crate) fn begin_to_read_notices(&self) {
        // Acquire pairs with the Release in `announce_notice`.
        self.0.fetch_and(!Self::NOTICES, Ordering::AcqRel);
    }
}
